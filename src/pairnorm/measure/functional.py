"""Measures of states: distances between rows, columns and given pairs, energies, the effective rank."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.measure.collapse import dominant_subspace_distance, numerical_rank
from pairnorm.measure.inputs import (
    Adjacency,
    Estimate,
    block_length,
    centered,
    check_nodes,
    edges,
    over_trials,
    result_dtype,
    unit_rows,
)
from pairnorm.nn.ops.moments import check_states

Laplacian = Literal["sym", "rw", "unnormalized"]


@torch.no_grad()
def row_diff(x: Tensor) -> Tensor:
    """Return the mean distance between nodes, (1/n²) Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂ (Eq. 2): 0 if all are equal.

    The mean is over all n² ordered pairs, those with i = j included, as the paper writes it. Exact in O(n² d)
    time and in memory linear in ``x``; see ``estimate_row_diff``. Not differentiable: a measure keeps no
    autograd graph.

    Args:
        x: States [nodes, features] or [nodes, trials..., features].

    >>> row_diff(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(2.5000)
    """
    return over_trials(x, _mean_distance)


@torch.no_grad()
def estimate_row_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate:
    """Estimate ``row_diff`` from random pairs of nodes.

    Args:
        x: States [nodes, features] or [nodes, trials..., features].
        sample: The number of pairs, at least 2.
        seed: The seed or generator of the pairs.
    """
    check_states(x)
    return _estimate(x, sample, seed, result_dtype(x))


@torch.no_grad()
def col_diff(x: Tensor) -> Tensor:
    """Return the mean distance between normalized columns, (1/d²) Σ_{i,j ∈ [d]} ‖c_i − c_j‖₂ (Eq. 3).

    Here c_i = x_{·i} / ‖x_{·i}‖₁; a zero column stays zero. The mean is over all d² ordered pairs, those with
    i = j included. Columns that are multiples of each other count as equal, unless their signs differ: the
    paper's normalization keeps the sign. Exact in O(n d²) time and in memory linear in ``x``.

    Args:
        x: States [nodes, features] or [nodes, trials..., features].

    >>> col_diff(torch.tensor([[1.0, 0.0], [0.0, 7.0]]))
    tensor(0.7071)
    """
    return over_trials(x, lambda trial: _mean_distance(_unit_columns(trial).T))


@torch.no_grad()
def estimate_col_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate:
    """Estimate ``col_diff`` from random pairs of columns; arguments as for ``estimate_row_diff``."""
    check_states(x)
    columns = _unit_columns(x.double()).transpose(0, -1).contiguous()
    return _estimate(columns, sample, seed, result_dtype(x))


@torch.no_grad()
def tpsd(x: Tensor) -> Tensor:
    """Return the total pairwise squared distance, Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂² = 2n ‖X^c‖²_F (Eqs. 8, 9).

    The sum is over all n² ordered pairs; X^c has its column means subtracted. Linear time.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].

    >>> tpsd(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(50.)
    """
    return over_trials(x, lambda trial: 2 * len(trial) * centered(trial).square().sum())


def _mean_distance(rows: Tensor) -> Tensor:
    """Return the mean distance over all ordered pairs of the float64 ``rows``, a strip of rows at a time.

    The product form |a|² + |b|² − 2ab is off by up to √u (|a| + |b|) per pair, u the unit roundoff. About the
    mean, Σ_j ‖a_i − a_j‖ ≥ n ‖a_i‖: however the rows lie, the mean distance is off by a few √u, which is 1e-8
    in float64 (in float32 it would be 1e-3, for rows in tight clusters).
    """
    rows = centered(rows)
    lengths = rows.square().sum(1)
    total = rows.new_zeros(())
    step = block_length(len(rows), rows.device)
    for start in range(0, len(rows), step):
        strip, rest = slice(start, start + step), slice(start, None)
        squared = torch.addmm(lengths[rest], rows[strip], rows[rest].T, alpha=-2)
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
    pairs = random_pairs(len(rows), sample, seed)
    distances = squared_distances(rows, pairs).sqrt()
    error = distances.std(0) / math.sqrt(sample)
    return Estimate(distances.mean(0).to(dtype), error.to(dtype))


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
    whole_number("count", count)
    whole_number("num_nodes", num_nodes, least=min(1, count))
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
        problem = f"pairs is {given} of {kind}"
        raise PairNormError(problem, code="wrong-shape", value=given, expected="an integer tensor [2, pairs]")
    check_nodes("pairs", pairs, len(x))
    size = block_length(math.prod(x.shape[1:]), x.device)
    blocks = torch.split(pairs.to(x.device).long(), size, dim=1)
    return torch.cat([(x[i].double() - x[j].double()).square().sum(-1) for i, j in blocks])


def _mean(values: Tensor) -> Tensor:
    if not len(values):
        problem = "pairs is empty: no pairs have no average distance"
        expected = "at least one pair"
        raise PairNormError(problem, code="no-pairs", expected=expected, hint="Does the graph have edges?")
    return values.mean(0)


@torch.no_grad()
def dirichlet_energy(
    x: Tensor, adjacency: Adjacency, laplacian: Laplacian = "sym", relative: bool = False
) -> Tensor:
    """Return the Dirichlet energy, how much X changes along the edges: a scalar, or one value per trial.

    - ``"sym"``: tr(Xᵀ L X), L = I − D̃^(−1/2) Ã D̃^(−1/2) with self-loops, which is ½ Σ_{i,j} a_ij ‖x_i/√d̃_i −
      x_j/√d̃_j‖² (Cai & Wang 2020, "A Note on Over-Smoothing for Graph Neural Networks"). It is zero at the
      stationary point of the GCN, where nodes still differ by the square root of their degree, and not zero
      where all nodes are equal: no measure of node similarity in the sense of Rusch, Bronstein & Mishra.
    - ``"rw"``: ½ Σ_{i,j} (a_ij / d̃_i) ‖x_i − x_j‖², over the steps of the walk D̃⁻¹Ã: every node counts
      about once, where a hub counts by its degree below. Zero only where all nodes of a component are equal.
    - ``"unnormalized"``: tr(Xᵀ L X), L = D − A, which is ½ Σ_{i,j} a_ij ‖x_i − x_j‖². Zero only where all
      nodes of a component are equal, the stationary point of D̃⁻¹Ã. The energy of Rusch, Bronstein & Mishra
      (2023, "A Survey on Oversmoothing in Graph Neural Networks") is 2/n times this one, and their measure
      the square root of that.

    None is divided by the number of nodes or edges, and all grow with the square of the scale of ``x``:
    states that only shrink seem to smooth. A directed graph counts as (A + Aᵀ)/2, and self-loops of
    ``adjacency`` are dropped.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
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
        whole = x.double().square().sum((0, -1))
        energy = energy / whole.where(whole > 0, 1)
    return energy.to(result_dtype(x))


@torch.no_grad()
def mean_average_distance(x: Tensor, adjacency: Adjacency | None = None) -> Tensor:
    """Return the mean average cosine distance (MAD): 0 if all nodes point the same way, at most 2.

    The cosine distance is half the squared distance of the unit rows, ½ ‖x_i/‖x_i‖ − x_j/‖x_j‖‖² = 1 −
    cos(x_i, x_j).

    - Without ``adjacency``: the mean over all pairs i ≠ j, in linear time.
    - With it: the mean over neighbors, then over the nodes that have any.

    This is the MAD of Chen et al. (2020, "Measuring and Relieving the Over-smoothing Problem for Graph Neural
    Networks from the Topological View") with two conventions of its own. They leave pairs at distance zero
    out of the average; here these count, so that collapsed nodes lower it. A zero row has no direction: it
    stays zero, at 0 from another zero row and at 1/2 from any other row. Rusch, Bronstein & Mishra (2023)
    *sum* over neighbors instead.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        adjacency: a sparse or dense matrix [nodes, nodes] or an ``edge_index`` [2, edges]; the neighbors of
            a node are the non-zeros in its row.

    >>> mean_average_distance(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor(1.)
    """
    if adjacency is None:
        return over_trials(x, _mean_cosine_distance)
    pairs, _ = _edges_of(x, adjacency)
    if not pairs.shape[1]:
        raise PairNormError("adjacency has no edges", code="no-pairs", expected="some to average over")
    neighbors = torch.bincount(pairs[0], minlength=len(x))
    weight = 1 / (neighbors[pairs[0]].double() * (neighbors > 0).sum())
    mean: Tensor = torch.tensordot(weight, squared_distances(unit_rows(x.double()), pairs) / 2, dims=1)
    return mean.to(result_dtype(x))


def _mean_cosine_distance(rows: Tensor) -> Tensor:
    """Return TPSD(unit rows) / 2 over the n (n − 1) pairs, from Eq. 9 of the paper."""
    return centered(unit_rows(rows)).square().sum() / max(1, len(rows) - 1)


def _edges_of(x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    check_states(x)
    pairs, weight = edges(adjacency)
    check_nodes("adjacency", pairs, len(x))
    return pairs.to(x.device), weight.to(x.device, torch.float64)


@torch.no_grad()
def effective_rank(x: Tensor) -> Tensor:
    """Return exp(−Σ_k p_k ln p_k), p_k = σ_k / Σ_l σ_l, over the singular values σ of X.

    The convention is that of Roy & Vetterli (2007, "The effective rank"): the singular values, not their
    squares, of ``x`` as it is, not centered. Zhang et al. (2025, "Are We Measuring Oversmoothing in Graph
    Neural Networks Correctly?") propose the effective rank as a measure of oversmoothing. The value lies in
    [1, min(n, d)], 1 if all rows are parallel; that of a zero or empty matrix is 0.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].

    >>> effective_rank(torch.eye(3))
    tensor(3.)
    """
    return over_trials(x, _effective_rank)


def _effective_rank(x: Tensor) -> Tensor:
    if not bool(x.isfinite().all()):
        return x.new_tensor(torch.nan)  # the decomposition would raise; a measure of NaN is NaN
    tall = x if x.shape[0] >= x.shape[1] else x.T
    values = torch.linalg.svdvals(torch.linalg.qr(tall, mode="r").R)
    total = values.sum()
    entropy = torch.special.entr(values / total.where(total > 0, 1)).sum()
    return torch.where(total > 0, entropy.exp(), 0)


class Measure(NamedTuple):
    """A measure of states alone; s times the states have s to the power ``degree`` times the measure."""

    function: Callable[[Tensor], Tensor]
    degree: int


MEASURES = {
    "row_diff": Measure(row_diff, 1),
    "col_diff": Measure(col_diff, 0),
    "tpsd": Measure(tpsd, 2),
    "mean_average_distance": Measure(mean_average_distance, 0),
    "effective_rank": Measure(effective_rank, 0),
    "numerical_rank": Measure(numerical_rank, 0),
    "dominant_subspace_distance": Measure(dominant_subspace_distance, 1),
}
"""Those that need nothing but states, by name: what training and a ``Probe`` can take."""

OwnMeasure = Callable[[Tensor], Tensor]

# Exact distances of this many coordinates take half a second on two cores: 20,000 nodes with 64 features.
EXACT_WORK = 20_000**2 * 64

_NAMES = (*MEASURES, "apd", "apsd", "dirichlet_energy")


@dataclass(frozen=True)
class Measures:
    """The measures that a Probe computes, and the number of random pairs for estimates."""

    chosen: Sequence[str] | Mapping[str, OwnMeasure]
    sample: int
    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.chosen, str) or not self.chosen:
            problem = f"measures is {quoted(self.chosen)}"
            expected = "a list of names such as ['row_diff']"
            raise PairNormError(problem, code="wrong-type", value=self.chosen, expected=expected)
        if not isinstance(self.chosen, Mapping):
            for name in self.chosen:
                one_of("a name in measures", name, _NAMES)
        whole_number("sample", self.sample, least=2)

    def __call__(self, x: Tensor, pairs: dict[str, Tensor], graph: Adjacency | None) -> dict[str, Tensor]:
        """Return each measure of ``x``; those of pairs once for each kind of ``pairs``."""
        if isinstance(self.chosen, Mapping):
            return {name: _checked(name, measure(x), x.shape[1:-1]) for name, measure in self.chosen.items()}
        values: dict[str, Tensor] = {}
        for name in self.chosen:
            if name == "row_diff" and len(x) ** 2 * x.shape[-1] > EXACT_WORK:
                values |= _columns(name, estimate_row_diff(x, self.sample, self.seed))
            elif name == "col_diff" and x.shape[-1] ** 2 * len(x) > EXACT_WORK:
                values |= _columns(name, estimate_col_diff(x, self.sample, self.seed))
            elif name == "apd":
                values |= {f"apd_{kind}": apd(x, chosen) for kind, chosen in pairs.items()}
            elif name == "apsd":
                values |= {f"apsd_{kind}": apsd(x, chosen) for kind, chosen in pairs.items()}
                values["apsd_random"] = tpsd(x) / max(1, len(x) ** 2)
            elif name == "dirichlet_energy":
                if graph is None:
                    problem = f"{name} needs a graph and none was found"
                    hint = "Give the Probe {adjacency}."
                    raise PairNormError(problem, code="no-graph", value=name, hint=hint, adjacency=...)
                values[name] = dirichlet_energy(x, graph)
            else:
                values[name] = MEASURES[name].function(x)
        return values


def _checked(name: str, value: Tensor, trials: torch.Size) -> Tensor:
    value = torch.as_tensor(value)
    if value.shape != trials:
        problem = f"measure {name!r} gave shape {list(value.shape)}"
        expected = f"one value per trial: {list(trials)}"
        raise PairNormError(problem, code="wrong-shape", value=list(value.shape), expected=expected)
    return value


def _columns(name: str, estimate: Estimate) -> dict[str, Tensor]:
    return {name: estimate.value, f"{name}_standard_error": estimate.standard_error}
