"""Fills that do not look at the graph: a number for each column."""

import torch
from torch import Tensor

from pairnorm.impute.known import divided, mask_of, observed
from pairnorm.nn import SparseMatrix


def zero(matrix: SparseMatrix, features: Tensor, known: Tensor) -> Tensor:
    """Put zero in place of what is missing, as the paper does.

    Args:
        matrix: not looked at.
        features: [n, d], dense or ``torch.sparse_csr``.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
    """
    return observed(features, mask_of(features, known))


def mean(matrix: SparseMatrix, features: Tensor, known: Tensor) -> Tensor:
    r"""Put the mean of what is known of a column in place of what is missing; zero where nothing is known.

    $$\hat{x}_{ij} = \textstyle\sum_k m_{kj} x_{kj} \,/\, \sum_k m_{kj}$$

    Args:
        matrix: not looked at.
        features: [n, d], dense or ``torch.sparse_csr``.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
    """
    mask = mask_of(features, known)
    values = observed(features, mask)
    return torch.where(mask, values, divided(values.sum(0), mask.sum(0).to(values.dtype)))
