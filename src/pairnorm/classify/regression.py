"""Logistic regression solved to the end: all that an SGC learns, and the baseline that sees no graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

MEMORY = 10
SLOPE, GAIN = 1e-6, 1e-10
SUFFICIENT = 1e-4


def minimise(function: Callable[[Tensor], tuple[float, Tensor]], start: Tensor, steps: int = 200) -> Tensor:
    """Return where a convex function is least.

    Every step goes along the slope times an inverse Hessian that is estimated from the last ten steps, and is
    halved until the function falls enough (Nocedal & Wright, 2006, algorithm 7.4).

    Args:
        function: gives value and gradient at a point.
        start: a point, float64, of one dimension.
        steps: at most so many.
    """
    point = start
    value, slope = function(point)
    past: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=MEMORY)
    for _ in range(steps):
        if float(slope.abs().max()) < SLOPE:
            break
        direction = -_inverse_hessian(slope, past)
        descent = float(direction @ slope)
        length = 1.0 if past else min(1.0, 1 / float(slope.norm()))
        new, new_value, new_slope = point, value, slope
        while length > 1e-10:
            new = point + length * direction
            new_value, new_slope = function(new)
            if new_value <= value + SUFFICIENT * length * descent:
                break
            length /= 2
        else:  # rounding hides what is left to gain
            break
        moved, turned = new - point, new_slope - slope
        curvature = float(moved @ turned)
        if curvature > 1e-12 * float(turned @ turned):
            past.append((moved, turned, 1 / curvature))
        gained = value - new_value
        point, value, slope = new, new_value, new_slope
        if gained < GAIN * max(1.0, abs(value)):
            break
    return point


def _inverse_hessian(slope: Tensor, past: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """Multiply the slope by the estimated inverse Hessian, without forming it."""
    result, weights = slope.clone(), []
    for moved, turned, inverse in reversed(past):
        weight = inverse * float(moved @ result)
        result -= weight * turned
        weights.append(weight)
    if past:
        moved, turned, inverse = past[-1]
        result *= 1 / (inverse * float(turned @ turned))
    for (moved, turned, inverse), weight in zip(past, reversed(weights), strict=True):
        result += (weight - inverse * float(turned @ result)) * moved
    return result


# Below this many numbers, waking a second thread takes longer than the work it would share.
WORTH_A_THREAD = 2**20


def regressions(
    rows: Tensor, labels: Tensor, classes: int, scales: Sequence[float]
) -> Iterator[tuple[float, Tensor, Tensor]]:
    r"""Yield (s, W, b) for every scale s, from small to large: the logistic regression on rows s·x.

    $$
    \min_{\mathbf{W}, \mathbf{b}} \; \text{mean cross-entropy}(s \mathbf{X} \mathbf{W} + \mathbf{b})
    + \tfrac{1}{2} \|\mathbf{W}\|_F^2
    $$

    The problem is convex: there is one answer, whatever the seed. The scale is the strength of regularisation
    (in V = sW the penalty is ‖V‖² / 2s²), so each scale starts from the answer of the one before.

    Args:
        rows: float [m, d], the training nodes.
        labels: int64 [m].
        classes: how many there are.
        scales: PairNorm's s, each above 0.
    """
    basis, rows = _reduced(rows.double())
    # The solver stops at a small slope: it is given rows of length one on average, whatever their unit.
    unit = max(float(rows.square().sum(1).mean().sqrt()), 1e-30)
    rows = rows / unit
    target = torch.nn.functional.one_hot(labels, classes).double()
    point = rows.new_zeros((rows.shape[1] + 1) * classes)
    for scale in sorted(scales):
        strength = 1 / (scale * unit) ** 2

        def loss(point: Tensor, strength: float = strength) -> tuple[float, Tensor]:
            weight, bias = _unpack(point, classes)
            logarithms = torch.addmm(bias, rows, weight).log_softmax(1)
            slope = (logarithms.exp() - target) / len(rows)
            value = -(target * logarithms).sum() / len(rows) + strength / 2 * weight.square().sum()
            gradient = torch.cat([rows.T @ slope + strength * weight, slope.sum(0, keepdim=True)])
            return float(value), gradient.flatten()

        with _threads(rows.numel()):
            point = minimise(loss, point)
        weight, bias = _unpack(point, classes)
        yield scale, (weight if basis is None else basis @ weight).float() / (scale * unit), bias.float()


@contextmanager
def _threads(size: int) -> Iterator[None]:
    """Keep small work on one thread."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if size < WORTH_A_THREAD else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _unpack(point: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    matrix = point.view(-1, classes)
    return matrix[:-1], matrix[-1]


def _reduced(rows: Tensor) -> tuple[Tensor | None, Tensor]:
    """Turn the rows into as few coordinates as they span; the best weights lie in their span as well."""
    if rows.shape[0] >= rows.shape[1]:
        return None, rows
    basis, triangle = torch.linalg.qr(rows.T)
    return basis, triangle.T.contiguous()


def span(features: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return an orthonormal basis Q [d, r] of the rows of X that are not zero, and X Q [n, r].

    Lengths and distances of rows stay as they are under Q, so that propagation, PairNorm and regression
    may work in r columns instead of d: 140 instead of 1,433 where all but 140 papers lost their words.

    Args:
        features: dense [n, d]. Where most rows are not zero, it is returned as it is, without a basis.
    """
    filled = features.any(1)
    if int(filled.sum()) > features.shape[1] // 2:
        return None, features
    basis, triangle = torch.linalg.qr(features[filled].double().T)
    reduced = features.new_zeros(features.shape[0], basis.shape[1])
    reduced[filled] = triangle.T.float()
    return basis.float(), reduced
