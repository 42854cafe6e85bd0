"""Sparse matrices, one or one per model: the public home of ``SparseMatrix``."""

from pairnorm.nn.ops.sparse_matrix import SparseMatrix

__all__ = ["SparseMatrix"]
