"""How far states have collapsed: onto few directions, a subspace, each other's classes; measures by name."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted, real_number, whole_number, wrong_shape
from pairnorm.measure.distances import (
    Adjacency,
    Estimate,
    apd,
    apsd,
    block_length,
    centered,
    col_diff,
    dirichlet_energy,
    estimate_col_diff,
    estimate_row_diff,
    mean_average_distance,
    no_graph,
    per_trial,
    result_dtype,
    row_diff,
    tpsd,
    unit_rows,
)
from pairnorm.nn.ops.pair_norm import check_states
from pairnorm.nn.propagate import check_degrees

# How many nodes meet all others at a time: enough for a product to be bound by arithmetic, not by memory.
ROWS = 512
# Exact distances of this many coordinates take half a second on two cores: 20,000 nodes with 64 features.
EXACT_WORK = 20_000**2 * 64
OwnMeasure = Callable[[Tensor], Tensor]


@per_trial
def effective_rank(x: Tensor) -> Tensor:
    """Return the number of dimensions that states use: exp(−Σ_k p_k ln p_k), p_k = σ_k / Σ_l σ_l.

    By Roy & Vetterli (2007, "The effective rank"), over the singular values σ of ``x``, not centered. It lies
    in [1, min(n, d)], 1 if all rows are parallel; that of a zero or empty matrix is 0.

    >>> effective_rank(torch.eye(3))
    tensor(3.)
    """
    if not bool(x.isfinite().all()):
        return x.new_tensor(torch.nan)  # the decomposition would raise; a measure of NaN is NaN
    tall = x if x.shape[0] >= x.shape[1] else x.T
    triangle = torch.linalg.qr(tall, mode="r").R
    values = torch.linalg.svdvals(triangle.cpu()).to(x.device)  # CUDA's takes seconds
    total = values.sum()
    entropy = torch.special.entr(values / total.where(total > 0, 1)).sum()
    return torch.where(total > 0, entropy.exp(), 0)


@per_trial
def numerical_rank(x: Tensor) -> Tensor:
    """Return the stable rank of states, ‖X‖_F² / ‖X‖₂² = Σ_k σ_k² / σ_1²: 1 if all rows are parallel.

    It lies in [1, min(n, d)]; that of a zero or empty matrix is 0. ``x`` is not centered. Proposed by Zhang
    et al. (2025, "Are We Measuring Oversmoothing in Graph Neural Networks Correctly?").

    >>> numerical_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    tensor(1.5000)
    """
    peak = x.abs().amax() if x.numel() else x.new_zeros(())
    if not bool(0 < peak < torch.inf):
        return torch.where(peak == 0, 0, torch.nan)
    x = x / peak  # squares stay within range
    gram = x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T
    rank: Tensor = x.square().sum() / torch.linalg.eigvalsh(gram)[-1]
    return rank


@torch.no_grad()
def dominant_subspace_distance(
    x: Tensor, degree: Tensor | None = None, component: Tensor | None = None, relative: bool = False
) -> Tensor:
    """Return the distance ‖X − UUᵀX‖_F of states from the subspace that deep propagation converges to.

    The columns of U are the dominant eigenvectors of the adjacency, one per component of the graph: constant
    for D⁻¹A, in proportion to √degree for D^(−1/2) A D^(−1/2). This is d_M(X) of Oono & Suzuki (2020, "Graph
    Neural Networks Exponentially Lose Expressive Power for Node Classification").

    Args:
        degree: the row sums of A, self-loops included, [nodes], for the symmetric adjacency; None for D⁻¹A.
        component: the component of each node, [nodes]; None for a connected graph.
        relative: divide by ‖X‖_F: a share in [0, 1] that does not depend on the scale; 0 for a zero matrix.

    >>> dominant_subspace_distance(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(3.5355)
    """
    check_states(x)
    for name, values in (("degree", degree), ("component", component)):
        _check_per_node(name, values, len(x))
    root = x.new_ones(len(x), 1, dtype=torch.float64)
    if degree is not None:
        root = check_degrees(degree).to(root).sqrt().unsqueeze(1)
    index = None if component is None else component.to(x.device).long()
    share = root / _sums(root.square(), index)

    @per_trial
    def distance(trial: Tensor) -> Tensor:
        residual = trial
        for _ in range(2):  # the second projection takes off what rounding left of the first
            residual = residual - share * _sums(root * residual, index)
        norm: Tensor = torch.linalg.vector_norm(residual)
        if relative:
            total = torch.linalg.vector_norm(trial)
            norm = norm / total.where(total > 0, 1)
        return norm

    return distance(x)


@torch.no_grad()
def group_distance_ratio(x: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared distance between nodes of different classes over that within classes.

    Means are over pairs of nodes, then over (pairs of) classes, of rows scaled to unit length, as in the
    released code of Zhou et al. (2020, "Towards Deeper Graph Neural Networks with Differentiable Group
    Normalization"); Eq. 2 of that paper and PyG's function do not square distances. About 1 if classes are
    mixed, 1 where all rows are equal, and without bound where each class is a single point.

    Args:
        labels: The class of each node, [nodes]; negative for none.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> group_distance_ratio(x, torch.tensor([0, 0, 1, 1]))
    tensor(3.)
    """
    check_states(x)
    _check_per_node("labels", labels, len(x))
    labeled = labels >= 0
    classes, index = labels[labeled].unique(return_inverse=True)
    if len(classes) < 2:
        problem = f"labels holds {len(classes)} classes"
        raise PairNormError(problem, code="too-few-classes", value=len(classes), expected="at least 2")
    return _distance_ratio(x[labeled.to(x.device)], index.to(x.device))


@per_trial
def _distance_ratio(x: Tensor, index: Tensor) -> Tensor:
    # 1 + (Σ_c ‖m_c − m̄‖² / (C − 1)) / (Σ_c v_c / C), by the mean m_c and the variance v_c of each class
    count = torch.bincount(index)
    x = centered(unit_rows(x))
    mean = x.new_zeros(len(count), x.shape[1]).index_add_(0, index, x) / count.unsqueeze(1)
    within = (x - mean[index]).square_().sum(1) @ (1 / count.double())[index] / len(mean)
    between = centered(mean).square().sum() / (len(mean) - 1)
    return torch.where(between > 0, 1 + between / within, torch.where(between.isnan(), between, 1))


@torch.no_grad()
def instance_information_gain(x: Tensor, features: Tensor, variance: float = 0.1) -> Tensor:
    """Return the information in final states about the features, in bits: I(features; arg max of the state).

    As in the released code of Zhou et al. (2020, "Towards Deeper Graph Neural Networks with Differentiable
    Group Normalization"), for unit rows f_i of features with Gaussian noise, the largest entry c_i of each
    state, and k_ij = exp(−‖f_i − f_j‖² / 8 variance):

    (1/n) Σ_i log₂ [mean over the j with c_j = c_i of k_ij] − log₂ [mean over all j of k_ij].

    0 if all states point to the same entry. Exact in O(n² F) time for F features.

    Args:
        features: The input, [nodes, features].
        variance: The variance of the noise.
    """
    return _gains(x, features, torch.arange(len(x)), variance).mean(0).to(result_dtype(x))


@torch.no_grad()
def estimate_instance_information_gain(
    x: Tensor, features: Tensor, sample: int, seed: int = 0, variance: float = 0.1
) -> Estimate:
    """Estimate ``instance_information_gain`` from a random sample of nodes, in O(sample · n · F) time.

    A thousand of a million nodes with 64 features take less than a minute on a core.

    Args:
        features: The input, [nodes, features].
        sample: The number of nodes, at least 2.
        seed: The seed of the sample.
        variance: The variance of the noise.
    """
    whole_number("sample", sample, least=2)
    rows = torch.randint(len(x), (sample,), generator=torch.Generator().manual_seed(seed))
    return Estimate.of(_gains(x, features, rows, variance), result_dtype(x))


def _gains(x: Tensor, features: Tensor, rows: Tensor, variance: float) -> Tensor:
    """Return the information gains of the nodes in ``rows``, [rows, trials...]: NaN for a trial with NaN."""
    check_states(x)
    check_states(features)
    variance = real_number("variance", variance, above=0)
    nodes, size = len(x), x.shape[-1]
    if features.ndim != 2 or len(features) != nodes:
        raise wrong_shape("features", features.shape, f"[{nodes}, features]")
    unit = unit_rows(features.double())
    squares = unit.square().sum(1)
    entries = x.argmax(-1).view(nodes, math.prod(x.shape[1:-1]))  # [nodes, trials]
    # One column for every entry of every trial: a product with it sums over the nodes that share the entry.
    member = torch.nn.functional.one_hot(entries, size).flatten(1).double()
    counts = member.sum(0)
    own_class = entries + size * torch.arange(entries.shape[1], device=x.device)
    gains = []
    for block in rows.to(x.device).split(ROWS):
        sums = member.new_zeros(len(block), member.shape[1])
        for columns in torch.arange(nodes, device=x.device).split(block_length(ROWS, x.device)):
            squared = torch.addmm(squares[columns], unit[block], unit[columns].T, alpha=-2)
            kernel = squared.add_(squares[block, None]).clamp_(min=0).mul_(-1 / (8 * variance)).exp_()
            sums.addmm_(kernel, member[columns])
        among = (sums / counts.where(counts > 0, 1)).gather(1, own_class[block])
        gains.append((among * nodes / sums[:, :size].sum(1, keepdim=True)).log2())
    gain = torch.cat(gains).view(len(rows), *x.shape[1:-1])
    return gain.where(~x.isnan().any(-1).any(0), torch.nan)  # arg max takes NaN for the largest entry


def _sums(x: Tensor, index: Tensor | None) -> Tensor:
    """Return for each row the sum over the rows with its index: [rows, ...], or [1, ...] if all share it."""
    if index is None or not len(index):
        return x.sum(0, keepdim=True)
    return x.new_zeros(int(index.max()) + 1, x.shape[1]).index_add_(0, index, x)[index]


def _check_per_node(name: str, values: Tensor | None, nodes: int) -> None:
    if values is not None and values.shape != (nodes,):
        raise wrong_shape(name, values.shape, f"[{nodes}], a value for each node")


class Measure(NamedTuple):
    """A measure of states alone. Scaling the states by s scales it by s to the power ``degree``."""

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
PAIR_MEASURES = {"apd": apd, "apsd": apsd}


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
                one_of("a name in measures", name, (*MEASURES, *PAIR_MEASURES, "dirichlet_energy"))
        whole_number("sample", self.sample, least=2)

    def __call__(self, x: Tensor, pairs: dict[str, Tensor], graph: Adjacency | None) -> dict[str, Tensor]:
        """Return each measure of ``x``; those of pairs once for each kind of ``pairs``."""
        values: dict[str, Tensor] = {}
        nodes, features = len(x), x.shape[-1]
        own = self.chosen if isinstance(self.chosen, Mapping) else {}
        for name in self.chosen:
            if name in own:
                values[name] = value = torch.as_tensor(own[name](x))
                if value.shape != x.shape[1:-1]:
                    expected = f"one value per trial: {list(x.shape[1:-1])}"
                    raise wrong_shape(f"measure {name!r}", value.shape, expected)
            elif name == "row_diff" and nodes**2 * features > EXACT_WORK:
                values[name], values[f"{name}_standard_error"] = estimate_row_diff(x, self.sample, self.seed)
            elif name == "col_diff" and features**2 * nodes > EXACT_WORK:
                values[name], values[f"{name}_standard_error"] = estimate_col_diff(x, self.sample, self.seed)
            elif name in PAIR_MEASURES:
                values |= {f"{name}_{kind}": PAIR_MEASURES[name](x, part) for kind, part in pairs.items()}
                if name == "apsd":
                    values["apsd_random"] = tpsd(x) / max(1, len(x) ** 2)
            elif name == "dirichlet_energy":
                if graph is None:
                    raise no_graph(name)
                values[name] = dirichlet_energy(x, graph)
            else:
                values[name] = MEASURES[name].function(x)
        return values
