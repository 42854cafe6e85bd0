"""Activations on tiles of numbers in Triton, for the kernels that end in one."""

import triton
import triton.language as tl

CODES = {"none": 0, "relu": 1, "elu": 2}


@triton.jit
def activated(value, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply the activation of ``CODES``; NaN stays NaN."""
    if CODE == 1:
        value = tl.where(value < 0, 0.0, value)
    if CODE == 2:
        value = tl.where(value < 0, tl.exp(value) - 1, value)
    return value


@triton.jit
def gradient_of(gradient, value, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Lead a gradient back through the activation whose output is ``value``."""
    if CODE == 1:
        gradient = tl.where(value > 0, gradient, 0.0)
    if CODE == 2:
        gradient = tl.where(value > 0, gradient, gradient * (value + 1))
    return gradient
