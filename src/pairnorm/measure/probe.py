"""The Probe: what every graph convolution of a model does to its states, recorded while the model runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pairnorm.base.errors import PairNormError
from pairnorm.measure.functional import (
    Measures,
    OwnMeasure,
    connected_pairs,
    pair_distances,
    random_pairs,
)
from pairnorm.measure.influence import Influence, influence_of_inputs
from pairnorm.measure.inputs import Adjacency, is_sparse_adjacency
from pairnorm.measure.summary import SCALE_FREE, Record, Verdict, form_verdict, no_records
from pairnorm.nn.find_convolutions import graph_convolutions, is_known_convolution, node_states
from pairnorm.nn.patch_hooks import is_observing
from pairnorm.nn.propagate import is_edge_index

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]


class Probe:
    """Records measures of the output of every graph convolution while the model runs.

    ::

        with Probe(model) as probe:
            loss(model(x, edge_index), y).backward()  # the backward pass is for gradient norms
        probe.verdict()
        probe.frame()

    It measures the output of each convolution or, where PairNorm follows it, of PairNorm: the model's own or
    that of ``add_pair_norm``. Other steps after a convolution, such as an activation or dropout, are not
    seen. A convolution called several times gives one record per call. Every forward pass inside the ``with``
    appends its records, with a number in ``forward``; so does entering the same Probe again. What
    activation checkpointing computes again is not recorded twice. A compiled model runs eagerly while a Probe
    records. The model's output, its gradients and the global random numbers stay as they are. States in a
    dictionary by node type (``HeteroConv``, ``HGTConv``) give one record per type.

    The default measures do not depend on the scale of the states, which weights may change at will. After a
    backward pass there is also ``gradient_norm``, ‖∂L/∂X‖_F.

    Connected pairs come from ``adjacency`` or, without it, from an ``edge_index`` or a sparse square
    matrix among the arguments of the convolution or of the model. The random kind stands for all n² pairs:
    its APD is ``row_diff`` itself, its APSD is ``tpsd`` / n². Where exact distances would take too long (n² d
    above 2.6e10: 20,000 nodes with 64 features), ``row_diff`` is estimated from ``sample`` random pairs, and
    the frame gains its standard error in ``row_diff_standard_error``; likewise ``col_diff`` (n d²).

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
        self,
        model: nn.Module,
        measures: Sequence[str] | Mapping[str, OwnMeasure] = SCALE_FREE,
        adjacency: Adjacency | None = None,
        pairs: Tensor | Mapping[str, Tensor] | None = None,
        layers: Sequence[str] | None = None,
        sample: int = 10_000,
        seed: int = 0,
        histograms: bool = False,
    ) -> None:
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
        self._norms: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []
        self._stack = ExitStack()
        self._forward = -1
        self._layer = 0
        self._running = False
        self._open: list[int] = []  # the latest records, which PairNorm may still follow
        self._call: tuple[tuple[Any, ...], dict[str, Any]] = (), {}  # of the last forward pass
        self._influence: Influence | None = None
        # The graph that a node type was last seen with, and its connected pairs.
        self._graphs: dict[str, tuple[Adjacency | None, Tensor | None]] = {}

    def __repr__(self) -> str:
        counts = f"{len(self._convolutions)} convolutions, {len(self.records)} records"
        return f"Probe({type(self.model).__name__}, {counts})"

    def __enter__(self) -> Probe:
        if self._handles:
            problem = "this Probe is already recording"
            hint = "Leave its `with` first, or make a second Probe."
            raise PairNormError(problem, code="already-recording", hint=hint)
        if "torch._dynamo" in sys.modules:  # compiled code would not run the hooks
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        for name, module in self._convolutions.items():
            after = functools.partial(self._after_convolution, name)
            self._handles.append(module.register_forward_pre_hook(self._before_convolution))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True))
        self._watch_norms()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._stack.close()
        self._graphs, self._norms = {}, set()

    def frame(self) -> pandas.DataFrame:
        """Return the records as a DataFrame: one row per call of a convolution and trial.

        Columns: ``forward`` (counted from 0), ``layer`` (the call within it, from 1), ``name``, ``node_type``
        (where there are several), ``trial`` (always 0 without a trial axis), and the measures.
        """
        import pandas

        if not self.records:
            raise no_records()
        rows: list[dict[str, Any]] = []
        for record in self.records:
            identity: dict[str, Any] = {"forward": record.forward, "layer": record.layer, "name": record.name}
            if record.node_type:
                identity["node_type"] = record.node_type
            columns = {name: value.flatten().tolist() for name, value in record.measures.items()}
            for trial, values in enumerate(zip(*columns.values(), strict=True)):
                rows.append(identity | {"trial": trial} | dict(zip(columns, values, strict=True)))
        return pandas.DataFrame(rows)

    def verdict(
        self,
        train_loss: float | None = None,
        validation_loss: float | None = None,
        chance_loss: float | None = None,
    ) -> Verdict:
        """Diagnose the last forward pass in words.

        - *Not finite*: there is NaN or infinity in the states of some layer, or in their gradients.
        - *States collapse*: from some layer on to the last but one, all nodes point the same way (mean
          average distance below 0.05), or lie on one line (numerical rank below 1.05).
        - *Gradients vanish*: ‖X‖ ‖∂L/∂X‖, the response of the loss to a change of the states by their own
          size, is at the first layer below a thousandth of that at the last. Needs a backward pass.
        - *The model does not use information beyond k hops*, although its convolutions reach further: less
          than 1% of the influence comes from there. Needs a call of ``influence``.
        - *It fits and does not generalize*: the training loss is below half of what chance gives, and the
          validation loss has come less than half as far down. Needs all three losses.

        The first that holds is the verdict. Of several trials the mean counts, of node types the worst.

        Args:
            train_loss: The loss of the training nodes.
            validation_loss: The loss of the validation nodes.
            chance_loss: The loss of a model that knows only the share of each class: ln C for C classes of
                equal size.
        """
        return form_verdict(self.records, self._influence, train_loss, validation_loss, chance_loss)

    def influence(self, nodes: int | Tensor = 16, seed: int = 0) -> Influence:
        """Measure how much a node's output depends on the features of nodes 0, 1, 2, ... hops away.

        The model runs again, in eval, on the inputs of the last recorded forward pass. ``verdict`` then takes
        the result into account.

        Args:
            nodes: The number of random nodes, or the nodes, whose outputs are examined. Each takes a
                backward pass for every output channel.
            seed: The seed of the random nodes.
        """
        args, kwargs = self._call
        if not self.records:
            raise no_records()
        graph = self.adjacency
        if graph is None:
            graph = _first_graph("", [*args, *kwargs.values()])
        is_training = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            self._influence = influence_of_inputs(
                self.model, args, kwargs, graph, nodes, seed, max(record.layer for record in self.records)
            )
        finally:
            for module, mode in is_training.items():
                module.training = mode
        return self._influence

    def plot(self, forward: int = -1) -> Figure:
        """Return a figure of the measures over the layers of one forward pass, by default the last.

        With a trial axis: the mean as a line, the range from the least to the largest trial as a band.
        """
        from pairnorm.measure.summary import draw

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
        last = max((record.forward for record in self.records), default=0)
        for record in self.records:
            if record.forward != last:
                continue
            suffix = "" if step is None else f"/layer_{record.layer:02d}"
            position = record.layer if step is None else step
            for name, value in record.measures.items():
                writer.add_scalar(f"{name}{suffix}", float(value.mean()), position)
            for kind, distances in record.distances.items():
                finite = distances[distances.isfinite()]
                if finite.numel():
                    writer.add_histogram(f"distance_{kind}{suffix}", finite, position)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_recomputing():
            return
        self._forward += 1
        self._layer = 0
        self._open = []
        self._running = False
        self._call, self._influence = (args, kwargs), None

    def _watch_norms(self) -> None:
        """Register hooks on the PairNorm modules, those included that a patch added in this forward pass."""
        for module in self.model.modules():
            if module not in self._norms and any(one.__name__ == "PairNorm" for one in type(module).__mro__):
                self._norms.add(module)
                self._handles.append(module.register_forward_hook(self._after_norm))

    def _before_convolution(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._running = True
        if not self._layer:
            self._watch_norms()

    def _after_convolution(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._running = False
        if is_observing():
            return
        states = node_states(output)
        rows = {len(x) for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim}
        is_other = not states or not any(len(x) in rows for x in states.values())
        if is_other and not self._is_named and not is_known_convolution(module):
            return  # such as a decoder, which takes a graph and returns a row for every edge
        if not states:
            raise _wrong_output(name, output)
        if _is_recomputing():
            for x in states.values():
                self._add_gradient(name, x)
            return
        self._layer += 1
        self._open = []
        for kind, x in states.items():
            graph = self.adjacency
            if graph is None:
                graph = _first_graph(
                    kind, [*args, *kwargs.values()], [*self._call[0], *self._call[1].values()]
                )
            self._open.append(len(self.records))
            self.records.append(self._record(name, kind, x, graph))

    def _after_norm(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Let PairNorm's output take the place of what the convolution before it gave."""
        if self._running or is_observing():
            return
        if _is_recomputing():
            self._add_gradient("", output)
            return
        for index in self._open:
            known = self.records[index]
            if known.nodes == len(output):
                self._open.remove(index)
                graph = self._graphs[known.node_type][0]
                self.records[index] = self._record(known.name, known.node_type, output, graph)
                return

    def _add_gradient(self, name: str, states: Tensor) -> None:
        """Find the record of states that reentrant checkpointing computed without a gradient before."""
        norm = _norm(states)
        for record in reversed(self.records):
            if record.name.startswith(name) and not record.has_gradient and torch.equal(record.norm, norm):
                states.register_hook(functools.partial(_note_gradient, record))
                record.has_gradient.append(True)
                return

    def _record(self, name: str, kind: str, states: Tensor, graph: Adjacency | None) -> Record:
        x = states.detach()
        connected = self._connected_pairs(kind, graph, len(x))
        pairs = ({} if connected is None else {"connected": connected}) | self.pairs
        if self.adjacency is None:
            # Weights found on the way may be a model's own normalization, which is not the graph's.
            graph = None if connected is None else torch.cat([connected, connected.flip(0)], dim=1)
        measures = self.measures(x, pairs, graph)
        record = Record(
            forward=max(self._forward, 0),
            layer=self._layer,
            name=name,
            node_type=kind,
            nodes=len(x),
            norm=_norm(x),
            measures={name: value.cpu() for name, value in measures.items()},
            distances={
                kind: pair_distances(x, some).cpu()
                for kind, some in (self._some(pairs, len(x)) if self.histograms else ())
            },
        )
        if states.requires_grad:
            states.register_hook(functools.partial(_note_gradient, record))
            record.has_gradient.append(True)
        return record

    def _connected_pairs(self, kind: str, graph: Adjacency | None, num_nodes: int) -> Tensor | None:
        """Return the connected pairs of ``graph``, or None if it has none, or not of these nodes."""
        seen, pairs = self._graphs.get(kind, (None, None))
        if seen is not graph or kind not in self._graphs:
            pairs = None if graph is None else connected_pairs(graph)
            self._graphs[kind] = graph, pairs
        if pairs is None or not pairs.shape[1]:
            return None
        # A graph found among the arguments may lead from many nodes to fewer, as in sampled mini-batches.
        return None if self.adjacency is None and int(pairs.max()) >= num_nodes else pairs

    def _some(self, pairs: dict[str, Tensor], num_nodes: int) -> Iterator[tuple[str, Tensor]]:
        """Yield at most ``sample`` pairs of each kind, and random ones: the same at every layer."""
        sample, seed = self.measures.sample, self.measures.seed
        for kind, chosen in pairs.items():
            count = chosen.shape[1]
            subset = random_pairs(count, sample, seed, chosen.device)[0] if count > sample else slice(None)
            yield kind, chosen[:, subset]
        if num_nodes:
            yield "random", random_pairs(num_nodes, sample, seed)


def _is_recomputing() -> bool:
    """Return whether a backward pass runs: activation checkpointing then computes states again."""
    return bool(torch._C._current_graph_task_id() != -1)


def _norm(x: Tensor) -> Tensor:
    """Return ‖X‖_F of every trial, summed in float64: squares of float16 leave its range."""
    norm: Tensor = torch.linalg.vector_norm(x.detach().double(), dim=(0, -1))
    return norm.cpu()


def _note_gradient(record: Record, gradient: Tensor) -> None:
    record.measures["gradient_norm"] = _norm(gradient)


def _first_graph(kind: str, *places: list[Any]) -> Adjacency | None:
    """Return the first ``edge_index`` or sparse square matrix of the first place that has one.

    Of a dictionary by edge type, that of the edges from a node type to itself.
    """
    for values in places:
        # The features come first, and one-hot ones are square too: they are the last to be taken for a graph.
        for given in (*values[1:], *values[:1]):
            value = given
            if isinstance(given, Mapping):
                ends = ((edges[0], edges[-1]) if isinstance(edges, tuple) else () for edges in given)
                value = next(
                    (x for x, end in zip(given.values(), ends, strict=True) if end == (kind, kind)), None
                )
            if is_edge_index(value) or is_sparse_adjacency(value):
                graph: Adjacency = value
                return graph
    return None


def _wrong_output(name: str, output: Any) -> PairNormError:
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    shape = f" of shape {list(first.shape)}" if isinstance(first, Tensor) else ""
    problem = f"the convolution {name!r} returned a {type(first).__name__}{shape}"
    expected = "states [nodes, ..., features]"
    hint = "Name the convolutions to record: {layers}."
    return PairNormError(problem, code="wrong-type", value=name, expected=expected, hint=hint, layers=...)
