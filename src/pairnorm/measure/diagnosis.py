"""What a Probe recorded as a verdict in words; influence by hop, how far the outputs of nodes reach."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pairnorm.base import plotting
from pairnorm.base.errors import PairNormError, real_number, whole_number
from pairnorm.measure.distances import Adjacency, connected_pairs, no_graph
from pairnorm.nn.find_convolutions import is_node_states, node_states
from pairnorm.nn.ops.sparse_product import check_range

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SCALE_FREE = ("effective_rank", "numerical_rank", "mean_average_distance", "col_diff")
# The thresholds of verdicts; docs/measures.md compares them with real states, noise and smoothed ones.
MAX_COLLAPSED_DISTANCE, MAX_COLLAPSED_RANK = 0.05, 1.05
MAX_VANISHED_RESPONSE = 1e-3  # of that at the last layer
NEGLIGIBLE_SHARE = 0.01
"""The largest share of the influence that counts as none."""


@dataclass(frozen=True)
class Influence:
    """The influence of nodes on the outputs of sampled nodes, by their distance in hops.

    The last hop stands for all nodes farther than ``steps`` hops, or not connected at all. These have an
    influence only where a layer runs over all nodes, as PairNorm and BatchNorm do.

    Args:
        nodes: The nodes whose outputs are examined, [sample].
        steps: The number of propagation steps of the model, hence the hops it can reach.
        totals: The influence of all nodes at a distance together, [sample, steps + 2].
        counts: The number of nodes at a distance, [sample, steps + 2].
        baseline: The share that propagation alone takes from each distance, (D⁻¹A)^steps with self-loops,
            [steps + 2].
    """

    nodes: Tensor
    steps: int
    totals: Tensor
    counts: Tensor
    baseline: Tensor

    @property
    def shares(self) -> Tensor:
        """The share of influence from nodes at each distance, averaged over the sample, [steps + 2]."""
        sums = self.totals.sum(1, keepdim=True)
        return (self.totals / sums)[sums[:, 0] > 0].mean(0)

    @property
    def breadth(self) -> float:
        """The mean distance in hops, weighted by influence; nodes farther than ``steps`` are left out."""
        shares = self.shares[:-1]
        return float((shares * torch.arange(len(shares))).sum() / shares.sum())

    def reach(self, negligible: float = NEGLIGIBLE_SHARE) -> int | None:
        """Return the hops beyond which influence is negligible, if at most half of those it could reach.

        Args:
            negligible: The largest share of the influence that counts as none.

        Returns:
            The number of hops, or None where the model uses what it reaches or there are no nodes beyond.
        """
        shares, counts = self.shares[:-1], self.counts[:, :-1].sum(0)
        beyond = shares.sum() - shares.cumsum(0)
        hops = int((beyond > negligible * shares.sum()).sum())
        if math.isnan(float(shares.sum())) or 2 * hops > self.steps or not bool(counts[hops + 1 :].any()):
            return None
        return hops

    def frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per distance; the last, ``hop`` = inf, holds all farther nodes.

        Columns: ``hop``, ``share`` of the influence, ``total`` (the influence of all nodes at that distance),
        ``per_node`` (that of one of them), ``nodes`` (how many there are on average), ``baseline``.
        """
        import pandas

        columns = {
            "hop": torch.cat([torch.arange(self.steps + 1), torch.tensor([math.inf])]),
            "share": self.shares,
            "total": self.totals.mean(0),
            "per_node": self.totals.sum(0) / self.counts.sum(0),
            "nodes": self.counts.mean(0),
            "baseline": self.baseline,
        }
        return pandas.DataFrame({name: values.tolist() for name, values in columns.items()})

    def plot(self) -> Figure:
        """Return a figure of the shares by hop, next to those of propagation alone."""
        hops, baseline = range(self.steps + 1), self.baseline[:-1].tolist()
        with plotting.style():
            figure = plotting.new_figure(5.0, 3.2)
            axis = figure.subplots()
            axis.bar(hops, self.shares[:-1].tolist(), color=plotting.BLUE, width=0.7, label="the model")
            axis.plot(hops, baseline, color=plotting.VERMILLION, marker="o", label="propagation alone")
            axis.set(xlabel="hops", ylim=(0, None))
            axis.set_title(f"share of the influence; breadth {self.breadth:.1f} hops", loc="left")
            plotting.use_integer_ticks(axis)
            axis.legend()
        return figure


def influence_by_hop(
    forward: Callable[[Tensor], Tensor], x: Tensor, adjacency: Adjacency, steps: int,
    nodes: int | Tensor = 16, seed: int = 0,
) -> Influence:  # fmt: skip
    """Measure the influence of nodes on the outputs of sampled nodes, by their distance in hops.

    The influence of node u on node v is the L1 norm of a Jacobian at ``x``, Σ_{c,f} |∂ output_{v,c} / ∂
    x_{u,f}|. A linear model has the same Jacobian everywhere, so that its influence is exact. Distances are
    those of the undirected graph. It takes a backward pass for each node and output channel.

    Args:
        forward: The model as a function of the features: [nodes, features] to [nodes, ..., channels].
        x: The features, [nodes, features].
        adjacency: A matrix [nodes, nodes] or an ``edge_index`` [2, edges].
        steps: The number of propagation steps of the model; nodes farther away are counted together.
        nodes: The number of random nodes, or the nodes, whose outputs are examined.
        seed: The seed of the random nodes.

    >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> mean = (torch.eye(4) + torch.eye(4).roll(1, 0) + torch.eye(4).roll(-1, 0)) / 3
    >>> influence_by_hop(lambda x: mean @ x, torch.rand(4, 2), ring, steps=1, nodes=2).shares
    tensor([0.3333, 0.6667, 0.0000], dtype=torch.float64)
    """
    whole_number("steps", steps, least=0)
    if isinstance(nodes, Tensor):
        chosen = nodes.long().cpu()
    else:
        count = min(whole_number("nodes", nodes, least=1), len(x))
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count]
    check_range("nodes", chosen, len(x), "nodes")
    pairs = connected_pairs(adjacency).cpu()
    check_range("adjacency", pairs, len(x), "nodes")
    distances, baseline = _propagate(torch.cat([pairs, pairs.flip(0)], 1), chosen, len(x), steps)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        output = node_states(forward(x)).get("")
        if output is None or len(output) != len(x):
            problem = "the model does not return one row for every node"
            raise PairNormError(problem, code="wrong-shape", expected="an output [nodes, channels]")
        influence = torch.zeros(len(chosen), len(x), dtype=torch.float64)
        for row, node in enumerate(chosen.tolist()):
            for value in output[node].flatten() if output.requires_grad else ():
                (gradient,) = torch.autograd.grad(value, x, retain_graph=True, allow_unused=True)
                if gradient is not None:
                    influence[row] += gradient.abs().sum(1).double().cpu()
    totals = torch.zeros(len(chosen), steps + 2, dtype=torch.float64)
    counts = totals.clone().scatter_add_(1, distances, torch.ones_like(influence))
    return Influence(chosen, steps, totals.scatter_add_(1, distances, influence), counts, baseline)


def _propagate(index: Tensor, chosen: Tensor, num_nodes: int, steps: int) -> tuple[Tensor, Tensor]:
    """Return distances [sample, nodes], at most steps + 1, and the shares of a random walk [steps + 2]."""
    row, column = index
    reached = torch.zeros(num_nodes, len(chosen), dtype=torch.float64)
    reached[chosen, torch.arange(len(chosen))] = 1
    distances = torch.where(reached > 0, 0, steps + 1)
    degree = torch.bincount(row, minlength=num_nodes).unsqueeze(1) + 1
    for step in range(1, steps + 1):
        reached = reached / degree
        reached = reached.index_add(0, column, reached[row])
        distances = torch.where((reached > 0) & (distances > step), step, distances)
    shares = torch.zeros(len(chosen), steps + 2, dtype=torch.float64).scatter_add_(1, distances.T, reached.T)
    return distances.T, shares.mean(0)


def influence_of_inputs(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], graph: Adjacency | None,
    nodes: int | Tensor, seed: int, steps: int,
) -> Influence:  # fmt: skip
    """Measure the influence by hop of a model on the first of its inputs that is features or has ``x``."""
    if graph is None:
        raise no_graph("influence")
    inputs: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    for key, value in inputs.items():
        has_x = isinstance(getattr(value, "x", None), Tensor)
        x = value.x if has_x else value
        if x is graph or not hasattr(x, "to_dense"):
            continue
        dense = x if is_node_states(x) else x.to_dense()
        if not is_node_states(dense) or dense.ndim != 2:
            continue

        def forward(x: Tensor, key: Any = key, has_x: bool = has_x) -> Any:
            changed: Any = copy.copy(inputs[key]) if has_x else x
            if has_x:
                changed.x = x
            arguments = {**inputs, key: changed}
            named = {name: arguments[name] for name in kwargs}
            return model(*(arguments[i] for i in range(len(args))), **named)

        return influence_by_hop(forward, dense, graph, steps, nodes, seed)
    problem = "no features [nodes, features] were found among the inputs of the model"
    raise PairNormError(problem, code="no-features", expected="models of one node type")


@dataclass
class Record:
    """One call of one convolution: its measures, one value per trial, and distances of node pairs."""

    forward: int
    layer: int
    name: str
    node_type: str  # empty where there is only one
    nodes: int
    norm: Tensor  # ‖X‖_F
    measures: dict[str, Tensor]  # with gradient_norm after a backward pass
    distances: dict[str, Tensor]


class Verdict(NamedTuple):
    """A diagnosis, in words and as a code.

    Args:
        kind: Which of the verdicts of ``Probe.verdict``.
        layer: The layer, counted from 1, from which states collapse or are not finite, up to which gradients
            vanish, or down from which they are not finite; None for the other verdicts.
        text: The same in a sentence or two, with the numbers.
    """

    kind: Literal[
        "not-finite", "states-collapse", "gradients-vanish", "short-range", "does-not-generalize", "no-sign"
    ]
    layer: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def form_verdict(
    records: Sequence[Record], influence: Influence | None = None, **losses: float | None
) -> Verdict:
    """Diagnose the last forward pass; losses by their names in ``Probe.verdict``."""
    records = last_forward(records)
    for name in ("numerical_rank", "mean_average_distance"):
        if name not in records[0].measures:
            problem = f"{name} was not measured"
            hint = "Leave the Probe its own measures, {measures}, or add this one."
            raise PairNormError(problem, code="no-measure", value=name, hint=hint, measures=list(SCALE_FREE))
    layers = sorted({record.layer for record in records})
    responses = [_response(records, layer) for layer in layers]
    several = [record for record in records if record.nodes > 1]
    states = "the states keep apart" if several else "fewer than two nodes show nothing"
    is_recorded = not math.isnan(responses[0])
    gradients = "gradients reach the first layer" if is_recorded else "gradients were not recorded"
    return (
        _not_finite(records)
        or _detect_collapse(several, layers[:-1] or layers)
        or _detect_vanishing_gradients(layers, responses)
        or (None if influence is None else _detect_short_range(influence))
        or _detect_no_generalization(losses)
        or Verdict("no-sign", None, f"No sign of oversmoothing: {states}, and {gradients}.")
    )


def last_forward(records: Sequence[Record]) -> list[Record]:
    """Return the records of the last forward pass."""
    if not records:
        problem = "nothing was recorded"
        hint = "Call the model itself inside `with Probe(model) as probe:`."
        raise PairNormError(problem, code="no-records", hint=hint)
    return [record for record in records if record.forward == records[-1].forward]


def _not_finite(records: list[Record]) -> Verdict | None:
    """Return the verdict on NaN or infinity in the first such layer, of states, or else of gradients."""
    ways = [("States", "on", record, "") for record in records]
    ways += [("Gradients", "down", record, "gradient_norm") for record in reversed(records)]
    for subject, way, record, name in ways:
        if not record.measures.get(name, record.norm).isfinite().all():
            text = f"{subject} are not finite from layer {record.layer} ({_describe_layer(record)}) {way}."
            return Verdict("not-finite", record.layer, text)
    return None


def _detect_collapse(records: list[Record], layers: list[int]) -> Verdict | None:
    """Return the verdict on states that have collapsed in one layer and in all later ones of ``layers``."""
    verdict = None
    for layer in reversed(layers):
        collapsed = [record for record in records if record.layer == layer and _describe_collapse(record)]
        if not collapsed:
            break
        where, how = _describe_layer(collapsed[0]), _describe_collapse(collapsed[0])
        text = f"States collapse: from layer {layer} ({where}) on, all nodes {how}."
        verdict = Verdict("states-collapse", layer, text)
    return verdict


def _describe_collapse(record: Record) -> str:
    """Describe how states have collapsed; empty where they have not."""
    names = ("mean_average_distance", "numerical_rank")
    distance, rank = (float(record.measures[name].mean()) for name in names)
    if distance < MAX_COLLAPSED_DISTANCE:
        return f"point the same way (mean average distance {distance:.2g})"
    return f"lie on one line (numerical rank {rank:.3g})" if rank < MAX_COLLAPSED_RANK else ""


def _describe_layer(record: Record) -> str:
    return f"{record.name}, {record.node_type}" if record.node_type else record.name


def _response(records: list[Record], layer: int) -> float:
    """Return ‖X‖ ‖∂L/∂X‖ of a layer, the largest of its node types; NaN without a backward pass."""
    values = [
        float((record.norm * record.measures["gradient_norm"]).mean())
        for record in records
        if record.layer == layer and "gradient_norm" in record.measures
    ]
    return max(values, default=math.nan)


def _detect_vanishing_gradients(layers: list[int], responses: list[float]) -> Verdict | None:
    if max(responses) == 0:
        text = "Gradients vanish: they are zero at every layer. The loss does not depend on the states."
        return Verdict("gradients-vanish", layers[-1], text)
    limit = MAX_VANISHED_RESPONSE * responses[-1]
    if not responses[0] < limit:
        return None
    weak = max(layer for layer, response in zip(layers, responses, strict=True) if response < limit)
    text = (
        f"Gradients vanish: at layer {layers[0]} the loss responds to the states "
        f"{responses[0] / responses[-1]:.1g} times as much as at layer {layers[-1]}, and up to layer {weak} "
        "hardly anything is learned. The states themselves do not collapse."
    )
    return Verdict("gradients-vanish", weak, text)


def _detect_short_range(influence: Influence) -> Verdict | None:
    if (reached := influence.reach()) is None:
        return None
    beyond = float(influence.baseline[reached + 1 :].sum())
    text = (
        f"The model does not use information beyond {reached} hops: less than {NEGLIGIBLE_SHARE:.0%} of the "
        f"influence comes from there, although its {influence.steps} convolutions reach further. A "
        + (
            f"computational bottleneck: propagation alone would take {beyond:.0%} from there, so weights and "
            "activations lose it."
            if beyond > NEGLIGIBLE_SHARE
            else f"topological bottleneck: propagation alone would take {beyond:.1%} from there as well, so "
            "the graph itself lets little through."
        )
    )
    return Verdict("short-range", None, text)


def _detect_no_generalization(losses: Mapping[str, float | None]) -> Verdict | None:
    missing = [name for name, loss in losses.items() if loss is None]
    if len(missing) == len(losses):
        return None
    if missing:
        problem = f"there is no {missing[0]}"
        raise PairNormError(problem, code="no-loss", value=missing[0], expected="all three losses")
    train, validation, chance = (real_number("a loss", loss) for loss in losses.values())
    if train > chance / 2 or chance - validation >= (chance - train) / 2:
        return None
    text = (
        f"It fits and does not generalize: the loss is {train:.3g} in training, {validation:.3g} in "
        f"validation and {chance:.3g} by chance. The states do not collapse."
    )
    return Verdict("does-not-generalize", None, text)
