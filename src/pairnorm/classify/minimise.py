"""L-BFGS for small, smooth, convex problems, on one thread.

scipy's wakes the threads of its linear algebra library for vectors of a thousand numbers and spends fifteen
times as long; torch's keeps no state between problems but costs a millisecond a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

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
