"""The Probe: what every graph convolution of a model does to its states, recorded while the model runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairnorm.base import plotting
from pairnorm.base.errors import PairNormError, load_library
from pairnorm.base.plotting import BLUE, GRAY, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.measure.collapse import Measures, OwnMeasure
from pairnorm.measure.diagnosis import (
    SCALE_FREE,
    Influence,
    Record,
    Verdict,
    form_verdict,
    influence_of_inputs,
    last_forward,
)
from pairnorm.measure.distances import Adjacency, connected_pairs, pair_distances, random_pairs
from pairnorm.nn import SparseMatrix
from pairnorm.nn.calibrate import evaluating
from pairnorm.nn.find_convolutions import convolves, graph_convolutions, is_pair_norm, node_states
from pairnorm.nn.patch_hooks import ACTIVE
from pairnorm.nn.propagate import is_edge_index

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]

# Markers distinguish the lines in gray.
_LINE_STYLES = list(zip([BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GRAY], "os^DvP", strict=True))
_TITLES = {
    "apd": "pairwise distance",
    "apsd": "pairwise squared distance",
    "col_diff": "col-diff",
    "tpsd": "TPSD",
    "dirichlet_energy": "Dirichlet energy",
    "dominant_subspace_distance": "distance to the dominant subspace",
}
"""Titles of panels that are not the measure's name."""
_NO_MEASURE = ("forward", "layer", "name", "node_type", "trial")


class Probe:
    """Records measures of the output of every graph convolution while the model runs.

    ::

        with Probe(model) as probe:
            loss(model(x, edge_index), y).backward()  # the backward pass is for gradient norms
        probe.verdict()
        probe.frame()

    It measures the output of each convolution or, where PairNorm follows it, of PairNorm. Other steps after a
    convolution, such as an activation or dropout, are not seen. A convolution called several times gives one
    record per call, and one per node type for a dictionary of states (``HeteroConv``, ``HGTConv``). Every
    forward pass inside the ``with`` appends its records, with a number in ``forward``; so does entering the
    same Probe again. What activation checkpointing computes again is not recorded twice; its reentrant form
    gives no gradient norms. A compiled model runs eagerly while a Probe records. The model's output, its
    gradients and the global random numbers stay as they are.

    The default measures do not depend on the scale of the states, which weights may change at will. After a
    backward pass there is also ``gradient_norm``, ‖∂L/∂X‖_F.

    Connected pairs come from ``adjacency`` or, without it, from an ``edge_index`` or a sparse square
    matrix among the arguments of the convolution or of the model. The random kind stands for all n² pairs.
    Where exact distances would take too long (n² d above 2.6e10: 20,000 nodes with 64 features), ``row_diff``
    is estimated from ``sample`` random pairs, with ``row_diff_standard_error``; likewise ``col_diff`` (n d²).

    Args:
        model: Any module with graph convolutions.
        measures: Names among ``row_diff``, ``col_diff``, ``apd``, ``apsd`` (the last two for each kind of
            pairs), ``tpsd``, ``dirichlet_energy``, ``mean_average_distance``, ``effective_rank``,
            ``numerical_rank``, ``dominant_subspace_distance``; or a mapping from a name of your own to a
            function of the states.
        adjacency: The graph, a matrix [nodes, nodes] or an ``edge_index`` [2, edges].
        pairs: Node pairs [2, pairs] of your own, or several by name, such as ``{"same_class": ...}``, to be
            measured next to the connected ones.
        layers: Dotted names of the convolutions, where they are not recognized.
        sample: The number of random pairs, and the most distances recorded per kind of pairs.
        seed: The seed of the random pairs.
        histograms: Record distances of single pairs, which ``to_tensorboard`` shows as histograms.
    """

    def __init__(
        self, model: nn.Module, measures: Sequence[str] | Mapping[str, OwnMeasure] = SCALE_FREE,
        adjacency: Adjacency | None = None, pairs: Tensor | Mapping[str, Tensor] | None = None,
        layers: Sequence[str] | None = None, sample: int = 10_000, seed: int = 0, histograms: bool = False,
    ) -> None:  # fmt: skip
        self.model = model
        self.measures = Measures(measures, sample, seed)
        self.adjacency = adjacency
        self.pairs = {"given": pairs} if isinstance(pairs, Tensor) else dict(pairs or {})
        for kind in {"connected", "random"} & self.pairs.keys():
            problem = f"pairs are named {kind!r}, which every Probe has of its own"
            raise PairNormError(problem, code="name-taken", value=kind, hint="Choose another name.")
        self.histograms = histograms
        self.records: list[Record] = []
        self._convolutions = graph_convolutions(model, layers)
        self._is_named = layers is not None
        self._hooks: ExitStack | None = None  # while it records
        self._norms: set[nn.Module] = set()
        self._forward, self._layer = -1, 0
        self._in_convolution = False
        # Records that a PairNorm may still replace, with their graphs.
        self._latest: list[tuple[int, Adjacency | None]] = []
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # of the last forward pass
        self._influence: Influence | None = None
        # The graph that a node type was last seen with, and its connected pairs.
        self._graphs: dict[str, tuple[Adjacency | None, Tensor | None]] = {}

    def __repr__(self) -> str:
        counts = f"{len(self._convolutions)} convolutions, {len(self.records)} records"
        return f"Probe({type(self.model).__name__}, {counts})"

    def __enter__(self) -> Probe:
        if self._hooks is not None:
            problem = "this Probe is already recording"
            hint = "Leave its `with` first, or make a second Probe."
            raise PairNormError(problem, code="already-recording", hint=hint)
        self._hooks = ExitStack()
        if "torch._dynamo" in sys.modules:  # compiled code would not run the hooks
            self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        hooks = [self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)]
        for name, module in self._convolutions.items():
            hooks.append(module.register_forward_pre_hook(self._before_convolution))
            after = partial(self._after_convolution, name)
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        for hook in hooks:
            self._hooks.callback(hook.remove)
        self._watch_norms()
        return self

    def __exit__(self, *error: object) -> None:
        if self._hooks is not None:
            self._hooks.close()
        self._hooks, self._graphs, self._norms = None, {}, set()

    def frame(self) -> pandas.DataFrame:
        """Return the records as a DataFrame: one row per call of a convolution and trial.

        Columns: ``forward`` (counted from 0), ``layer`` (the call within it, from 1), ``name``, ``node_type``
        (where there are several), ``trial`` (always 0 without a trial axis), and the measures.
        """
        load_library("pandas", "Probe.frame")
        import pandas

        last_forward(self.records)  # raises an error where there is none
        rows = []
        for record in self.records:
            identity: dict[str, Any] = {"forward": record.forward, "layer": record.layer, "name": record.name}
            identity |= {"node_type": record.node_type} if record.node_type else {}
            columns = [value.flatten().tolist() for value in record.measures.values()]
            for trial, values in enumerate(zip(*columns, strict=True)):
                rows.append(identity | {"trial": trial} | dict(zip(record.measures, values, strict=True)))
        return pandas.DataFrame(rows)

    def verdict(
        self, train_loss: float | None = None, validation_loss: float | None = None,
        chance_loss: float | None = None,
    ) -> Verdict:  # fmt: skip
        """Diagnose the last forward pass in words; returns the first of these verdicts that holds.

        - *Not finite*: there is NaN or infinity in the states of some layer, or in their gradients.
        - *States collapse*: from some layer to the last but one, the mean average distance is below 0.05, or
          the numerical rank below 1.05.
        - *Gradients vanish*: ‖X‖ ‖∂L/∂X‖ at the first layer is below a thousandth of that at the last.
        - *The model does not use information beyond k hops*: less than 1% of the influence comes from there.
          Needs a call of ``influence``.
        - *It fits and does not generalize*: the training loss is below half of the chance loss, and the
          validation loss fell less than half as far.

        Of several trials the mean counts, of node types the worst.

        Args:
            train_loss: The loss of the training nodes.
            validation_loss: The loss of the validation nodes.
            chance_loss: The loss of a model that knows only the share of each class, such as ln C.
        """
        losses = {"train_loss": train_loss, "validation_loss": validation_loss, "chance_loss": chance_loss}
        return form_verdict(self.records, self._influence, **losses)

    def influence(self, nodes: int | Tensor = 16, seed: int = 0) -> Influence:
        """Measure how much a node's output depends on the features of nodes 0, 1, 2, ... hops away.

        The model runs again, in eval, on the inputs of the last recorded forward pass. ``verdict`` then takes
        the result into account.

        Args:
            nodes: The number of random nodes, or the nodes, whose outputs are examined. Each takes a
                backward pass for every output channel.
            seed: The seed of the random nodes.
        """
        last_forward(self.records)  # raises an error where there is none
        args, kwargs = self._inputs
        graph = self._graph_among("", [*args, *kwargs.values()])
        steps = max(record.layer for record in self.records)
        with evaluating(self.model):
            self._influence = influence_of_inputs(self.model, args, kwargs, graph, nodes, seed, steps)
        return self._influence

    def plot(self, forward: int = -1) -> Figure:
        """Return a figure of the measures over the layers of one forward pass, by default the last.

        With a trial axis: the mean as a line, the range from the least to the largest trial as a band.
        """
        frame = self.frame()
        known = sorted(set(frame["forward"]))
        if not -len(known) <= forward < len(known):
            problem = f"forward is {forward}"
            expected = f"one of the {len(known)} recorded forward passes"
            raise PairNormError(problem, code="out-of-range", value=forward, expected=expected)
        return draw(frame[frame["forward"] == known[forward]])

    def to_tensorboard(self, writer: SummaryWriter, step: int | None = None) -> None:
        """Write the last forward pass: scalars (the mean over trials) and, if recorded, histograms.

        Args:
            writer: a ``torch.utils.tensorboard.SummaryWriter``.
            step: the training step, with one tag per layer; or None for one tag in all, with the layer as the
                step, as in the histograms of the paper's appendix.
        """
        for record in last_forward(self.records) if self.records else ():
            suffix = "" if step is None else f"/layer_{record.layer:02d}"
            position = record.layer if step is None else step
            for name, value in record.measures.items():
                writer.add_scalar(f"{name}{suffix}", float(value.mean()), position)
            for kind, distances in record.distances.items():
                finite = distances[distances.isfinite()]
                if finite.numel():
                    writer.add_histogram(f"distance_{kind}{suffix}", finite, position)

    def _watch_norms(self) -> None:
        """Register hooks on the PairNorm modules, those included that a patch added in this forward pass."""
        assert self._hooks is not None
        for module in self.model.modules():
            if module not in self._norms and is_pair_norm(module):
                self._norms.add(module)
                self._hooks.callback(module.register_forward_hook(self._after_norm).remove)

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_recomputing():
            self._forward += 1
            self._layer, self._latest, self._in_convolution = 0, [], False
            self._inputs, self._influence = (args, kwargs), None

    def _before_convolution(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._in_convolution = True
        if not self._layer:
            self._watch_norms()

    def _after_convolution(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Record the node states that a convolution returned (a forward hook)."""
        self._in_convolution = False
        if ACTIVE.is_observing:
            return
        states, inputs = node_states(output), [*args, *kwargs.values()]
        if not (self._is_named or convolves(module, inputs, states)):
            return
        if not states:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            shape = f" of shape {list(first.shape)}" if isinstance(first, Tensor) else ""
            problem = f"the convolution {name!r} returned a {type(first).__name__}{shape}"
            expected, hint = "states [nodes, ..., features]", "Name the convolutions to record: {layers}."
            raise PairNormError(
                problem, code="wrong-type", value=name, expected=expected, hint=hint, layers=...
            )
        if _is_recomputing():
            return
        self._layer, self._latest = self._layer + 1, []
        for node_type, x in states.items():
            graph = self._graph_among(node_type, inputs, [*self._inputs[0], *self._inputs[1].values()])
            self._latest.append((len(self.records), graph))
            self.records.append(self._record(name, node_type, x, graph))

    def _after_norm(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Record PairNorm's output in place of the output of the convolution before it."""
        if self._in_convolution or ACTIVE.is_observing or _is_recomputing():
            return
        for position, (index, graph) in enumerate(self._latest):
            replaced = self.records[index]
            if replaced.nodes == len(output):
                del self._latest[position]
                self.records[index] = self._record(replaced.name, replaced.node_type, output, graph)
                return

    def _record(self, name: str, node_type: str, states: Tensor, graph: Adjacency | None) -> Record:
        x = states.detach()
        connected = self._connected_pairs(node_type, graph, len(x))
        pairs = ({} if connected is None else {"connected": connected}) | self.pairs
        if self.adjacency is None:
            # Weights found on the way may be a model's own normalization, which is not the graph's.
            graph = None if connected is None else torch.cat([connected, connected.flip(0)], dim=1)
        measures = {key: value.cpu() for key, value in self.measures(x, pairs, graph).items()}
        sampled = self._sample(pairs, len(x)) if self.histograms else ()
        distances = {kind: pair_distances(x, kind_pairs).cpu() for kind, kind_pairs in sampled}
        call = (max(self._forward, 0), self._layer, name, node_type)
        record = Record(*call, len(x), _norm(x), measures, distances)
        if states.requires_grad:
            states.register_hook(lambda gradient: measures.update(gradient_norm=_norm(gradient)))
        return record

    def _graph_among(self, node_type: str, *arguments: list[Any]) -> Adjacency | None:
        """Return the given graph, or the first ``edge_index`` or sparse square matrix among arguments.

        Of a dictionary by edge type, that of the edges from a node type to itself.
        """
        if self.adjacency is not None:
            return self.adjacency
        for values in arguments:
            # The features come first, and one-hot ones are square too: they are the last to be taken.
            for value in (*values[1:], *values[:1]):
                if isinstance(value, Mapping):
                    types = ((key, {key[0], key[-1]}) for key in value if isinstance(key, tuple))
                    value = next((value[key] for key, ends in types if ends == {node_type}), None)
                if is_edge_index(value) or is_sparse_adjacency(value):
                    graph: Adjacency = value
                    return graph
        return None

    def _connected_pairs(self, node_type: str, graph: Adjacency | None, num_nodes: int) -> Tensor | None:
        """Return the connected pairs of ``graph``, or None if it has none, or not of these nodes."""
        seen, pairs = self._graphs.get(node_type, (None, None))
        if seen is not graph:
            pairs = None if graph is None else connected_pairs(graph)
            self._graphs[node_type] = graph, pairs
        if pairs is None or not pairs.shape[1]:
            return None
        # A graph found among the arguments may lead from many nodes to fewer, as in sampled mini-batches.
        return None if self.adjacency is None and int(pairs.max()) >= num_nodes else pairs

    def _sample(self, pairs: dict[str, Tensor], num_nodes: int) -> Iterator[tuple[str, Tensor]]:
        """Yield at most ``sample`` pairs of each kind, and random ones: the same at every layer."""
        sample, seed = self.measures.sample, self.measures.seed
        for kind, chosen in pairs.items():
            count = chosen.shape[1]
            subset = random_pairs(count, sample, seed, chosen.device)[0] if count > sample else slice(None)
            yield kind, chosen[:, subset]
        if num_nodes:
            yield "random", random_pairs(num_nodes, sample, seed)


def is_sparse_adjacency(value: object) -> bool:
    """Return whether ``value`` is a sparse matrix [nodes, nodes], the same for all trials."""
    if isinstance(value, SparseMatrix):
        return value.pattern.shape[0] == value.pattern.shape[1] and value.values.ndim == 1
    if not isinstance(value, Tensor) or value.layout == torch.strided:
        return False
    return value.ndim == 2 and value.shape[0] == value.shape[1] and value.is_floating_point()


def _is_recomputing() -> bool:
    """Return whether a backward pass runs: activation checkpointing then computes states again."""
    return bool(torch._C._current_graph_task_id() != -1)


def _norm(x: Tensor) -> Tensor:
    """Return ‖X‖_F of every trial, summed in float64: squares of float16 leave its range."""
    norm: Tensor = torch.linalg.vector_norm(x.detach().double(), dim=(0, -1))
    return norm.cpu()


def draw(frame: pandas.DataFrame) -> Figure:
    """Return the figure of one forward pass: the measures of ``Probe.frame()`` over the layers."""
    panels = _panels(frame)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with plotting.style():
        figure = plotting.new_figure(0.6 + 3.6 * columns, 0.6 + 2.6 * rows)
        figure.supxlabel("graph convolutions", fontsize=10)
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items(), strict=False):
            _draw_panel(axis, frame, title, lines)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
    return figure


def _panels(frame: pandas.DataFrame) -> dict[str, dict[str, str]]:
    """Group the columns of measures into plots: title → {label of a line: column}."""
    panels: dict[str, dict[str, str]] = {_TITLES["apd"]: {}, _TITLES["apsd"]: {}}
    for column in frame.columns:
        quantity, _, kind = column.partition("_")
        if column == "row_diff":
            panels[_TITLES["apd"]]["all pairs (row-diff)"] = column
        elif quantity in ("apd", "apsd"):
            panels[_TITLES[quantity]]["all pairs" if kind == "random" else kind.replace("_", " ")] = column
        elif column not in _NO_MEASURE and not column.endswith("_standard_error"):
            panels[_TITLES.get(column, column.replace("_", " "))] = {column: column}
    return {title: lines for title, lines in panels.items() if lines}


def _draw_panel(axis: Axes, frame: pandas.DataFrame, title: str, lines: dict[str, str]) -> None:
    # All pairs first, so that one kind of pairs has one color in every panel.
    ordered = sorted(lines.items(), key=lambda line: not line[0].startswith("all pairs"))
    for (label, column), (color, marker) in zip(ordered, itertools.cycle(_LINE_STYLES), strict=False):
        trials = frame.groupby("layer")[column]
        mean = trials.mean()
        step = -(-len(mean) // 20)
        axis.plot(mean.index, mean, color=color, marker=marker, markevery=step, label=label)
        axis.fill_between(mean.index, trials.min(), trials.max(), color=color, alpha=0.18, linewidth=0)
    shown = frame[list(lines.values())].to_numpy()
    if (shown > 0).all() and shown.max() > 30 * shown.min():
        axis.set_yscale("log")
    else:  # from zero, where all states are equal
        lowest, top = axis.get_ylim()
        axis.set_ylim(min(0.0, lowest), top + 0.05 * (top - min(0.0, lowest)))
        axis.ticklabel_format(axis="y", useMathText=True, scilimits=(-3, 5))
    axis.set_title(title, loc="left")
    plotting.use_integer_ticks(axis)
    if len(lines) > 1:
        axis.legend()
