"""Create CSR tensors without the warnings and the checks of torch."""

import warnings
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor


def sparse_csr(crow: Tensor, column: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a ``torch.sparse_csr`` matrix of components that the caller has validated.

    Args:
        crow: the index of the first entry of each row, and the number of entries.
        column: the column of each entry.
        values: the value of each entry.
        shape: the number of rows and of columns.
    """
    suppress_csr_warning()
    return torch.sparse_csr_tensor(crow, column, values, tuple(shape), check_invariants=False)


def csr_components(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return row starts, columns and values of a CSR tensor, or a dense tensor alone."""
    if matrix.layout != torch.sparse_csr:
        return (matrix,)
    return matrix.crow_indices(), matrix.col_indices(), matrix.values()


@cache
def suppress_csr_warning() -> None:
    """Create a first CSR tensor, since torch warns once per process that these are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), (1, 1)).coalesce().to_sparse_csr()
