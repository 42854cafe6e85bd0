"""Dropout and the linear map of many models at once, each with a weight and a mask of its own."""

from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels


def stacked_linear(x: Tensor, weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every model: ``[nodes, models or 1, in]`` by ``[models, in, out]``."""
    x = x.expand(-1, weight.size(0), -1)
    kernels = find_kernels("linear", x, weight)
    if kernels is not None:
        return _run(kernels, x, weight, None, rate, keys)[0]
    return _reference(x, weight, None, rate, keys)[0]


def stacked_linear_with_scores(
    x: Tensor, weight: Tensor, att_vectors: Tensor, rate: float = 0.0, keys: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return z = dropout(x)·W and the scores z·E of attention; E is ``[models, out, scores]``."""
    kernels = find_kernels("linear", x, weight, att_vectors)
    if kernels is not None:
        return _run(kernels, x.expand(-1, weight.size(0), -1), weight, att_vectors, rate, keys)
    z = stacked_linear(x, weight, rate, keys)
    return z, stacked_linear(z.to(torch.promote_types(z.dtype, att_vectors.dtype)), att_vectors)


def _run(
    kernels: Any, x: Tensor, weight: Tensor, att_vectors: Tensor | None, rate: float, keys: Tensor | None
) -> Any:
    functions = (kernels.forward, kernels.backward, _reference)
    return KernelFunction.apply(*functions, (rate, keys), x, weight, att_vectors)


def _reference(
    x: Tensor, weight: Tensor, att_vectors: Tensor | None, rate: float, keys: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    wide = x.to(torch.promote_types(x.dtype, weight.dtype))
    wide = wide if keys is None else dropout(wide, rate, keys)
    z = torch.einsum("nti,tio->nto", wide, weight.to(wide.dtype))
    return z.to(x.dtype), None if att_vectors is None else torch.einsum("nto,toe->nte", z, att_vectors)
