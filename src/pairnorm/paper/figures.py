"""The figures: how each is drawn, against depth or as bars, and which of them belong to an experiment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from pairnorm.base import plotting
from pairnorm.data import features_after, load
from pairnorm.nn import normalized_adjacency, pair_norm
from pairnorm.paper.evidence import PAIRS, Layers, studied
from pairnorm.sweep.grid import Experiment, Summary, TableCell, best
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.significance import mean_interval
from pairnorm.sweep.tables import TITLES
from pairnorm.train import Spec

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLASSES = {"Neural_Networks": plotting.BLUE, "Theory": plotting.ORANGE, "Genetic_Algorithms": plotting.GREEN}
"""Fields of the papers in Figure 2, and their colors."""
SMOOTHING = 2
SPREAD = 0.35
"""Standard deviation of a coordinate before PairNorm: small enough that rescaling shows."""


def pair_norm_steps() -> tuple[dict[str, Tensor], Tensor]:
    """Return the points of Figure 2 before PairNorm, centered, and rescaled, [nodes, 2], and their classes.

    The points are Cora's papers of three fields after two convolutions. Their coordinates say how much their
    words resemble those of the training papers of the first and of the last field.
    """
    graph = load("cora")
    # In float64, for which no kernel, and so no compiler, is loaded.
    values = features_after(graph).values.to_dense().double()
    numbers = [list(graph.class_names).index(name) for name in CLASSES]
    centers = [values[graph.train & (graph.labels == number)].mean(0) for number in numbers]
    plane = values @ torch.stack([centers[0], centers[-1]]).T
    matrix = normalized_adjacency(graph.adjacency)
    for _ in range(SMOOTHING):
        plane = (matrix @ plane.unsqueeze(1)).squeeze(1)
    chosen = torch.isin(graph.labels, torch.tensor(numbers))
    plane = plane[chosen]
    before = SPREAD * plane / plane.std(0)
    centered = before - before.mean(0)
    points = {"graph convolution": before, "centered": centered, "rescaled": pair_norm(before, 1.0, "PN")}
    labels = torch.tensor([numbers.index(int(label)) for label in graph.labels[chosen]])
    return points, labels


def figure2() -> "Figure":
    """Draw the input of PairNorm, then the same points centered and rescaled."""
    points, labels = pair_norm_steps()
    # A PDF has ten digits after the point; processors disagree on the last.
    points = {name: plane.round(decimals=6) for name, plane in points.items()}
    titles = (r"output of graph convolution, $\tilde{x}_i$", r"centered, $\tilde{x}^c_i$",
              r"rescaled, $\dot{x}_i$, with $s = 1$")  # fmt: skip
    with plotting.style():
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 3.1)
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for axis, title, plane in zip(axes, titles, points.values(), strict=True):
            axis.axhline(0, color="#aaaaaa", linewidth=0.8)
            axis.axvline(0, color="#aaaaaa", linewidth=0.8)
            for number, ((name, color), marker) in enumerate(zip(CLASSES.items(), "o^s", strict=True)):
                axis.plot(*plane[labels == number].T.numpy(), linestyle="none", marker=marker, markersize=1.8,
                          markeredgewidth=0, alpha=0.6, color=color,
                          label=name.replace("_", " ").capitalize())  # fmt: skip
            axis.plot(*plane.mean(0).tolist(), marker="X", markersize=7, color="black", linestyle="none",
                      markeredgecolor="white", label="mean")  # fmt: skip
            axis.set_title(title)
            axis.set_aspect("equal")
            axis.grid(False)
            axis.set(xlim=(-2.1, 2.7), ylim=(-1.7, 3.1))
        turn = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
        axes[2].plot(turn.cos(), turn.sin(), "k:", linewidth=1.4, label="root mean square length")
        handles, names = axes[2].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=5, markerscale=1.6)
        return figure


Curve = Sequence[Summary]
DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 6, "color": plotting.GREEN,
                           "markeredgecolor": "black", "linestyle": "none"}  # fmt: skip
Line = Literal["dashed", "solid"]
LINE_COLORS: dict[Line, str] = {plotting.PLAIN: plotting.VERMILLION, plotting.NORMALIZED: plotting.BLUE}


def figure1(results: ResultIndex, experiment: Experiment, dataset: str) -> "Figure | None":
    """Draw SGC against depth, with PairNorm solid: losses, accuracies, row-diff, col-diff.

    With PairNorm the scale is the same at all depths, as row-diff grows with it.
    """
    curves = {
        line: results.by_depth(experiment, TableCell(dataset, method, 0), one_scale=True)
        for method, line in (("SGC", plotting.PLAIN), ("SGC-PN", plotting.NORMALIZED))
    }
    if not any(curves.values()):
        return None
    with plotting.style():
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 4.6)
        axes = figure.subplots(2, 2).ravel()
        for line, curve in curves.items():
            _draw_parts(axes[0], curve, "loss", line)
            _draw_parts(axes[1], curve, "accuracy", line)
            for axis, name in ((axes[2], "row_diff"), (axes[3], "col_diff")):
                _draw(axis, curve, name, plotting.GRAY, line, "o")
        for axis, title in zip(axes, ("Loss", "Accuracy", "Row-diff", "Col-diff"), strict=True):
            axis.set_title(title)
            axis.set_xlabel("Layers")
            plotting.use_integer_ticks(axis)
        for axis in axes[2:]:
            _logarithmic_if_wide(axis)
        _legend(figure, f"SGC on {TITLES[dataset]}")
        return figure


def against_depth(
    results: ResultIndex,
    experiment: Experiment,
    dataset: str,
    models: Sequence[str],
    percent: int,
    test_only: bool = False,
) -> "Figure | None":
    """Draw accuracies against depth, a panel for each model, with PairNorm solid (Figures 3 and 4).

    With ``test_only``, diamonds mark the depths that validation selects.
    """
    curves = {
        (model, line): results.by_depth(experiment, TableCell(dataset, model + suffix, percent))
        for model in models
        for suffix, line in zip(("", "-PN"), LINE_COLORS, strict=True)
        if model + suffix in experiment.methods
    }
    models = [model for model in models if any(curves.get((model, line)) for line in LINE_COLORS)]
    if not models:
        return None
    with plotting.style():
        size = (plotting.TWO_COLUMNS, 2.8) if len(models) > 1 else (plotting.ONE_COLUMN, 3.0)
        figure = plotting.new_figure(*size)
        axes = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for axis, model in zip(axes, models, strict=True):
            for line, color in LINE_COLORS.items():
                curve = curves.get((model, line), ())
                if not test_only:
                    _draw_parts(axis, curve, "accuracy", line)
                elif curve:
                    _draw(axis, curve, "test_accuracy", color, line, "o")
                    top = best(curve)
                    axis.plot(top.spec.depth, top.mean("test_accuracy"), zorder=5, **DIAMOND)
            axis.set_title(model)
            axis.set_xlabel("Layers")
            plotting.use_integer_ticks(axis)
        axes[0].set_ylabel("Test accuracy" if test_only else "Accuracy")
        missing = f", {percent}% of vectors missing" if percent else ""
        _legend(figure, f"{TITLES[dataset]}{missing}", test_only=test_only)
        return figure


def bars(results: ResultIndex, experiment: Experiment, model: str) -> "Figure | None":
    """Draw test accuracy (left) and chosen depth (right) by missing rate, a row of panels for each graph."""
    methods = [name for name in experiment.methods if name.split("-")[0] == model]
    cells = [cell for cell in experiment.cells() if cell.method in methods]
    selected = {cell: chosen for cell in cells if (chosen := results.chosen(experiment, cell)) is not None}
    if not selected:
        return None
    datasets = list(dict.fromkeys(cell.dataset for cell in selected))
    percents = [rate for rate in experiment.missing if any(cell.missing_percent == rate for cell in selected)]
    with plotting.style():
        from matplotlib.patches import Patch

        figure = plotting.new_figure(plotting.TWO_COLUMNS, 0.9 + 1.5 * len(datasets))
        axes = figure.subplots(len(datasets), 2, squeeze=False, sharex=True)
        width = 0.8 / len(methods)
        for (left, right), dataset in zip(axes, datasets, strict=True):
            for number, method in enumerate(methods):
                offset, looks = (number - (len(methods) - 1) / 2) * width, _bar_style(method)
                here = {
                    position + offset: selected[cell]
                    for position, percent in enumerate(percents)
                    if (cell := TableCell(dataset, method, percent)) in selected
                }
                left.bar([*here], [chosen.accuracy for chosen in here.values()], width, **looks)
                runs = [list(chosen.best.values("test_accuracy").values()) for chosen in here.values()]
                if ends := [mean_interval(values) for values in runs]:
                    left.vlines([*here], *zip(*ends, strict=True), color="black", linewidth=0.6)
                right.bar([*here], [chosen.layers for chosen in here.values()], width, **looks)
            left.set_title(TITLES[dataset], loc="left")
            left.set_ylabel("Test accuracy")
            right.set_ylabel("Layers chosen")
            right.yaxis.get_major_locator().set_params(integer=True)
        for axis in axes[-1]:
            axis.set_xticks(range(len(percents)), [f"{percent}%" for percent in percents])
            axis.set_xlabel("Vectors missing")
        handles = [Patch(**_bar_style(method), label=method) for method in methods]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(methods))
        return figure


def _draw_parts(axis: "Axes", curve: Curve, metric: str, line: Line) -> None:
    for part, color in plotting.PARTS.items() if curve else ():
        _draw(axis, curve, f"{part}_{metric}", color, line, plotting.MARKERS[part])


def _draw(axis: "Axes", curve: Curve, name: str, color: str, line: Line, marker: str) -> None:
    depths, means = [point.spec.depth for point in curve], [point.mean(name) for point in curve]
    axis.plot(depths, means, color=color, linestyle=line, marker=marker, markeredgewidth=0.8,
              markerfacecolor="white" if line == plotting.PLAIN else color)  # fmt: skip
    if name.startswith("test_"):
        low, high = zip(*(mean_interval(list(point.values(name).values())) for point in curve), strict=True)
        axis.fill_between(depths, low, high, color=color, alpha=0.18, linewidth=0)


def _logarithmic_if_wide(axis: "Axes") -> None:
    values = [float(value) for line in axis.lines for value in line.get_ydata()]  # type: ignore[union-attr, arg-type]
    positive = [value for value in values if isfinite(value) and value > 0]
    if positive and max(positive) > 20 * min(positive):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)


def _legend(figure: "Figure", title: str, test_only: bool = False) -> None:
    """Put one legend above all panels: colors show the parts, dashes the models without PairNorm."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = [
        Line2D([], [], color=color, marker=plotting.MARKERS[part], label=part)
        for part, color in ({} if test_only else plotting.PARTS).items()
    ]
    for line, label in ((plotting.PLAIN, "without PairNorm"), (plotting.NORMALIZED, "with PairNorm")):
        color = LINE_COLORS[line] if test_only else "black"
        handles.append(Line2D([], [], color=color, linestyle=line, label=label))
    if test_only:
        handles.append(Line2D([], [], label="selected by validation", **DIAMOND))
    columns = len(handles) if figure.get_figwidth() > 1.2 * len(handles) else 2
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, title=title, handlelength=2.6)


def _bar_style(method: str) -> dict[str, Any]:
    """Return the style of a method's bars: the color shows its skip, the filling PairNorm."""
    color = plotting.VERMILLION if "t1" in method else plotting.ORANGE if "t2" in method else plotting.BLUE
    if method.endswith("-PN"):
        return {"facecolor": color, "edgecolor": color, "linewidth": 1}
    return {"facecolor": "white", "edgecolor": color, "linewidth": 1, "hatch": "//////"}


NORMS = {"none": "without PairNorm", "PN": "PairNorm", "PN-SI": "PairNorm-SI"}
PAIR_STYLES: dict[str, dict[str, Any]] = {
    "connected": {"color": plotting.VERMILLION, "marker": "s"},
    "random": {"color": plotting.BLUE, "marker": "o"},
}
MAX_RIDGES = 10
DISTANCE_LABELS = ("Mean squared distance\n(APSD)", "Mean distance\n(APD)",
                   *(f"Layer ({kind} pairs)" for kind in PAIRS))  # fmt: skip


@plotting.style()
def case_study(by_norm: Mapping[str, Layers], model: str) -> "Figure | None":
    """Draw distances of connected and of random pairs by layer, in a column for each norm.

    The rows are APSD, APD, and how the distances are distributed; every panel has a range of its own.
    """
    if not by_norm:
        return None
    figure = plotting.new_figure(plotting.TWO_COLUMNS, 8.8)
    axes = figure.subplots(4, len(by_norm), squeeze=False)
    for (norm, layers), column in zip(by_norm.items(), axes.T, strict=True):
        for axis, values in zip(column, (layers.apsd, layers.apd), strict=False):
            for kind, looks in PAIR_STYLES.items():
                numbers = range(1, len(values[kind]) + 1)
                axis.plot(numbers, values[kind], label=f"{kind} pairs", **looks,
                          markevery=max(1, len(numbers) // 12))  # fmt: skip
            axis.set_ylim(bottom=0)
            plotting.use_integer_ticks(axis)
        for axis, kind in zip(column[2:], PAIRS, strict=True):
            _ridges(axis, layers, kind)
        accuracy = "" if layers.test_accuracy is None else f"\n(accuracy {layers.test_accuracy:.3f})"
        column[0].set_title(f"{NORMS[norm]}{accuracy}")
        column[1].set_xlabel("Layer")
        column[3].set_xlabel("Distance of a pair")
    for axis, name in zip(axes[:, 0], DISTANCE_LABELS, strict=True):
        axis.set_ylabel(name)
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=2, title=f"{model} on Cora")
    return figure


def _ridges(axis: "Axes", layers: Layers, kind: str) -> None:
    """Draw histograms of at most ``MAX_RIDGES`` layers as rows, the first layer on top."""
    from matplotlib.patches import StepPatch

    histograms, edges = layers.histograms[kind], layers.edges[kind]
    step = -(-len(histograms) // MAX_RIDGES)
    shown = list(range(0, len(histograms), step))
    for height, number in enumerate(reversed(shown)):
        counts = histograms[number]
        levels = [height + 0.92 * count / max(counts) for count in counts]
        # Not axis.stairs, which looks at every corner for limits that are set below.
        axis.add_artist(
            StepPatch(levels, edges, baseline=height, color=PAIR_STYLES[kind]["color"], linewidth=0)
        )
        axis.axhline(height, color="#dddddd", linewidth=0.8, zorder=0)
    axis.set_yticks([row + 0.4 for row in range(len(shown))], [str(row + 1) for row in reversed(shown)])
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, len(shown)))
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(False)


Drawing = tuple[str, str, "Figure | None"]
"""Name of the file, caption, and the figure, None where nothing has been run."""
MODELS = {"table1": "SGC", "table2": "GCN", "table3": "GAT"}
"""The model that a table of the paper is about."""


def figure2_drawing() -> Iterator[Drawing]:
    """Yield Figure 2 with its caption; it needs no experiment."""
    yield "figure2", "Figure 2. The two steps of PairNorm, on papers of Cora.", figure2()


def drawings(
    experiment: Experiment, results: ResultIndex, layers: Mapping[Spec, Layers]
) -> Iterator[Drawing]:
    """Draw the figures of an experiment."""
    name = experiment.name
    if name in PER_GRAPH:  # the paper has one graph in its text and the others in its appendix
        draw, caption = PER_GRAPH[name]
        for dataset in experiment.datasets:
            number = name[-1] + ("" if dataset == "cora" else ", appendix")
            caption_ = f"Figure {number}. {caption.format(TITLES[dataset])}"
            yield f"{name}-{dataset}", caption_, draw(results, experiment, dataset)
    elif name == "bars":
        runs = ", ".join(f"{count} at {percent}%" for percent, count in experiment.missing.items())
        for model in ("GCN", "GAT"):
            caption = (
                f"{model} with PairNorm-SI (PN) and skip connections over one layer (t1) or two (t2) by "
                f"missing rate: test accuracy with 95% intervals, and chosen depth. Runs: {runs}; a single "
                "run has no interval."
            )
            yield f"bars-{model.lower()}", caption, bars(results, experiment, model)
    elif name == "case-study":
        deep = "a trained 12-layer GCN (without its last layer, the logits)"
        for model, subject in (("SGC", "SGC"), ("GCN", deep)):
            caption = (
                f"Distances of node pairs by layer in {subject}: means, and below them distributions; every "
                "panel has its own range."
            )
            figure = case_study(studied(layers, experiment, model), model)
            yield f"case-study-{model.lower()}", caption, figure


PER_GRAPH: dict[str, tuple[Callable[[ResultIndex, Experiment, str], "Figure | None"], str]] = {
    "figure1": (
        figure1,
        "SGC on {} without PairNorm (dashed) and with it (solid), split 3 / 10 / 87%; test curves with 95% "
        "intervals over runs.",
    ),
    "figure3": (
        partial(against_depth, models=("GCN", "GAT"), percent=0),
        "GCN and GAT on {} without PairNorm-SI (dashed) and with it (solid); test curves with 95% intervals "
        "over runs.",
    ),
    "figure4": (
        partial(against_depth, models=("SGC", "GCN", "GAT"), percent=100, test_only=True),
        "Test accuracy on {} with all vectors outside the training set missing, without PairNorm (dashed) "
        "and with it (solid), with 95% intervals over runs; diamonds mark depths selected by validation.",
    ),
}
