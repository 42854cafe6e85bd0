"""Smoothness along the edges: the Dirichlet energy and the mean average distance."""

import torch
from torch import Tensor

from pairnorm.errors import PairNormError, one_of
from pairnorm.measure.edges import Adjacency, check_nodes, edges
from pairnorm.measure.pairs import squared_distances
from pairnorm.measure.states import centred, check_states, over_trials, result_dtype


@torch.no_grad()
def dirichlet_energy(x: Tensor, adjacency: Adjacency, laplacian: str = "sym") -> Tensor:
    """Return the Dirichlet energy tr(Xᵀ L X), summed over the edges: a scalar, or one value per trial.

    - ``"sym"``: L = I − D̃^(−1/2) Ã D̃^(−1/2) with self-loops, ½ Σ_{i,j} a_ij ‖x_i/√d̃_i − x_j/√d̃_j‖² (Cai &
      Wang 2020, "A Note on Over-Smoothing for Graph Neural Networks"). It is zero at the stationary point of
      the GCN, where nodes still differ by the square root of their degree.
    - ``"combinatorial"``: L = D − A, ½ Σ_{i,j} a_ij ‖x_i − x_j‖². It is zero only where all nodes of a
      component are equal, the stationary point of D̃⁻¹Ã. The energy of Rusch, Bronstein & Mishra (2023, "A
      Survey on Oversmoothing in Graph Neural Networks") is 2/n times this one, and their measure the square
      root of that.

    Neither is divided by the number of nodes or edges, and both grow with the square of the scale of ``x``. A
    directed graph counts as (A + Aᵀ)/2, and self-loops of ``adjacency`` are dropped.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        adjacency: a sparse or dense matrix [nodes, nodes], weights >= 0, or an ``edge_index`` [2, edges] that
            holds both directions of every edge.
        laplacian: ``"sym"`` or ``"combinatorial"``.

    >>> edge_index = torch.tensor([[0, 1], [1, 0]])
    >>> dirichlet_energy(torch.tensor([[0.0], [2.0]]), edge_index, laplacian="combinatorial")
    tensor(4.)
    """
    one_of("laplacian", laplacian, ["sym", "combinatorial"])
    pairs, weight = _edges_of(x, adjacency)
    if weight.numel() and float(weight.min()) < 0:
        raise PairNormError(f"adjacency holds the weight {float(weight.min()):g}; expected weights >= 0.")
    states = x.double()
    if laplacian == "sym":
        # Half of either direction: the degree itself in a symmetric graph.
        degree = weight.new_ones(len(x)).index_add_(0, pairs.flatten(), weight.repeat(2) / 2)
        states = states / degree.sqrt().view(-1, *[1] * (x.ndim - 1))
    energy: Tensor = torch.tensordot(weight, squared_distances(states, pairs), dims=1) / 2
    return energy.to(result_dtype(x))


@torch.no_grad()
def mean_average_distance(x: Tensor, adjacency: Adjacency | None = None) -> Tensor:
    """Return the mean average cosine distance (MAD): 0 if all nodes point the same way, at most 2.

    The cosine distance is half the squared distance of the unit rows, ½ ‖x_i/‖x_i‖ − x_j/‖x_j‖‖² = 1 −
    cos(x_i, x_j).

    - Without ``adjacency``: the mean over all pairs i ≠ j, in linear time.
    - With it: the mean over neighbours, then over the nodes that have any.

    This is the MAD of Chen et al. (2020, "Measuring and Relieving the Over-smoothing Problem for Graph Neural
    Networks from the Topological View") with two conventions of its own. They leave pairs at distance zero
    out of the average; here these count, so that collapsed nodes lower it. A zero row has no direction: it
    stays zero, at 0 from another zero row and at 1/2 from any other row. Rusch, Bronstein & Mishra (2023)
    *sum* over neighbours instead.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        adjacency: a sparse or dense matrix [nodes, nodes] or an ``edge_index`` [2, edges]; the neighbours of
            a node are the non-zeros in its row.

    >>> mean_average_distance(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor(1.)
    """
    if adjacency is None:
        return over_trials(x, _mean_cosine_distance)
    pairs, _ = _edges_of(x, adjacency)
    if not pairs.shape[1]:
        raise PairNormError(
            "adjacency has no edges: without neighbours there is no average distance to them."
        )
    neighbours = torch.bincount(pairs[0], minlength=len(x))
    weight = 1 / (neighbours[pairs[0]].double() * (neighbours > 0).sum())
    mean: Tensor = torch.tensordot(weight, squared_distances(_unit_rows(x.double()), pairs) / 2, dims=1)
    return mean.to(result_dtype(x))


def _mean_cosine_distance(rows: Tensor) -> Tensor:
    """Return TPSD(unit rows) / 2 over the n (n − 1) pairs, from Eq. 9 of the paper."""
    return centred(_unit_rows(rows)).square().sum() / max(1, len(rows) - 1)


def _unit_rows(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.where(length > 0, 1)


def _edges_of(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    check_states(x)
    pairs, weight = edges(adjacency)
    check_nodes("adjacency", pairs, len(x))
    return pairs.to(x.device), weight.to(x.device, torch.float64)
