"""Inputs of measures: states, checked and taken trial by trial, and graphs in any form."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops.moments import check_states
from pairnorm.nn.propagate import entries

# The most that one temporary may take on a CPU: a larger one leaves its cache. A GPU takes eight times that,
# so that it does not wait for launches.
BLOCK_BYTES = 2**24


class Estimate(NamedTuple):
    """A measure estimated from a random sample.

    Args:
        value: the estimate: a scalar, or one for each trial.
        standard_error: of the value, in the same shape.
    """

    value: Tensor
    standard_error: Tensor


def result_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a measure of ``x``: float64 for float64, float32 for everything narrower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def over_trials(x: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``measure`` of every trial's [nodes, features] in float64: a scalar, or one value per trial.

    One trial after another keeps the memory that of one trial. Float64 because a sum over n² pairs would lose
    the small distances of an oversmoothed state in float32, and because squares of float32 cannot leave its
    range.
    """
    check_states(x)
    trials = x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
    values = [measure(trial.double()) for trial in trials.unbind(1)]
    stacked = torch.stack(values) if values else x.new_zeros(0)
    return stacked.to(result_dtype(x)).view(x.shape[1:-1])


def centered(rows: Tensor) -> Tensor:
    """Return ``rows`` minus their mean; rows that are all equal become exactly zero."""
    # The first row goes first: a common offset then never meets the rounding of the mean.
    shifted = rows - rows[:1]
    return shifted - shifted.mean(0) if len(rows) else rows


def unit_rows(x: Tensor) -> Tensor:
    """Return ``x`` with every row divided by its norm; a zero row stays zero."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.where(norm > 0, 1)


def block_length(values_per_item: int, device: torch.device) -> int:
    """Return how many items fit into one block on ``device``, given their number of float64 values."""
    block_bytes = BLOCK_BYTES if device.type == "cpu" else 8 * BLOCK_BYTES
    return max(1, block_bytes // (8 * max(1, values_per_item)))


Adjacency = Tensor | SparseMatrix


def edges(adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Return the edges [2, edges] of a graph, without self-loops, and their weights [edges].

    The first row holds the nodes that receive, the second those they receive from, as in a matrix.

    Args:
        adjacency: a floating-point matrix [nodes, nodes], sparse or dense, whose non-zeros are edges, or an
            integer ``edge_index`` [2, edges], whose edges weigh 1.
    """
    _, row, column, weight = entries(adjacency)
    weight = weight.detach()
    mask = (row != column) & (weight != 0)
    return torch.stack([row[mask], column[mask]]), weight[mask]


def is_sparse_adjacency(value: object) -> bool:
    """Return whether ``value`` is a sparse matrix [nodes, nodes], the same for all trials."""
    if isinstance(value, SparseMatrix):
        return value.pattern.shape[0] == value.pattern.shape[1] and value.values.ndim == 1
    if not isinstance(value, Tensor) or value.layout == torch.strided:
        return False
    return value.ndim == 2 and value.shape[0] == value.shape[1] and value.is_floating_point()


def check_nodes(what: str, index: Tensor, num_nodes: int) -> None:
    """Raise an error if ``index`` names a node outside 0 .. ``num_nodes`` - 1."""
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
        expected = f"nodes from 0 to {num_nodes - 1}"
        raise PairNormError(f"{what} holds the node {bad}", code="out-of-range", value=bad, expected=expected)
