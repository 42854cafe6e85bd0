"""The figures of accuracy and loss: against depth (Figures 1, 3, 4 and their twins) and as bar charts."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from pairnorm.data import features_after, load
from pairnorm.nn import pair_norm, propagation
from pairnorm.paper.experiments import Experiment, Place
from pairnorm.paper.results import Results, Summary, best
from pairnorm.paper.tables import TITLES
from pairnorm.plotting import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    NORMALISED,
    ORANGE,
    PARTS,
    PLAIN,
    VERMILLION,
    new_figure,
    style,
    whole_ticks,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLASSES = ("Neural_Networks", "Theory", "Genetic_Algorithms")
COLOURS = dict(zip(CLASSES, (BLUE, ORANGE, GREEN), strict=True))
SMOOTHING = 2
SPREAD = 0.35
"""Standard deviation of a coordinate before PairNorm: small enough that rescaling shows."""


def steps() -> tuple[dict[str, Tensor], Tensor]:
    """Return the points before PairNorm, centred, and rescaled, each [nodes, 2], and their classes.

    The points are Cora's papers of three fields after two convolutions. Their coordinates say how much their
    words resemble those of the training papers of the first and of the last field.
    """
    graph = load("cora")
    values = features_after(graph).values.to_dense()
    numbers = [list(graph.class_names).index(name) for name in CLASSES]
    centres = [values[graph.train & (graph.labels == number)].mean(0) for number in numbers]
    plane = values @ torch.stack([centres[0], centres[-1]]).T
    matrix = propagation(graph.adjacency)
    for _ in range(SMOOTHING):
        plane = (matrix @ plane.unsqueeze(1)).squeeze(1)
    chosen = torch.isin(graph.labels, torch.tensor(numbers))
    plane = plane[chosen]
    before = SPREAD * plane / plane.std(0)
    centred = before - before.mean(0)
    points = {"graph convolution": before, "centred": centred, "rescaled": pair_norm(before, 1.0, "PN")}
    labels = torch.tensor([numbers.index(int(label)) for label in graph.labels[chosen]])
    return points, labels


def figure2() -> "Figure":
    """Draw the input of PairNorm, then the same points centred and rescaled."""
    points, labels = steps()
    with style():
        figure = new_figure(10.2, 4.3)
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        titles = (
            r"output of graph convolution, $\tilde{x}_i$",
            r"centred, $\tilde{x}^c_i$",
            r"rescaled, $\dot{x}_i$, with $s = 1$",
        )
        for axis, title, plane in zip(axes, titles, points.values(), strict=True):
            axis.axhline(0, color="#aaaaaa", linewidth=0.8)
            axis.axvline(0, color="#aaaaaa", linewidth=0.8)
            for number, name in enumerate(CLASSES):
                some = plane[labels == number]
                axis.plot(
                    some[:, 0].numpy(),
                    some[:, 1].numpy(),
                    linestyle="none",
                    marker=("o", "^", "s")[number],
                    markersize=2.6,
                    markeredgewidth=0,
                    alpha=0.6,
                    color=COLOURS[name],
                    label=name.replace("_", " ").capitalize(),
                )
            mean = plane.mean(0)
            axis.plot(*mean.tolist(), marker="X", markersize=9, color="black", markeredgecolor="white",
                      linestyle="none", label="mean")  # fmt: skip
            axis.set_title(title)
            axis.set_aspect("equal")
            axis.grid(False)
            axis.set(xlim=(-2.1, 2.7), ylim=(-1.7, 3.1))
        turn = torch.linspace(0, 2 * torch.pi, 200)
        axes[2].plot(
            turn.cos().numpy(), turn.sin().numpy(), "k:", linewidth=1.4, label="root mean square length"
        )
        handles, names = axes[2].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=5, markerscale=1.6)
        return figure


Curve = Sequence[Summary]
DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 8,
    "color": GREEN,
    "markeredgecolor": "black",
    "linestyle": "none",
}
Line = Literal["dashed", "solid"]


def figure1(results: Results, experiment: Experiment, dataset: str) -> "Figure | None":
    """Draw SGC against depth, with PairNorm solid: losses, accuracies, row-diff, col-diff.

    With PairNorm the scale is the same at all depths, as row-diff grows with it.
    """
    curves = {
        line: results.by_depth(experiment, Place(dataset, method, 0), one_scale=True)
        for method, line in (("SGC", PLAIN), ("SGC-PN", NORMALISED))
    }
    if not any(curves.values()):
        return None
    with style():
        figure = new_figure(12.6, 3.3)
        axes = figure.subplots(1, 4)
        for line, curve in curves.items():
            _draw_parts(axes[0], curve, "loss", line)
            _draw_parts(axes[1], curve, "accuracy", line)
            for axis, name in ((axes[2], "row_diff"), (axes[3], "col_diff")):
                _draw(axis, curve, name, GREY, line, "o")
        for axis, title in zip(axes, ("Loss", "Accuracy", "Row-diff", "Col-diff"), strict=True):
            axis.set_title(title)
            axis.set_xlabel("Layers")
            whole_ticks(axis)
        for axis in axes[2:]:
            _logarithmic_if_wide(axis)
        _legend(figure, f"SGC on {TITLES[dataset]}")
        return figure


def against_depth(
    results: Results,
    experiment: Experiment,
    dataset: str,
    models: Sequence[str],
    percent: int,
    mark_best: bool = False,
) -> "Figure | None":
    """Draw accuracies against depth, a panel for each model, with PairNorm solid (Figures 3 and 4)."""
    curves = {
        (model, line): results.by_depth(experiment, Place(dataset, method, percent))
        for model in models
        for method, line in ((model, PLAIN), (f"{model}-PN", NORMALISED))
        if method in experiment.methods
    }
    models = [model for model in models if any(curves.get((model, line)) for line in (PLAIN, NORMALISED))]
    if not models:
        return None
    with style():
        figure = new_figure(0.6 + 4.0 * len(models), 3.9 if len(models) > 1 else 4.4)
        axes = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        for axis, model in zip(axes, models, strict=True):
            for line in (PLAIN, NORMALISED):
                _draw_parts(axis, curves.get((model, line), ()), "accuracy", line)
            # Last, so that no line covers a diamond.
            for line in (PLAIN, NORMALISED):
                if mark_best and (curve := curves.get((model, line))):
                    found = best(curve)
                    axis.plot(found.spec.depth, found.mean("test_accuracy"), zorder=5, **DIAMOND)
            axis.set_title(model)
            axis.set_xlabel("Layers")
            whole_ticks(axis)
        axes[0].set_ylabel("Accuracy")
        missing = f", {percent}% of vectors missing" if percent else ""
        _legend(figure, f"{TITLES[dataset]}{missing}", diamond=mark_best)
        return figure


def bars(results: Results, experiment: Experiment, model: str) -> "Figure | None":
    """Draw test accuracy (left) and chosen depth (right) by missing rate, a row of panels for each graph."""
    methods = [name for name in experiment.methods if name.split("-")[0] == model]
    found = {
        place: chosen
        for place in experiment.places()
        if place.method in methods and (chosen := results.chosen(experiment, place)) is not None
    }
    shown = [dataset for dataset in experiment.datasets if any(place.dataset == dataset for place in found)]
    percents = [
        percent for percent in experiment.missing if any(place.missing_percent == percent for place in found)
    ]
    if not shown:
        return None
    with style():
        from matplotlib.patches import Patch

        figure = new_figure(11.5, 0.9 + 2.5 * len(shown))
        axes = figure.subplots(len(shown), 2, squeeze=False, sharex=True)
        width = 0.8 / len(methods)
        for (left, right), dataset in zip(axes, shown, strict=True):
            for number, method in enumerate(methods):
                offset = (number - (len(methods) - 1) / 2) * width
                here = {
                    position: found[place]
                    for position, percent in enumerate(percents)
                    if (place := Place(dataset, method, percent)) in found
                }
                where = [position + offset for position in here]
                looks = _bar_looks(method)
                left.bar(where, [chosen.accuracy for chosen in here.values()], width, **looks)
                right.bar(where, [chosen.layers for chosen in here.values()], width, **looks)
            left.set_title(TITLES[dataset], loc="left")
            left.set_ylabel("Test accuracy")
            right.set_ylabel("Layers chosen")
            right.yaxis.get_major_locator().set_params(integer=True)
        for axis in axes[-1]:
            axis.set_xticks(range(len(percents)), [f"{percent}%" for percent in percents])
            axis.set_xlabel("Vectors missing")
        handles = [Patch(**_bar_looks(method), label=method) for method in methods]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(methods))
        return figure


def _draw_parts(axis: "Axes", curve: Curve, metric: str, line: Line) -> None:
    for part, colour in PARTS.items():
        _draw(axis, curve, f"{part}_{metric}", colour, line, MARKERS[part])


def _draw(axis: "Axes", curve: Curve, name: str, colour: str, line: Line, marker: str) -> None:
    depths, means = [found.spec.depth for found in curve], [found.mean(name) for found in curve]
    axis.plot(depths, means, color=colour, linestyle=line, marker=marker, markeredgewidth=1.0,
              markerfacecolor="white" if line == PLAIN else colour)  # fmt: skip


def _logarithmic_if_wide(axis: "Axes") -> None:
    values = [float(value) for line in axis.lines for value in line.get_ydata()]  # type: ignore[union-attr, arg-type]
    positive = [value for value in values if isfinite(value) and value > 0]
    if positive and max(positive) > 20 * min(positive):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)


def _legend(figure: "Figure", title: str, diamond: bool = False) -> None:
    """Put one legend above all panels: colours tell the parts, dashes whether PairNorm is at work."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = [
        Line2D([], [], color=colour, marker=MARKERS[part], label=part) for part, colour in PARTS.items()
    ]
    handles.append(Line2D([], [], color="black", linestyle=PLAIN, label="without PairNorm"))
    handles.append(Line2D([], [], color="black", linestyle=NORMALISED, label="with PairNorm"))
    if diamond:
        handles.append(Line2D([], [], label="best validation", **DIAMOND))
    # Side by side where there is room, else the parts beside the rest.
    columns = len(handles) if figure.get_figwidth() > 1.4 * len(handles) else 2
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, title=title, handlelength=2.6)


def _bar_looks(method: str) -> dict[str, Any]:
    """Return colour by skip; filled with PairNorm, hatched without."""
    colour = VERMILLION if "t1" in method else ORANGE if "t2" in method else BLUE
    if method.endswith("-PN"):
        return {"facecolor": colour, "edgecolor": colour, "linewidth": 1}
    return {"facecolor": "white", "edgecolor": colour, "linewidth": 1, "hatch": "//////"}
