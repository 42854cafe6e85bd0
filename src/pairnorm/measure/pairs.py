"""Node pairs, connected and random, and the distances between their representations."""

import math

import torch
from torch import Tensor

from pairnorm.errors import PairNormError
from pairnorm.measure.edges import Adjacency, check_nodes, edges
from pairnorm.measure.states import block_length, check_states, result_dtype


def connected_pairs(adjacency: Adjacency) -> Tensor:
    """Return every pair of connected nodes once, as [2, pairs] with the smaller node first.

    Direction, weight, self-loops and repeated edges do not count.

    Args:
        adjacency: a sparse or dense matrix [nodes, nodes], or an ``edge_index`` [2, edges].

    >>> connected_pairs(torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]]))
    tensor([[0, 1],
            [1, 2]])
    """
    index, _ = edges(adjacency)
    if not index.numel():
        return index
    # One integer per pair sorts many times faster than torch.unique over columns.
    span = index.max() + 1
    code = torch.unique(index.amin(0) * span + index.amax(0))
    return torch.stack([code // span, code % span])


def random_pairs(
    num_nodes: int,
    count: int,
    seed: int | torch.Generator = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return ``count`` pairs [2, count], uniform and independent over all n² ordered pairs.

    A node may meet itself, as in Eq. 2 of the paper: the expected ``apd`` is then ``row_diff`` and the
    expected ``apsd`` is ``tpsd`` / n².

    Args:
        num_nodes: the number of nodes n.
        count: how many pairs.
        seed: a seed (the same pairs on every device; the global random numbers stay untouched) or a
            generator.
        device: where the pairs go.
    """
    if count < 0 or (num_nodes < 1 and count > 0):
        raise PairNormError(
            f"cannot draw {count} pairs of {num_nodes} nodes; expected a count >= 0 and a node."
        )
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    pairs = torch.randint(max(num_nodes, 1), (2, count), generator=generator, device=generator.device)
    return pairs.to(device or pairs.device)


@torch.no_grad()
def pair_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the distance of each pair, ‖x_i − x_j‖₂, as [pairs, trials...]: what the histograms show.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        pairs: nodes [2, pairs], as ``connected_pairs`` and ``random_pairs`` give them; an ``edge_index`` will
            do.

    >>> pair_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0, 0], [0, 1]]))
    tensor([0., 5.])
    """
    return squared_distances(x, pairs).sqrt().to(result_dtype(x))


@torch.no_grad()
def apd(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the average pairwise distance, (1/|P|) Σ_{(i,j) ∈ P} ‖x_i − x_j‖₂.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        pairs: the pairs P, [2, pairs]; at least one.
    """
    return _mean(squared_distances(x, pairs).sqrt()).to(result_dtype(x))


@torch.no_grad()
def apsd(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the average pairwise squared distance, (1/|P|) Σ_{(i,j) ∈ P} ‖x_i − x_j‖₂².

    Over all n² ordered pairs this is ``tpsd(x)`` / n².

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        pairs: the pairs P, [2, pairs]; at least one.
    """
    return _mean(squared_distances(x, pairs)).to(result_dtype(x))


def squared_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖₂² for every pair, [pairs, trials...] in float64, block after block of pairs."""
    check_states(x)
    if not isinstance(pairs, Tensor) or pairs.ndim != 2 or len(pairs) != 2 or pairs.is_floating_point():
        given = list(pairs.shape) if isinstance(pairs, Tensor) else pairs
        kind = pairs.dtype if isinstance(pairs, Tensor) else type(pairs).__name__
        raise PairNormError(f"pairs is {given} of {kind}; expected an integer tensor [2, pairs].")
    check_nodes("pairs", pairs, len(x))
    size = block_length(math.prod(x.shape[1:]), x.device)
    blocks = torch.split(pairs.to(x.device).long(), size, dim=1)
    return torch.cat([(x[i].double() - x[j].double()).square().sum(-1) for i, j in blocks])


def _mean(values: Tensor) -> Tensor:
    if not len(values):
        raise PairNormError("pairs is empty: no pairs have no average distance. Does the graph have edges?")
    return values.mean(0)
