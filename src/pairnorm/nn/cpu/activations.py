"""Activations and their slopes on vectors of registers, with an exponential that is one too."""

from typing import Any

import numpy as np
from numba import njit

from pairnorm.nn.cpu.simd import bits, fill, where_less

CODES = {"none": 0, "relu": 1, "elu": 2}

LEAST = np.float32(-87.0)  # below it, exp is no normal number any more
LOG2_E = np.float32(1 / np.log(2))
# ln 2 in two parts, the first with so few digits that a multiple of it is exact.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(np.log(2) - 0.693359375)
# Added to a number it leaves no place for a fraction, and the last bits are those of the exponent.
ROUND = np.float32(1.5 * 2**23 + 127)
ZERO, ONE = np.float32(0), np.float32(1)
SERIES = tuple(np.float32(c) for c in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2))


@njit(inline="always")
def exp_parts(x: Any) -> Any:
    """Return p, a power of two, and q with exp(x) = p (1 + q), for x up to 88."""
    x = where_less(x, fill(LEAST), fill(LEAST), x)
    shifted = x * LOG2_E + ROUND
    exponent = shifted - ROUND
    power = bits(bits(shifted) << np.uint32(23))
    r = x - exponent * LN2_HIGH - exponent * LN2_LOW
    series = r * SERIES[0] + SERIES[1]
    series = series * r + SERIES[2]
    series = series * r + SERIES[3]
    series = series * r + SERIES[4]
    series = series * r + SERIES[5]
    return power, series * r * r + r


@njit(inline="always")
def exp(x: Any) -> Any:
    """Return e to the power of every lane, for lanes up to 88."""
    power, rest = exp_parts(x)
    return power * rest + power


@njit(inline="always")
def activated(x: Any, code: int) -> Any:
    """Return the activation of every lane."""
    if code == 1:
        x = where_less(x, fill(ZERO), fill(ZERO), x)  # NaN stays NaN
    elif code == 2:
        power, rest = exp_parts(x)
        x = where_less(x, fill(ZERO), power * rest + (power - ONE), x)
    return x


@njit(inline="always")
def through(grad: Any, y: Any, code: int) -> Any:
    """Return the gradient of what the activation was given, from that of what it gave, ``y``."""
    if code == 1:
        grad = where_less(fill(ZERO), y, grad, fill(ZERO))
    elif code == 2:
        grad = where_less(fill(ZERO), y, grad, grad * (y + ONE))
    return grad
