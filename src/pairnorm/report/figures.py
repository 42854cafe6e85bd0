"""Draw charts with matplotlib, for Markdown reports and image files."""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairnorm.base import plotting
from pairnorm.base.plotting import TWO_COLUMNS, new_figure, style
from pairnorm.report.charts import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "--blue": plotting.BLUE,
    "--vermillion": plotting.VERMILLION,
    "--green": plotting.GREEN,
    "--purple": plotting.PURPLE,
    "--gray": plotting.GRAY,
    "--ink": "#000000",
}
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "cross": "P",
    "x": "X",
    "star": "*",
    "diamond-open": "d",
}
PIXELS_PER_INCH = 125


@style()
def draw_charts(charts: Sequence[Chart]) -> Figure:
    """Draw charts side by side.

    Args:
        charts: with lines, intervals or a matrix.
    """
    rows = -(-len(charts) // 2)
    height = max(2.4, charts[0].height / PIXELS_PER_INCH)
    figure = new_figure(TWO_COLUMNS, rows * height)
    axes = figure.subplots(rows, min(2, len(charts)), squeeze=False).flat
    for axis, chart in zip(axes, charts, strict=False):
        _draw(axis, chart, titled=len(charts) > 1)
    for axis in figure.axes[len(charts) :]:
        axis.remove()
    if len(charts) > 1 and _legend(figure.axes[0])[1]:
        figure.legend(*_legend(figure.axes[0]), loc="outside lower center", ncols=3)
    elif charts[0].layout.get("showlegend", True) and _legend(figure.axes[0])[1]:
        figure.axes[0].legend()
    return figure


def save_charts(charts: Sequence[Chart], path: Path, **options: Any) -> None:
    """Draw charts side by side and write them to a file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may have any letters
        draw_charts(charts).savefig(path, dpi=150, **options)


def _legend(axis: Axes) -> tuple[list[Any], list[str]]:
    handles, names = axis.get_legend_handles_labels()
    return handles, [name.replace("$", "\\$") for name in names]


def _draw(axis: Axes, chart: Chart, titled: bool) -> None:
    for trace in chart.traces:
        if trace["type"] == "heatmap":
            _draw_matrix(axis, trace)
        else:
            _draw_scatter(axis, trace)
    if titled:
        axis.set_title(chart.title, loc="left")
    for name, settings in (("x", chart.layout["xaxis"]), ("y", chart.layout["yaxis"])):
        text = settings.get("title", {}).get("text")
        if text:
            axis.set(**{f"{name}label": text})
        if "range" in settings:
            axis.set(**{f"{name}lim": settings["range"]})
        elif settings.get("rangemode") == "tozero":
            axis.set(**{f"{name}lim": (0, None)})
        if "ticktext" in settings:
            names = [html.unescape(one) for one in settings["ticktext"]]
            turned = {"rotation": 40, "ha": "right"} if settings.get("tickangle") else {}
            ticks: Any = axis.set_xticks if name == "x" else axis.set_yticks
            ticks(settings["tickvals"], names, parse_math=False, **turned)
    notes = [note["text"] for note in chart.layout.get("annotations", ())]
    for shape in chart.layout.get("shapes", ()):
        dash = ":" if shape["line"].get("dash") else "-"
        color = COLORS[shape["line"]["color"]]
        axis.axvline(shape["x0"], color=color, linewidth=1, linestyle=dash, label=next(iter(notes), None))


def _draw_scatter(axis: Axes, trace: dict[str, Any]) -> None:
    marker = trace.get("marker", {})
    color = marker.get("color", trace.get("line", {}).get("color"))
    if "error_x" in trace:
        errors = [trace["error_x"]["arrayminus"], trace["error_x"]["array"]]
        axis.errorbar(trace["x"], trace["y"], xerr=errors, fmt="none", color=COLORS["--gray"], linewidth=1.2)
        for x, y, text, one, symbol in zip(
            trace["x"], trace["y"], trace["text"], color, marker["symbol"], strict=True
        ):
            axis.plot(x, y, MARKERS[symbol], color=COLORS[one], markersize=5)
            axis.annotate(text, (x, y), (0, 5), textcoords="offset points", ha="center")
        axis.grid(visible=True, axis="x")
        return
    lines = "lines" in trace["mode"]
    axis.plot(
        trace["x"],
        trace["y"],
        color=COLORS[color],
        linestyle=("--" if trace["line"].get("dash") == "dash" else "-") if lines else "none",
        marker=MARKERS[marker.get("symbol", "circle")] if "markers" in trace["mode"] else "none",
        markersize=3 if lines else 8,
        label=trace["name"] if trace.get("showlegend", True) else None,
    )


def _draw_matrix(axis: Axes, trace: dict[str, Any]) -> None:
    axis.imshow(trace["z"], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, texts in enumerate(trace.get("text", ())):
        for column, text in enumerate(texts):
            color = "white" if trace["z"][row][column] > 0.55 else "#333333"
            axis.text(column, row, text, ha="center", va="center", color=color)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
