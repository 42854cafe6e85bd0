"""The figures of the case study: distances of node pairs by layer, their means and their distributions."""

from typing import TYPE_CHECKING, Any

from pairnorm.paper.experiment import Experiment
from pairnorm.paper.layers import PAIRS, Layers
from pairnorm.paper.style import BLUE, VERMILLION, new_figure, style, whole_ticks
from pairnorm.train import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NORMS = {"none": "without PairNorm", "PN": "PairNorm", "PN-SI": "PairNorm-SI"}
COLOURS = {"connected": VERMILLION, "random": BLUE}
MARKERS = {"connected": "s", "random": "o"}
RIDGES = 10


def studied(layers: dict[Spec, Layers], experiment: Experiment, model: str) -> dict[str, Layers]:
    """Return what was measured of a model, by norm."""
    specs = [spec for place in experiment.places() for spec in experiment.candidates(place)]
    return {spec.norm: layers[spec] for spec in specs if spec.model == model and spec in layers}


def mean_distances(found: dict[str, Layers], model: str) -> "Figure | None":
    """Draw APSD (top) and APD (below) of connected and of random pairs by layer, a column for each norm."""
    if not found:
        return None
    with style():
        figure = new_figure(0.8 + 3.5 * len(found), 5.4)
        axes = figure.subplots(2, len(found), squeeze=False, sharex=True)
        for column, (norm, layers) in enumerate(found.items()):
            for row, values in enumerate((layers.apsd, layers.apd)):
                axis = axes[row, column]
                for kind in PAIRS:
                    numbers = range(1, len(values[kind]) + 1)
                    axis.plot(numbers, values[kind], color=COLOURS[kind], marker=MARKERS[kind], label=kind,
                              markevery=max(1, len(numbers) // 12))  # fmt: skip
                axis.set_ylim(bottom=0)
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
        figure = new_figure(0.8 + 3.5 * len(found), 7.2)
        axes = figure.subplots(2, len(found), squeeze=False)
        for column, (norm, layers) in enumerate(found.items()):
            for row, kind in enumerate(PAIRS):
                _ridges(axes[row, column], layers, kind)
            axes[0, column].set_title(_title(norm, layers))
            axes[1, column].set_xlabel("Distance of a pair")
        for row, kind in enumerate(PAIRS):
            axes[row, 0].set_ylabel(f"Layer ({kind} pairs)")
        figure.suptitle(f"{model} on Cora", fontsize=12)
        return figure


def _ridges(axis: "Axes", layers: Layers, kind: str) -> None:
    """Draw a histogram for some of the layers, the first on top, each as high as there is room."""
    histograms, edges = layers.histograms[kind], layers.edges[kind]
    step = -(-len(histograms) // RIDGES)
    shown = list(range(0, len(histograms), step))
    for height, number in enumerate(reversed(shown)):
        counts = histograms[number]
        levels = [height + 0.92 * count / max(counts) for count in counts]
        axis.stairs(levels, edges, baseline=height, fill=True, color=COLOURS[kind])
        axis.axhline(height, color="#dddddd", linewidth=0.8, zorder=0)
    axis.set_yticks([row + 0.4 for row in range(len(shown))], [str(row + 1) for row in reversed(shown)])
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, len(shown)))
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(False)


def _title(norm: str, layers: Layers) -> str:
    accuracy = "" if layers.test_accuracy is None else f" (accuracy {layers.test_accuracy:.3f})"
    return f"{NORMS[norm]}{accuracy}"


def _legend(figure: "Figure", axis: "Axes", model: str) -> None:
    handles, names = axis.get_legend_handles_labels()
    labels = [f"{name} pairs" for name in names]
    figure.legend(handles, labels, loc="outside upper center", ncols=2, title=f"{model} on Cora")


def write_tensorboard(found: dict[str, Layers], model: str, folder: Any) -> None:
    """Write means and histograms as TensorBoard shows them, the layer as the step.

    Args:
        found: layers by norm.
        model: the model's name, which tags begin with.
        folder: a run for each norm goes there.
    """
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
