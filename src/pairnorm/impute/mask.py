"""The missing-indicator method, GNNmim (Ferrini et al., 2026): a model is told what is missing."""

import torch
from torch import Tensor

from pairnorm.impute.constant import zero
from pairnorm.impute.known import Fill, mask_of
from pairnorm.nn import SparseMatrix


def mask(matrix: SparseMatrix, features: Tensor, known: Tensor, *, fill: Fill = zero) -> Tensor:
    r"""Put columns that are one where something is missing beside the filled features.

    $$[\hat{\mathbf{X}}, 1 - \mathbf{M}]$$

    The result is [n, 2 d] for single entries. For whole vectors, whose d indicators would be equal, it is
    [n, d + 1].

    Args:
        matrix: passed on to ``fill``.
        features: [n, d], dense or ``torch.sparse_csr``.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
        fill: what makes the values; ``zero`` as published.
    """
    missing = ~mask_of(features, known)
    return torch.cat([fill(matrix, features, known), missing.to(features.dtype)], -1)
