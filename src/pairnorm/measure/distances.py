"""Distances between nodes, between columns and over edges; also how all measures take their inputs."""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, whole_number
from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops.pair_norm import check_states
from pairnorm.nn.ops.sparse_product import check_range
from pairnorm.nn.propagate import entries

Adjacency = Tensor | SparseMatrix
Laplacian = Literal["sym", "rw", "unnormalized"]
MeasureFunction = TypeVar("MeasureFunction", bound=Callable[..., Tensor])
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

    @classmethod
    def of(cls, sample: Tensor, dtype: torch.dtype) -> "Estimate":
        """Estimate the mean of a population from a sample of it, [sample, trials...]."""
        error = sample.std(0) / math.sqrt(len(sample))
        return cls(sample.mean(0).to(dtype), error.to(dtype))


def result_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a measure of ``x``: float64 for float64, float32 for everything narrower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def per_trial(measure: MeasureFunction) -> MeasureFunction:
    """Make a measure of float64 [nodes, features] one of [nodes, trials..., features], trial by trial."""

    @torch.no_grad()
    @functools.wraps(measure)
    def measure_trials(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_states(x)
        trials = x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
        values = [measure(trial.double(), *args, **kwargs) for trial in trials.unbind(1)]
        stacked = torch.stack(values) if values else x.new_zeros(0)
        return stacked.to(result_dtype(x)).view(x.shape[1:-1])

    return cast(MeasureFunction, measure_trials)


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


def edges(adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Return (receiving, sending) nodes of the edges, without self-loops, [2, edges], and their weights."""
    _, row, column, weight = entries(adjacency)
    weight = weight.detach()
    mask = (row != column) & (weight != 0)
    return torch.stack([row[mask], column[mask]]), weight[mask]


def no_graph(what: str) -> PairNormError:
    """Return an error about a measure that needs a graph, where a model's inputs have none."""
    problem, hint = f"{what} needs a graph and none was found", "Give the Probe {adjacency}."
    return PairNormError(problem, code="no-graph", value=what, hint=hint, adjacency=...)


@per_trial
def row_diff(x: Tensor) -> Tensor:
    """Return the mean distance between nodes, (1/n²) Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂ (Eq. 2): 0 if all are equal.

    The mean is over all n² ordered pairs, those with i = j included, as the paper writes it. Exact in O(n² d)
    time and in memory linear in ``x``; see ``estimate_row_diff``. Not differentiable: a measure keeps no
    autograd graph.

    >>> row_diff(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(2.5000)
    """
    return _mean_distance(x)


@torch.no_grad()
def estimate_row_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate:
    """Estimate ``row_diff`` from random pairs of nodes.

    Args:
        sample: The number of pairs, at least 2.
        seed: The seed or generator of the pairs.
    """
    check_states(x)
    return _estimate(x, sample, seed, result_dtype(x))


@per_trial
def col_diff(x: Tensor) -> Tensor:
    """Return the mean distance between normalized columns, (1/d²) Σ_{i,j ∈ [d]} ‖c_i − c_j‖₂ (Eq. 3).

    Here c_i = x_{·i} / ‖x_{·i}‖₁; a zero column stays zero. The mean is over all d² ordered pairs, those with
    i = j included. Columns that are multiples of each other count as equal, unless their signs differ: the
    paper's normalization keeps the sign. Exact in O(n d²) time and in memory linear in ``x``.

    >>> col_diff(torch.tensor([[1.0, 0.0], [0.0, 7.0]]))
    tensor(0.7071)
    """
    return _mean_distance(_unit_columns(x).T)


@torch.no_grad()
def estimate_col_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate:
    """Estimate ``col_diff`` from random pairs of columns; arguments as for ``estimate_row_diff``."""
    check_states(x)
    columns = _unit_columns(x.double()).transpose(0, -1).contiguous()
    return _estimate(columns, sample, seed, result_dtype(x))


@per_trial
def tpsd(x: Tensor) -> Tensor:
    """Return the total pairwise squared distance, Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂² = 2n ‖X^c‖²_F (Eqs. 8, 9).

    The sum is over all n² ordered pairs; X^c has its column means subtracted. Linear time.

    >>> tpsd(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(50.)
    """
    return 2 * len(x) * centered(x).square().sum()


def _mean_distance(rows: Tensor) -> Tensor:
    """Return the mean distance over all ordered pairs of the float64 ``rows``, a strip of rows at a time."""
    # |a|² + |b|² − 2ab is off by up to √u (|a| + |b|) per pair, u the unit roundoff. About the mean, Σ_j ‖a_i
    # − a_j‖ ≥ n ‖a_i‖: the mean distance is off by a few √u, 1e-8 in float64 (1e-3 in float32, in clusters).
    rows = centered(rows)
    lengths = rows.square().sum(1)
    total = rows.new_zeros(())
    step = block_length(len(rows), rows.device)
    for start in range(0, len(rows), step):
        strip, others = slice(start, start + step), slice(start, None)
        squared = torch.addmm(lengths[others], rows[strip], rows[others].T, alpha=-2)
        distances = squared.add_(lengths[strip, None]).clamp_(min=0).sqrt_()
        # By symmetry a strip meets only itself and later rows; pairs with the latter count twice.
        total += 2 * distances.sum() - distances[:, :step].sum()
    return total / max(1, len(rows) ** 2)


def _unit_columns(x: Tensor) -> Tensor:
    length = x.abs().sum(0)
    return x / length.where(length > 0, 1)


def _estimate(rows: Tensor, sample: int, seed: int | torch.Generator, dtype: torch.dtype) -> Estimate:
    whole_number("sample", sample, least=2)
    if not rows.numel():
        zeros = rows.new_zeros(rows.shape[1:-1], dtype=dtype)
        return Estimate(zeros, zeros)
    return Estimate.of(squared_distances(rows, random_pairs(len(rows), sample, seed)).sqrt(), dtype)


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
    num_nodes: int, count: int, seed: int | torch.Generator = 0, device: torch.device | str | None = None
) -> Tensor:
    """Draw ``count`` random pairs of nodes, [2, count], uniformly from all n² ordered pairs.

    A node may meet itself, as in Eq. 2 of the paper: the expected ``apd`` is then ``row_diff`` and the
    expected ``apsd`` is ``tpsd`` / n².

    Args:
        num_nodes: the number of nodes n.
        count: how many pairs.
        seed: a seed (the same pairs on every device; the global random numbers stay untouched) or a
            generator.
        device: where the pairs go.
    """
    whole_number("count", count)
    whole_number("num_nodes", num_nodes, least=min(1, count))
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    pairs = torch.randint(max(num_nodes, 1), (2, count), generator=generator, device=generator.device)
    return pairs.to(device or pairs.device)


@torch.no_grad()
def pair_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the distance of each pair, ‖x_i − x_j‖₂, as [pairs, trials...]: what the histograms show.

    Args:
        pairs: nodes [2, pairs], as ``connected_pairs`` and ``random_pairs`` give them; an ``edge_index`` will
            do.

    >>> pair_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0, 0], [0, 1]]))
    tensor([0., 5.])
    """
    return squared_distances(x, pairs).sqrt().to(result_dtype(x))


@torch.no_grad()
def apd(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the average distance of the pairs P, (1/|P|) Σ_{(i,j) ∈ P} ‖x_i − x_j‖₂; P is [2, pairs]."""
    return _mean_of_pairs(squared_distances(x, pairs).sqrt()).to(result_dtype(x))


@torch.no_grad()
def apsd(x: Tensor, pairs: Tensor) -> Tensor:
    """Return the average squared distance of the pairs P, (1/|P|) Σ_{(i,j) ∈ P} ‖x_i − x_j‖₂²; see ``apd``.

    Over all n² ordered pairs this is ``tpsd(x)`` / n².
    """
    return _mean_of_pairs(squared_distances(x, pairs)).to(result_dtype(x))


def squared_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖₂² for every pair, [pairs, trials...] in float64, block after block of pairs."""
    check_states(x)
    is_tensor = isinstance(pairs, Tensor)
    if not is_tensor or pairs.ndim != 2 or len(pairs) != 2 or pairs.is_floating_point():
        shape = list(pairs.shape) if is_tensor else pairs
        problem = f"pairs is {shape} of {pairs.dtype if is_tensor else type(pairs).__name__}"
        raise PairNormError(problem, code="wrong-shape", value=shape, expected="an integer tensor [2, pairs]")
    check_range("pairs", pairs, len(x), "nodes")
    size = block_length(math.prod(x.shape[1:]), x.device)
    blocks = torch.split(pairs.to(x.device).long(), size, dim=1)
    return torch.cat([(x[i].double() - x[j].double()).square().sum(-1) for i, j in blocks])


def _mean_of_pairs(values: Tensor) -> Tensor:
    if not len(values):
        problem, hint = "pairs is empty: no pairs have no average distance", "Does the graph have edges?"
        raise PairNormError(problem, code="no-pairs", expected="at least one pair", hint=hint)
    return values.mean(0)


@torch.no_grad()
def dirichlet_energy(
    x: Tensor, adjacency: Adjacency, laplacian: Laplacian = "sym", relative: bool = False
) -> Tensor:
    """Return the Dirichlet energy, how much X changes along the edges: a scalar, or one value per trial.

    - ``"sym"``: ½ Σ_{i,j} a_ij ‖x_i/√d̃_i − x_j/√d̃_j‖² (Cai & Wang 2020, "A Note on Over-Smoothing for Graph
      Neural Networks"), with d̃_i = d_i + 1. Zero where nodes differ by the square root of their degree.
    - ``"rw"``: ½ Σ_{i,j} (a_ij / d̃_i) ‖x_i − x_j‖². Zero only where all nodes of a component are equal.
    - ``"unnormalized"``: ½ Σ_{i,j} a_ij ‖x_i − x_j‖². Zero only where all nodes of a component are equal. The
      measure of Rusch et al. (2023, "A Survey on Oversmoothing in Graph Neural Networks") is √(2/n) times its
      root.

    All grow with the square of the scale of ``x``, and are sums, not divided by the number of nodes. A
    directed graph counts as (A + Aᵀ)/2, and self-loops of ``adjacency`` are dropped.

    Args:
        adjacency: a sparse or dense matrix [nodes, nodes], weights >= 0, or an ``edge_index`` [2, edges] that
            holds both directions of every edge.
        laplacian: ``"sym"``, ``"rw"`` or ``"unnormalized"``.
        relative: divide by ‖X‖_F², which takes the scale out; 0 for a zero matrix.

    >>> edge_index = torch.tensor([[0, 1], [1, 0]])
    >>> dirichlet_energy(torch.tensor([[0.0], [2.0]]), edge_index, laplacian="unnormalized")
    tensor(4.)
    """
    one_of("laplacian", laplacian, get_args(Laplacian))
    pairs, weight = _edges_of(x, adjacency)
    if weight.numel() and float(weight.min()) < 0:
        worst = float(weight.min())
        problem = f"adjacency holds the weight {worst:g}"
        raise PairNormError(problem, code="out-of-range", value=worst, expected="weights >= 0")
    states = x.double()
    # Half of either direction: the degree itself in a symmetric graph.
    degree = weight.new_ones(len(x)).index_add_(0, pairs.flatten(), weight.repeat(2) / 2)
    if laplacian == "sym":
        states = states / degree.sqrt().view(-1, *[1] * (x.ndim - 1))
    elif laplacian == "rw":
        weight = weight * (1 / degree)[pairs].mean(0)
    energy: Tensor = torch.tensordot(weight, squared_distances(states, pairs), dims=1) / 2
    if relative:
        squares = x.double().square().sum((0, -1))
        energy = energy / squares.where(squares > 0, 1)
    return energy.to(result_dtype(x))


@torch.no_grad()
def mean_average_distance(x: Tensor, adjacency: Adjacency | None = None) -> Tensor:
    """Return the mean average cosine distance (MAD): 0 if all nodes point the same way, at most 2.

    The mean of 1 − cos(x_i, x_j) over all pairs i ≠ j, in linear time; with ``adjacency`` over neighbors,
    then over the nodes that have any.

    As Chen et al. (2020, "Measuring and Relieving the Over-smoothing Problem for Graph Neural Networks from
    the Topological View"), except that pairs at distance zero count, so that collapsed nodes lower it. A zero
    row is at 0 from another zero row and at 1/2 from any other row.

    Args:
        adjacency: a sparse or dense matrix [nodes, nodes] or an ``edge_index`` [2, edges]; the neighbors of
            a node are the non-zeros in its row.

    >>> mean_average_distance(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor(1.)
    """
    if adjacency is None:
        return _mean_cosine_distance(x)
    pairs, _ = _edges_of(x, adjacency)
    if not pairs.shape[1]:
        raise PairNormError("adjacency has no edges", code="no-pairs", expected="some to average over")
    neighbors = torch.bincount(pairs[0], minlength=len(x))
    weight = 1 / (neighbors[pairs[0]].double() * (neighbors > 0).sum())
    mean: Tensor = torch.tensordot(weight, squared_distances(unit_rows(x.double()), pairs) / 2, dims=1)
    return mean.to(result_dtype(x))


@per_trial
def _mean_cosine_distance(x: Tensor) -> Tensor:
    """Return TPSD(unit rows) / 2 over the n (n − 1) pairs, from Eq. 9 of the paper."""
    return centered(unit_rows(x)).square().sum() / max(1, len(x) - 1)


def _edges_of(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    check_states(x)
    pairs, weight = edges(adjacency)
    check_range("adjacency", pairs, len(x), "nodes")
    return pairs.to(x.device), weight.to(x.device, torch.float64)
