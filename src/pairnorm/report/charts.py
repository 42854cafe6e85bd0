"""Describe charts as Plotly traces for pages, and draw them with matplotlib for Markdown and image files.

Colors are names of the stylesheet, which has a light and a dark version of each.
"""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import floor, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pairnorm.base import plotting
from pairnorm.base.errors import terminal
from pairnorm.sweep.significance import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pairnorm.classify.explanation import SmoothingMeasures

BLUE, VERMILLION, GREEN, PURPLE, GRAY, INK = (
    "--blue", "--vermillion", "--green", "--purple", "--gray", "--ink"
)  # fmt: skip
NORMS = {"none": VERMILLION, "PN": BLUE, "PN-SI": GREEN, "PN-SCS": PURPLE}
PRINTED_COLORS = {name: getattr(plotting, name[2:].upper()) for name in (*NORMS.values(), GRAY)}
PRINTED_COLORS[INK] = "#000000"
PRINTED_MARKERS = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P", "x": "X",
                   "star": "*"}  # fmt: skip
PIXELS_PER_INCH = 125
MAX_NAME_LENGTH, MAX_ANNOTATED_CLASSES = 22, 15
MAX_UNROTATED_CHARACTERS = 40
"""Names of classes that are longer together do not fit side by side under a chart on a narrow screen."""


class Block:
    """A part of a section; templates show each kind in its own way."""

    @property
    def kind(self) -> str:
        """Its name in templates."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Chart(Block):
    """A chart.

    Args:
        title: what it shows, also for screen readers.
        traces: of Plotly.
        layout: of Plotly; the script adds fonts, colors and margins.
        height: in pixels.
        name: of the PNG file next to Markdown, without suffix; charts in a row with one name share a file.
            Empty: not in Markdown.
    """

    title: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 340
    name: str = ""

    @property
    def data(self) -> Any:
        """Data for the script."""
        return {"traces": list(self.traces), "layout": self.layout, "height": self.height}


class Line(NamedTuple):
    """A line of a chart: name, points and style."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False
    symbol: str = "circle"


def plain(text: str, longest: int | None = None) -> str:
    """Escape a text for Plotly, which interprets tags, entities and formulas.

    >>> plain("<b>x</b>")
    '&lt;b&gt;x&lt;/b&gt;'
    """
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return html.escape(terminal(text), quote=False).replace("$", "&#36;")  # no formula


def lines(
    title: str,
    curves: Sequence[Line],
    x: str,
    y: str,
    star: tuple[float, float] | None = None,
    vertical: tuple[float, str] | None = None,
    from_zero: bool = False,
    file_name: str = "",
) -> Chart:
    """Return a line chart; ``star`` is a marked point, ``vertical`` is a named dotted line."""
    traces = []
    for line in curves:
        y_values = [round(value, 6) if isfinite(value) else None for value in map(float, line.y)]
        trace = _scatter("lines+markers", line.x, y_values, line.color, line.symbol, 6)
        dash = {"color": line.color, "dash": "dash" if line.dashed else "solid", "width": 2}
        traces.append(trace | {"name": line.name, "line": dash, "hovertemplate": "%{y:.1f}"})
    if star is not None:
        point = _scatter("markers", star[:1], star[1:], INK, "star", 13)
        traces.append(point | {"name": "_star", "showlegend": False, "hoverinfo": "skip"})
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x} %{{x}}"}},
        "yaxis": {"title": {"text": y}, **({"rangemode": "tozero"} if from_zero else {})},
        "hovermode": "x unified",
    }
    if vertical is not None:
        x_value, name = vertical
        note = {"x": x_value, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "text": name}
        layout["shapes"] = [_vertical(x_value, {"color": INK, "dash": "dot", "width": 1})]
        layout["annotations"] = [{**note, "showarrow": False}]
    return Chart(title, traces, layout, name=file_name)


def _scatter(
    mode: str, x: Sequence[float], y: Sequence[float | None], color: Any, symbol: Any, size: Any
) -> dict[str, Any]:
    """Return a trace of lines or markers; colors, symbols and sizes may differ by point."""
    marker = {"color": color, "symbol": symbol, "size": size}
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "marker": marker}


def _vertical(x: float, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def intervals(
    title: str, names: Sequence[str], values: Sequence[tuple[float, float, float]], x: str
) -> Chart:
    """Return a chart of values with intervals in percent; the first is on top and in color."""
    styles = [(BLUE, "circle"), *[(GRAY, "square")] * (len(names) - 1)]
    hover = [
        f"{plain(name)}: {value:.1f}%<br>95% interval {low:.1f} to {high:.1f}%"
        for name, (value, low, high) in zip(names, values, strict=True)
    ]
    height = 110 + 56 * len(names)
    chart = _interval_chart(title, [plain(name, 30) for name in names], values, styles, x, hover, height)
    texts = [f"{value:.1f}" for value, _, _ in values]
    chart.traces[0].update(mode="markers+text", text=texts, textposition="bottom center")
    chart.layout["xaxis"]["range"] = [_axis_start(min(low for _, low, _ in values)), 101.5]
    chart.layout["yaxis"] |= {"showticklabels": False, "range": [len(names) - 0.5, -0.7]}
    # Names above the intervals leave the full width to the plot, also on a phone.
    left = {"x": 0, "xref": "paper", "xanchor": "left", "showarrow": False}
    notes = [{**left, "y": row - 0.34, "text": plain(name, 45)} for row, name in enumerate(names)]
    chart.layout["annotations"] = notes
    return replace(chart, name="comparison")


def differences(
    title: str,
    names: Sequence[str],
    values: Sequence[Difference],
    styles: Sequence[tuple[str, str]],
    x: str,
    file_name: str,
) -> Chart:
    """Return a chart of differences with intervals, and a line at zero; a style is (color, symbol)."""
    ends, hover = zip(
        *(((row.mean, row.low, row.high), f"{name}: {row}") for name, row in zip(names, values, strict=True)),
        strict=True,
    )
    chart = _interval_chart(title, names, ends, styles, x, hover, 90 + 24 * len(names))
    chart.layout["shapes"] = [_vertical(0, {"color": GRAY, "width": 1})]
    return replace(chart, name=file_name)


def _interval_chart(
    title: str,
    names: Sequence[str],
    ends: Sequence[tuple[float, float, float]],
    styles: Sequence[tuple[str, str]],
    x: str,
    hover: Sequence[str],
    height: int,
) -> Chart:
    """Return a chart of values with intervals, one below the other; a style is (color, symbol).

    Without an interval, of a single run, the ends are infinite.
    """
    lengths = [
        [round(length, 4) if isfinite(length) else 0 for length in (value - low, high - value)]
        for value, low, high in ends
    ]
    below, above = zip(*lengths, strict=True)
    colors, symbols = zip(*styles, strict=True)
    rows = range(len(ends))
    trace = _scatter("markers", [round(value, 4) for value, _, _ in ends], rows, colors, symbols, 9)
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "color": GRAY}
    trace |= {"error_x": bars, "customdata": list(hover), "hovertemplate": "%{customdata}<extra></extra>"}
    ticks = {"tickvals": list(rows), "ticktext": list(names), "range": [len(names) - 0.5, -0.5]}
    y = ticks | {"showgrid": False, "zeroline": False}
    layout = {"xaxis": {"title": {"text": x}, "showgrid": True}, "yaxis": y, "showlegend": False}
    return Chart(title, [trace], layout, height)


def _axis_start(smallest: float) -> float:
    """Return a multiple of 10 below the smallest percentage, for an axis that ends at 100."""
    return max(0, 10 * floor(smallest / 10 - 0.5))


def confusion(title: str, counts: NDArray[Any], classes: Sequence[str]) -> Chart:
    """Return a confusion matrix, a row for each true class; the shade is the share of that class."""
    share = counts / counts.sum(1, keepdims=True).clip(1)
    rows = range(len(classes))
    hover = [
        [
            f"truly {plain(classes[true])}<br>predicted {plain(classes[predicted])}<br>"
            f"{counts[true, predicted]:,} nodes, {share[true, predicted]:.1%} of the class"
            for predicted in rows
        ]
        for true in rows
    ]
    trace = {"type": "heatmap", "z": share.round(4).tolist(), "zmin": 0, "zmax": 1, "colorscale": "--shades",
             "showscale": False, "xgap": 1, "ygap": 1, "customdata": hover,
             "hovertemplate": "%{customdata}<extra></extra>"}  # fmt: skip
    if len(classes) <= MAX_ANNOTATED_CLASSES:
        trace |= {"text": [[f"{count:,}" for count in row] for row in counts], "texttemplate": "%{text}"}
    axis = {"tickvals": list(rows), "ticktext": [plain(name, MAX_NAME_LENGTH) for name in classes],
            "showgrid": False, "zeroline": False}  # fmt: skip
    fits = len(classes) * max(map(len, classes), default=0) <= MAX_UNROTATED_CHARACTERS
    below = {"tickangle": 0 if fits else -40, "ticklabeloverflow": "allow"}
    y = {"title": {"text": "true"}, **axis, "autorange": "reversed"}
    layout = {"xaxis": {"title": {"text": "predicted"}, **axis, **below}, "yaxis": y}
    return Chart(title, [trace], layout, height=min(900, 200 + 34 * len(classes)), name="confusion")


def reliability(title: str, confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> Chart:
    """Return a reliability diagram: accuracy against confidence; the diagonal is ideal."""
    sure, hits = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    number = np.minimum((sure * bins).astype(int), bins - 1)
    counts = np.bincount(number, minlength=bins)
    filled = np.flatnonzero(counts)
    x, y = (100 * np.bincount(number, part, bins)[filled] / counts[filled] for part in (sure, hits))
    # The area of a point shows the number of nodes.
    sizes = (6 + 20 * np.sqrt(counts[filled] / counts.max())).round(1).tolist()
    diagonal = _scatter("lines", [0, 100], [0, 100], GRAY, "circle", 6)
    diagonal |= {"name": "ideal", "line": {"color": GRAY, "dash": "dot"}, "hoverinfo": "skip"}
    trace = _scatter("lines+markers", x.round(2).tolist(), y.round(2).tolist(), BLUE, "circle", sizes)
    trace |= {
        "name": "this model",
        "cliponaxis": False,  # the largest points are at the edge
        "line": {"color": BLUE, "width": 2},
        "customdata": counts[filled].tolist(),
        "hovertemplate": "%{customdata:,} nodes, on average %{x:.1f}% confident: "
        "%{y:.1f}% are right<extra></extra>",
    }
    start = _axis_start(min(x.min(), y.min(), 90)) if len(filled) else 0
    titles = {"xaxis": "confidence (%)", "yaxis": "right (%)"}
    layout = {name: {"title": {"text": text}, "range": [start, 103]} for name, text in titles.items()}
    return Chart(title, [diagonal, trace], layout, height=300)


def smoothing_charts(rows: Sequence[SmoothingMeasures], depth: int) -> list[Chart]:
    """Return a chart per measure of oversmoothing by depth; a ``depth`` above 0 is marked."""
    charts = []
    for measure, title, unit in (
        ("row_diff", "Distance between nodes (row-diff)", "% of depth 0"),
        ("col_diff", "Distance between features (col-diff)", "% of depth 0"),
        ("effective_rank", "Directions in use (effective rank)", "directions"),
    ):
        curves = []
        for norm, name, symbol in (("none", "without", "square"), ("PN", "with PairNorm", "circle")):
            group = [row for row in rows if row.norm == norm]
            start = 1.0 if measure == "effective_rank" else max(getattr(group[0], measure), 1e-30) / 100
            values = [getattr(row, measure) / start for row in group]
            depths = [row.depth for row in group]
            curves.append(Line(name, depths, values, NORMS[norm], norm == "none", symbol))
        mark = (depth, f"depth {depth}") if depth else None
        charts.append(
            lines(title, curves, "depth", unit, vertical=mark, from_zero=True, file_name="smoothing")
        )
    return charts


@plotting.style()
def draw_charts(charts: Sequence[Chart]) -> Figure:
    """Draw charts of lines, intervals or a matrix side by side with matplotlib."""
    rows = -(-len(charts) // 2)
    height = max(2.4, charts[0].height / PIXELS_PER_INCH)
    figure = plotting.new_figure(plotting.TWO_COLUMNS, rows * height)
    axes = figure.subplots(rows, min(2, len(charts)), squeeze=False).flat
    for axis, chart in zip(axes, charts, strict=False):
        _draw(axis, chart, titled=len(charts) > 1)
    for axis in figure.axes[len(charts) :]:
        axis.remove()
    handles, names = figure.axes[0].get_legend_handles_labels()
    names = [name.replace("$", "\\$") for name in names]
    if names and len(charts) > 1:
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    elif names and charts[0].layout.get("showlegend", True):
        figure.axes[0].legend()
    return figure


def save_charts(charts: Sequence[Chart], path: Path) -> None:
    """Draw charts side by side and write them to a file of the format that its suffix names."""
    picture = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may have any letters
        draw_charts(charts).savefig(picture, dpi=150, format=path.suffix[1:])
    path.write_bytes(picture.getvalue())  # matplotlib's own writing fails oddly on a full disk


def _draw(axis: Axes, chart: Chart, titled: bool) -> None:
    for trace in chart.traces:
        if trace["type"] == "heatmap":
            _draw_matrix(axis, trace)
        elif "error_x" in trace:
            _draw_intervals(axis, trace)
        else:
            _draw_line(axis, trace)
    if titled:
        axis.set_title(chart.title, loc="left")
    for name, settings in (("x", chart.layout["xaxis"]), ("y", chart.layout["yaxis"])):
        if text := settings.get("title", {}).get("text"):
            axis.set(**{f"{name}label": text})
        if "range" in settings:
            axis.set(**{f"{name}lim": settings["range"]})
        elif settings.get("rangemode") == "tozero":
            axis.set(**{f"{name}lim": (0, None)})
        if "ticktext" in settings:
            names = [html.unescape(text) for text in settings["ticktext"]]
            turned = {"rotation": 40, "ha": "right"} if settings.get("tickangle") else {}
            ticks: Any = axis.set_xticks if name == "x" else axis.set_yticks
            ticks(settings["tickvals"], names, parse_math=False, **turned)
    notes = [note["text"] for note in chart.layout.get("annotations", ())]
    for shape in chart.layout.get("shapes", ()):
        dash = ":" if shape["line"].get("dash") else "-"
        color = PRINTED_COLORS[shape["line"]["color"]]
        axis.axvline(shape["x0"], color=color, linewidth=1, linestyle=dash, label=next(iter(notes), None))


def _draw_intervals(axis: Axes, trace: dict[str, Any]) -> None:
    errors = [trace["error_x"]["arrayminus"], trace["error_x"]["array"]]
    axis.errorbar(trace["x"], trace["y"], xerr=errors, fmt="none", color=PRINTED_COLORS[GRAY], linewidth=1.2)
    looks = zip(trace["marker"]["color"], trace["marker"]["symbol"], strict=True)
    texts = trace.get("text", [""] * len(trace["x"]))
    for x, y, (color, symbol), text in zip(trace["x"], trace["y"], looks, texts, strict=True):
        axis.plot(x, y, PRINTED_MARKERS[symbol], color=PRINTED_COLORS[color], markersize=5)
        axis.annotate(text, (x, y), (0, 5), textcoords="offset points", ha="center")
    axis.grid(visible=True, axis="x")


def _draw_line(axis: Axes, trace: dict[str, Any]) -> None:
    marker, line = trace.get("marker", {}), trace.get("line", {})
    has_line = "lines" in trace["mode"]
    axis.plot(
        trace["x"],
        trace["y"],
        color=PRINTED_COLORS[marker.get("color", line.get("color"))],
        linestyle=("--" if line.get("dash") == "dash" else "-") if has_line else "none",
        marker=PRINTED_MARKERS[marker.get("symbol", "circle")] if "markers" in trace["mode"] else "none",
        markersize=3 if has_line else 8,
        label=trace["name"],
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
