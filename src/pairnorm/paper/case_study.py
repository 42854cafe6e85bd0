"""The case study: measure, store and draw the distances of node pairs layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.plotting import BLUE, TWO_COLUMNS, VERMILLION, new_figure, style, whole_ticks
from pairnorm.data import Graph, features_after
from pairnorm.measure import Probe
from pairnorm.measure.summary import Record
from pairnorm.nn import SGC
from pairnorm.sweep.grid import Experiment
from pairnorm.train import Spec, Store
from pairnorm.train.result import UNEXPECTED
from pairnorm.train.trainers import GNNTrainer, sgc_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BINS = 60
RECORDS = "case-study"
"""Collection of a store with the measured layers."""
PAIRS = ("connected", "random")


@dataclass(frozen=True)
class Layers:
    """Distances of node pairs in every layer of one model; lists run over the layers, from the first.

    Args:
        test_accuracy: of the trained model; None for SGC, whose states do not depend on training.
        apd: average pairwise distance, by kind of pairs.
        apsd: average pairwise squared distance, by kind of pairs.
        edges: of the bins of the histograms, by kind of pairs, the same in all layers.
        histograms: how many pairs fall into each bin, by kind of pairs and layer.
    """

    test_accuracy: float | None
    apd: dict[str, list[float]]
    apsd: dict[str, list[float]]
    edges: dict[str, list[float]]
    histograms: dict[str, list[list[int]]]


def measure_layers(
    graph: Graph,
    spec: Spec,
    seed: int,
    device: torch.device,
    tick: Callable[[int], None] = lambda epochs: None,
) -> Layers:
    """Train a spec (SGC needs no training) and measure the pairs in every layer but the one of the logits.

    All connected pairs and 10,000 random ones are taken, the same in every layer; the APSD of random pairs is
    that of all pairs.
    """
    accuracy = None
    if spec.model == "SGC":
        model: torch.nn.Module = SGC(graph.num_features, graph.num_classes, **sgc_settings(spec))
        model = model.eval().to(device)
        values = features_after(graph, scaling=spec.scaling).values
        inputs: tuple[Any, ...] = (values.to(device), graph.adjacency.to(device))
    else:
        run = GNNTrainer(graph, [(spec, seed)], device)
        run.fit(tick)
        accuracy = float(run.problem.metrics(run.evaluate()[1])["test_accuracy"])
        model, inputs = run.model, (run.problem.features, run.problem.adjacency)
    probe = Probe(model, measures=("apd", "apsd"), adjacency=graph.adjacency.to(device), histograms=True)
    with torch.no_grad(), probe:
        model(*inputs)
    return _layers(probe.records if accuracy is None else probe.records[:-1], accuracy)


def _layers(records: Sequence[Record], accuracy: float | None) -> Layers:
    distances = {kind: [record.distances[kind].flatten() for record in records] for kind in PAIRS}
    edges = {kind: _edges(distances[kind]) for kind in PAIRS}
    apsd = {kind: [_rounded(record.measures[f"apsd_{kind}"].item()) for record in records] for kind in PAIRS}
    return Layers(
        test_accuracy=None if accuracy is None else _rounded(accuracy),
        apd={kind: [_rounded(values.mean().item()) for values in distances[kind]] for kind in PAIRS},
        apsd=apsd,
        edges={kind: [_rounded(edge) for edge in edges[kind].tolist()] for kind in PAIRS},
        histograms={kind: [_histogram(values, edges[kind]) for values in distances[kind]] for kind in PAIRS},
    )


def _edges(distances: Sequence[Tensor]) -> Tensor:
    # Most bins would hold nothing but outliers; what lies beyond the last edge is counted in the last bin.
    top = max(float(values.quantile(0.995)) for values in distances)
    return torch.linspace(0, top or 1.0, BINS + 1)


def _histogram(values: Tensor, edges: Tensor) -> list[int]:
    cell = torch.bucketize(values.cpu().contiguous(), edges[1:-1], right=True)
    return [int(count) for count in torch.bincount(cell, minlength=BINS)]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def read_layers(store: Store) -> dict[Spec, Layers]:
    """Read the layers of every spec that has been measured."""
    try:
        found = store.records(RECORDS)
        return {Spec.parse(text): _checked(Layers(**values)) for text, values in found.items()}
    except UNEXPECTED as error:
        problem = f"the case study in {store.path} is damaged ({quoted(str(error))})"
        hint = "Restore a copy of the store."
        raise PairNormError(problem, code="file-damaged", value=store.path, hint=hint) from None


def _checked(layers: Layers) -> Layers:
    """Return layers that can be drawn; raise an error for others."""
    _check_numbers(1, [0 if layers.test_accuracy is None else layers.test_accuracy])
    for kind in PAIRS:
        depth, counts = len(layers.apd[kind]), layers.histograms[kind]
        _check_numbers(depth, layers.apd[kind])
        _check_numbers(depth, layers.apsd[kind])
        _check_numbers(len(counts[0]) + 1, layers.edges[kind])
        if len(counts) != depth:
            raise ValueError(f"{len(counts)} histograms of {depth} layers")
        for counted in counts:
            _check_numbers(len(counts[0]), counted)
    return layers


def _check_numbers(count: int, values: list[Any]) -> None:
    if len(values) != count or not all(type(value) in (int, float) and isfinite(value) for value in values):
        raise ValueError(f"{count} finite numbers are expected")


def write_layers(store: Store, layers: Mapping[Spec, Layers]) -> None:
    """Write the layers of some specs atomically."""
    store.write_records(RECORDS, {spec.text: asdict(found) for spec, found in layers.items()})


NORMS = {"none": "without PairNorm", "PN": "PairNorm", "PN-SI": "PairNorm-SI"}
COLORS = {"connected": VERMILLION, "random": BLUE}
MARKERS = {"connected": "s", "random": "o"}
RIDGES = 10


def studied(layers: Mapping[Spec, Layers], experiment: Experiment, model: str) -> dict[str, Layers]:
    """Return what was measured of a model, by norm."""
    specs = [spec for cell in experiment.cells() for spec in experiment.candidates(cell)]
    return {spec.norm: layers[spec] for spec in specs if spec.model == model and spec in layers}


def mean_distances(found: dict[str, Layers], model: str) -> "Figure | None":
    """Draw APSD (top) and APD (below) of connected and of random pairs by layer, a column for each norm."""
    if not found:
        return None
    with style():
        figure = new_figure(TWO_COLUMNS, 4.0)
        axes = figure.subplots(2, len(found), squeeze=False, sharex=True)
        for column, (norm, layers) in enumerate(found.items()):
            for row, values in enumerate((layers.apsd, layers.apd)):
                axis = axes[row, column]
                for kind in PAIRS:
                    numbers = range(1, len(values[kind]) + 1)
                    axis.plot(numbers, values[kind], color=COLORS[kind], marker=MARKERS[kind], label=kind,
                              markevery=max(1, len(numbers) // 12))  # fmt: skip
                axis.set_ylim(bottom=0)
                _mark_range(axis, max(max(values[kind]) for kind in PAIRS))
                whole_ticks(axis)
            axes[0, column].set_title(_title(norm, layers))
            axes[1, column].set_xlabel("Layer")
        axes[0, 0].set_ylabel("Mean squared distance\n(APSD)")
        axes[1, 0].set_ylabel("Mean distance\n(APD)")
        _legend(figure, axes[0, 0], model)
        return figure


def distributions(found: dict[str, Layers], model: str) -> "Figure | None":
    """Draw how the distances of connected (top) and of random pairs (below) are distributed, by layer."""
    if not found:
        return None
    with style():
        figure = new_figure(TWO_COLUMNS, 5.6)
        axes = figure.subplots(2, len(found), squeeze=False)
        for column, (norm, layers) in enumerate(found.items()):
            for row, kind in enumerate(PAIRS):
                _ridges(axes[row, column], layers, kind)
                _mark_range(axes[row, column], layers.edges[kind][-1])
            axes[0, column].set_title(_title(norm, layers))
            axes[1, column].set_xlabel("Distance of a pair")
        for row, kind in enumerate(PAIRS):
            axes[row, 0].set_ylabel(f"Layer ({kind} pairs)")
        figure.suptitle(f"{model} on Cora")
        return figure


def _ridges(axis: "Axes", layers: Layers, kind: str) -> None:
    """Draw a histogram for some of the layers, the first on top, each as high as there is room."""
    from matplotlib.patches import StepPatch

    histograms, edges = layers.histograms[kind], layers.edges[kind]
    step = -(-len(histograms) // RIDGES)
    shown = list(range(0, len(histograms), step))
    for height, number in enumerate(reversed(shown)):
        counts = histograms[number]
        levels = [height + 0.92 * count / max(counts) for count in counts]
        # Not axis.stairs, which looks at every corner for limits that are set below.
        axis.add_artist(StepPatch(levels, edges, baseline=height, color=COLORS[kind], linewidth=0))
        axis.axhline(height, color="#dddddd", linewidth=0.8, zorder=0)
    axis.set_yticks([row + 0.4 for row in range(len(shown))], [str(row + 1) for row in reversed(shown)])
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, len(shown)))
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(False)


def _mark_range(axis: "Axes", largest: float) -> None:
    """State the largest value of a panel, since every panel has a range of its own."""
    axis.annotate(f"up to {largest:.2g}", (0.97, 0.93), xycoords="axes fraction", ha="right", va="top",
                  fontsize=7, color="#555555")  # fmt: skip


def _title(norm: str, layers: Layers) -> str:
    accuracy = "" if layers.test_accuracy is None else f"\n(accuracy {layers.test_accuracy:.3f})"
    return f"{NORMS[norm]}{accuracy}"


def _legend(figure: "Figure", axis: "Axes", model: str) -> None:
    handles, names = axis.get_legend_handles_labels()
    labels = [f"{name} pairs" for name in names]
    figure.legend(handles, labels, loc="outside upper center", ncols=2, title=f"{model} on Cora")


def write_tensorboard(found: dict[str, Layers], model: str, folder: Any) -> None:
    """Write means and histograms as TensorBoard shows them, the layer as the step."""
    from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]

    for norm, layers in found.items():
        with SummaryWriter(f"{folder}/{model}-{norm}") as writer:
            for kind in PAIRS:
                for number, counts in enumerate(layers.histograms[kind]):
                    writer.add_scalar(f"apd_{kind}", layers.apd[kind][number], number + 1)
                    writer.add_scalar(f"apsd_{kind}", layers.apsd[kind][number], number + 1)
                    writer.add_histogram_raw(
                        f"distance_{kind}",
                        min=layers.edges[kind][0],
                        max=layers.edges[kind][-1],
                        num=sum(counts),
                        sum=layers.apd[kind][number] * sum(counts),
                        sum_squares=layers.apsd[kind][number] * sum(counts),
                        bucket_limits=layers.edges[kind][1:],
                        bucket_counts=counts,
                        global_step=number + 1,
                    )
