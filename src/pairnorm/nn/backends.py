"""Which compiled kernels serve a tensor: Triton's on CUDA, numba's on a CPU, or none and plain torch does."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torch import Tensor


def kernels(operation: str, x: Tensor) -> ModuleType | None:
    """Return the module of ``nn.cuda`` or ``nn.cpu`` that does ``operation`` on ``x``, or None.

    Every operation has a plain torch form that defines it; the kernels do the same in fewer passes.
    """
    module = _module(x.device.type, operation) if x.numel() else None
    return module if module is not None and x.dtype in module.DTYPES else None


@cache
def _module(device: str, operation: str) -> ModuleType | None:
    needs = {"cuda": "triton", "cpu": "numba"}.get(device)
    if needs is None or find_spec(needs) is None:
        return None
    name = f"pairnorm.nn.{device}.{operation}"
    return import_module(name) if find_spec(name) else None
