"""Attention over a sparsity pattern."""
