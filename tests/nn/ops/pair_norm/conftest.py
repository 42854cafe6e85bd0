"""What the kernels of PairNorm are held against: the formula, in double precision."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.ops.pair_norm.plain import _formula, formula_gradient


@pytest.fixture(scope="session")
def in_double() -> Callable:
    """Output, norms and gradient of the input."""

    def formula(x: Tensor, grad: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, ...]:
        groups = Groups(len(x))
        y, norm = _formula(x.double(), groups, scale, eps, individually)
        return y, norm, formula_gradient(grad.double(), None, y, norm, groups, scale, individually)

    return formula


@pytest.fixture(scope="session")
def check(in_double: Callable) -> Callable:
    """Hold both passes of kernels on the CPU against the formula, on random tensors of a shape."""

    def passes(kernels: ModuleType, shape: tuple[int, ...], individually: bool, contiguous: bool) -> None:
        x, grad = torch.randn(shape) + 3, torch.randn(shape)
        if not contiguous:
            x, grad = (tensor.mT.contiguous().mT for tensor in (x, grad))
        y, norm = kernels.forward(x, 2.0, 1e-6, individually)
        expected = in_double(x, grad, 2.0, 1e-6, individually)
        torch.testing.assert_close(y.double(), expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(norm.double(), expected[1], rtol=1e-5, atol=1e-6)
        found = kernels.backward(grad, y, norm, 2.0, individually)
        if len(x) > 1:  # of one row all is centerd away, and rounding divided by the root of eps is left
            torch.testing.assert_close(found.double(), expected[2], rtol=1e-4, atol=1e-5)

    return passes
