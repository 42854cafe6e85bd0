"""Tensors as the arrays that kernels take.

The room that kernels work in is of torch's making too: it begins with a cache line, and numpy's need not.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

# What kernels work on, whatever a user has made torch's default type and device.
empty = partial(torch.empty, dtype=torch.float32, device="cpu")
zeros = partial(torch.zeros, dtype=torch.float32, device="cpu")


def by_trial(x: Tensor) -> Tensor:
    """Bring ``[nodes, trials, features]`` to ``[trials, nodes, features]``, contiguous: no copy if it is."""
    return x.detach().transpose(0, 1).contiguous()


def array(x: Tensor) -> Any:
    """Return the numbers without their history, row after row."""
    return x.detach().contiguous().numpy()
