"""Compare one way of computing PairNorm with the formula in float64, over extreme inputs."""

from collections.abc import Callable

import torch
from torch import Tensor

EXTREMES: dict[str, Callable[[], Tensor]] = {
    "ordinary": lambda: torch.randn(70, 2, 9) + 1,
    "two dimensions": lambda: torch.randn(33, 17),
    "four dimensions": lambda: torch.randn(5, 2, 2, 8),
    "huge": lambda: 1e25 * torch.randn(70, 2, 9),
    "huge bfloat16": lambda: (1e25 * torch.randn(70, 2, 9)).bfloat16(),
    "largest": lambda: 3.3e38 * torch.randn(70, 2, 9).clamp(-1, 1),
    "one huge model": lambda: torch.tensor([[1e19], [1.0]]) * torch.randn(70, 2, 9),
    "one huge row": lambda: torch.cat([torch.full((1, 9), 1e38), torch.randn(69, 9)]),
    "tiny": lambda: 1e-25 * torch.randn(70, 9),
    "large offset": lambda: 1e5 + torch.randn(300, 9),
    "large offset, zero row": lambda: torch.cat([torch.zeros(1, 9), 1e4 + torch.randn(299, 9)]),
    "large offset, sorted": lambda: (1e4 + torch.randn(700, 32)).sort(0).values,
    "oversmoothed": lambda: 100 + 1e-3 * torch.randn(300, 9),
    "one long row": lambda: torch.cat([torch.full((1, 9), 1e4), torch.randn(299, 9)]),
    "one node": lambda: torch.randn(1, 2, 4),
    "no nodes": lambda: torch.randn(0, 2, 4),
    "constant rows": lambda: torch.full((9, 5), 7.0),
    "zeros": lambda: torch.zeros(6, 3),
    "float16": lambda: (torch.randn(100, 2, 24) * 300).half(),
    "bfloat16": lambda: (torch.randn(100, 2, 24) * 300).bfloat16(),
    "float16, parallel rows": lambda: (torch.full((40, 8), 3.0) * torch.arange(1, 41).view(40, 1)).half(),
    "strided": lambda: torch.randn(9, 2, 40).transpose(0, 2),
}


def formula(x: Tensor, scale: float, mode: str, eps: float = 1e-6) -> Tensor:
    """PairNorm of one graph, as the docstring of ``pair_norm`` has it, in float64."""
    x = x.double()
    mean = x.mean(0) if len(x) else torch.zeros(x.shape[1:], dtype=x.dtype)
    centered = x - mean
    if mode == "PN-SCS":
        return scale * x / (x.square().sum(-1, keepdim=True) + eps).sqrt() - mean
    square = centered.square().sum(-1, keepdim=True)
    if mode == "PN":
        square = square.mean(0) if len(x) else square.sum(0)
    return scale * centered / (square + eps).sqrt()


def check(
    function: Callable[[Tensor, float, str], Tensor], x: Tensor, mode: str, gradient: bool = True
) -> None:
    """Hold output and gradient of a way to compute PairNorm against the formula."""
    scale, x = 2.0, x.detach()
    wide, given = x.double().requires_grad_(), x.clone().requires_grad_()
    expected, actual = formula(wide, scale, mode), function(given, scale, mode)
    assert actual.dtype == x.dtype
    assert actual.shape == x.shape
    precision = 16 * torch.finfo(x.dtype).eps
    close(actual, expected, precision, scale if mode == "PN-SCS" else 0.0)  # a difference of such numbers
    if gradient and x.numel() and len(x) > 1:
        upstream = torch.randn(x.shape, device=x.device).to(x.dtype)
        (expected,) = torch.autograd.grad(expected, wide, upstream.double())
        (actual,) = torch.autograd.grad(actual, given, upstream)
        close(actual, expected, 4 * precision)


def close(actual: Tensor, expected: Tensor, precision: float, least: float = 0.0) -> None:
    """Compare relative to the largest number of a model, ``least`` or more, with room for zeros."""
    if expected.numel() == 0:
        return
    largest = expected.detach().abs().amax((0, -1), keepdim=True).clamp(min=least)
    assert bool(actual.isfinite().all())
    assert bool(((actual - expected).abs() <= (precision * largest).clamp(min=1e-30)).all())
