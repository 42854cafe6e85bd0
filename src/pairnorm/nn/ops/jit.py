"""How kernels in numba are compiled: kept on disk where that can be, anew where what is kept is damaged."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class KernelWarning(UserWarning):
    """Kernels are compiled in every process."""


class _Kept(FunctionCache):  # type: ignore[misc]
    """Compiled code on disk; a file that ends early, or cannot be written, is no reason to fail."""

    def load_overload(self, *what: Any) -> Any:
        """Return what was compiled before, or None."""
        try:
            return super().load_overload(*what)
        except Exception:
            self._renew()
            return None

    def save_overload(self, *what: Any) -> None:
        """Keep what has been compiled, if that can be done."""
        try:
            super().save_overload(*what)
        except OSError:
            self._renew()

    def _renew(self) -> None:
        try:
            self.flush()
        except OSError:
            self.disable()  # it cannot be written either: the code stays in memory


def kernel(function: Callable[..., Any], *, reassociate: bool = False) -> Any:
    """Compile a function when it is first called; where it may be kept nowhere, in every process.

    Args:
        function: the kernel.
        reassociate: let sums be added up in another order than written, so that they become vectors.
    """
    orders = {"reassoc", "contract", "nsz"} if reassociate else False
    compiled = njit(nogil=True, error_model="numpy", fastmath=orders)(function)
    try:
        compiled._cache = _Kept(function)
    except (OSError, RuntimeError):  # no folder can be written, nor that of the user
        _say_once()
    return compiled


@cache
def _say_once() -> None:
    warnings.warn(
        "compiled kernels can be kept nowhere: every process takes some seconds to compile them. Set "
        "NUMBA_CACHE_DIR to a folder that can be written.",
        KernelWarning,
        stacklevel=3,
    )
