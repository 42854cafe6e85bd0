"""Compile numba kernels with a cache on disk that survives damaged files, and share rows among threads."""

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from numba import njit
from numba.core.caching import FunctionCache

# With fewer multiplications than this, waking a thread takes longer than the work it would share.
MIN_WORK_FOR_THREADS = 2**22


class KernelWarning(UserWarning):
    """Kernels are compiled in every process."""


class _Kept(FunctionCache):  # type: ignore[misc]
    """KernelFunction code on disk; a file that ends early, or cannot be written, is no reason to fail."""

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


def share_out(rows: int, rows_per_task: int, work: Callable[[int, int], Any]) -> None:
    """Let ``torch.get_num_threads()`` threads work on ranges of rows.

    Args:
        rows: how many there are.
        rows_per_task: how many are a range.
        work: is called with the first row of a range and the one after its last, and releases the GIL.
    """
    starts = range(0, rows, rows_per_task)
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            work(start, min(start + rows_per_task, rows))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: work(start, min(start + rows_per_task, rows)), starts))
