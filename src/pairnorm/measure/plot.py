"""The figures of a Probe: measures by layer, one panel per quantity, and influence by hop."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pairnorm.base.plotting import (
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    new_figure,
    style,
    whole_ticks,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Markers tell the lines apart in gray.
_COLORS = [BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GRAY]
_MARKERS = ["o", "s", "^", "D", "v", "P"]
_TITLES = {
    "apd": "pairwise distance",
    "apsd": "pairwise squared distance",
    "col_diff": "col-diff",
    "tpsd": "TPSD",
    "dirichlet_energy": "Dirichlet energy",
    "mean_average_distance": "mean average distance",
    "effective_rank": "effective rank",
    "numerical_rank": "numerical rank",
    "dominant_subspace_distance": "distance to the dominant subspace",
    "gradient_norm": "gradient norm",
}
_NO_MEASURE = ("forward", "layer", "name", "node_type", "trial")


def draw(frame: pandas.DataFrame) -> Figure:
    """Return the figure of one forward pass: the measures of ``Probe.frame()`` over the layers."""
    panels = _panels(frame)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        figure = new_figure(0.6 + 3.6 * columns, 0.6 + 2.6 * rows)
        figure.supxlabel("graph convolutions", fontsize=10)
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items(), strict=False):
            _draw_panel(axis, frame, title, lines)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
    return figure


def _panels(frame: pandas.DataFrame) -> dict[str, dict[str, str]]:
    """Return for each title its lines, from label to column; row-diff, the APD of all pairs, goes to APD."""
    panels: dict[str, dict[str, str]] = {_TITLES["apd"]: {}, _TITLES["apsd"]: {}}
    for column in frame.columns:
        if column in _NO_MEASURE or column.endswith("_standard_error"):
            continue
        quantity, _, kind = column.partition("_")
        if column == "row_diff":
            panels[_TITLES["apd"]]["all pairs (row-diff)"] = column
        elif quantity in ("apd", "apsd"):
            panels[_TITLES[quantity]]["all pairs" if kind == "random" else kind.replace("_", " ")] = column
        else:
            panels[_TITLES.get(column, column.replace("_", " "))] = {column: column}
    return {title: lines for title, lines in panels.items() if lines}


def _draw_panel(axis: Axes, frame: pandas.DataFrame, title: str, lines: dict[str, str]) -> None:
    # All pairs first, so that one kind of pairs has one color in every panel.
    ordered = sorted(lines.items(), key=lambda line: not line[0].startswith("all pairs"))
    styles = zip(itertools.cycle(_COLORS), itertools.cycle(_MARKERS), strict=True)
    for (label, column), (color, marker) in zip(ordered, styles, strict=False):
        trials = frame.groupby("layer")[column]
        mean = trials.mean()
        every = -(-len(mean) // 20)
        axis.plot(mean.index, mean, color=color, marker=marker, markevery=every, label=label)
        axis.fill_between(mean.index, trials.min(), trials.max(), color=color, alpha=0.18, linewidth=0)
    shown = frame[list(lines.values())].to_numpy()
    if (shown > 0).all() and shown.max() > 30 * shown.min():
        axis.set_yscale("log")
    else:
        # From zero, where everything has become alike.
        lowest, top = axis.get_ylim()
        bottom = min(0.0, lowest)
        axis.set_ylim(bottom, top + 0.05 * (top - bottom))
        axis.ticklabel_format(axis="y", useMathText=True, scilimits=(-3, 5))
    axis.set_title(title, loc="left")
    whole_ticks(axis)
    if len(lines) > 1:
        axis.legend()


def draw_influence(frame: pandas.DataFrame, breadth: float) -> Figure:
    """Return the figure of ``Influence.frame()``: the shares by hop, next to those of propagation alone."""
    within = frame[frame["hop"] < float("inf")]
    with style():
        figure = new_figure(5.0, 3.2)
        axis = figure.subplots()
        axis.bar(within["hop"], within["share"], color=BLUE, width=0.7, label="the model")
        axis.plot(within["hop"], within["baseline"], color=VERMILLION, marker="o", label="propagation alone")
        axis.set_xlabel("hops")
        axis.set_title(f"share of the influence; breadth {breadth:.1f} hops", loc="left")
        axis.set_ylim(bottom=0)
        whole_ticks(axis)
        axis.legend()
    return figure
