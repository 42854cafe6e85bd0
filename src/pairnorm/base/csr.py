"""CSR tensors of torch, made in one place: unchecked, since the checks are ours, and without its warnings."""

import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def sparse_csr(crow: Tensor, column: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the ``torch.sparse_csr`` matrix of its pieces, which must be sound.

    Args:
        crow: where the entries of every row begin.
        column: of every entry.
        values: of every entry.
        shape: rows and columns.
    """
    suppress_csr_warning()
    return torch.sparse_csr_tensor(crow, column, values, tuple(shape), check_invariants=False)


def csr_components(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return row starts, columns and values of a CSR tensor; of a dense one, itself alone."""
    if matrix.layout != torch.sparse_csr:
        return (matrix,)
    return matrix.crow_indices(), matrix.col_indices(), matrix.values()


@cache
def suppress_csr_warning() -> None:
    """Make a first CSR tensor: torch says once in a process that they are in beta and go unchecked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), (1, 1)).coalesce().to_sparse_csr()
