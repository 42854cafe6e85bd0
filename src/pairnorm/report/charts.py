"""Describe charts as Plotly traces; colors are names of the stylesheet, for light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any, ClassVar, NamedTuple

from numpy.typing import ArrayLike, NDArray

from pairnorm.base.escaping import terminal

BLUE, VERMILLION, GREEN, PURPLE, GRAY, INK = (
    "--blue", "--vermillion", "--green", "--purple", "--gray", "--ink"
)  # fmt: skip
COLORS = {"train": BLUE, "validation": PURPLE, "test": VERMILLION}
NORMS = {"none": VERMILLION, "PN": BLUE, "PN-SI": GREEN, "PN-SCS": PURPLE}
SYMBOLS = {"train": "square", "validation": "triangle-up", "test": "circle"}
MAX_NAME_LENGTH, MAX_ANNOTATED_CLASSES = 22, 15
# Characters that fit under a chart side by side on a narrow screen.
MIN_WIDTH = 40


@dataclass(frozen=True)
class Chart:
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
    kind: ClassVar[str] = "chart"

    @property
    def data(self) -> Any:
        """Data for the script."""
        return {"traces": list(self.traces), "layout": self.layout, "height": self.height}


class Line(NamedTuple):
    """A line of a chart: name, points, style, and whether the legend lists it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False
    symbol: str = "circle"
    listed: bool = True


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
    form: str = ".1f",
    marks: Sequence[tuple[float, float, str]] = (),
    vertical: tuple[float, str] | None = None,
    from_zero: bool = False,
    file_name: str = "",
) -> Chart:
    """Return a line chart; ``marks`` are named points, ``vertical`` is a named dotted line."""
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": line.name,
            "showlegend": line.listed,
            "x": list(line.x),
            "y": _finite(line.y),
            "line": {"color": line.color, "dash": "dash" if line.dashed else "solid", "width": 2},
            "marker": {"color": line.color, "symbol": line.symbol, "size": 6},
            "hovertemplate": f"%{{y:{form}}}",
        }
        for line in curves
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [x_value],
            "y": [value],
            "marker": {"color": INK, "symbol": symbol, "size": 13},
            "hoverinfo": "skip",
        }
        for (x_value, value, name), symbol in zip(marks, ("star", "diamond-open"), strict=False)
    ]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x} %{{x}}"}},
        "yaxis": {"title": {"text": y}, **({"rangemode": "tozero"} if from_zero else {})},
        "hovermode": "x unified",
    }
    if vertical is not None:
        x_value, name = vertical
        layout["shapes"] = [
            {"type": "line", "x0": x_value, "x1": x_value, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": INK, "dash": "dot", "width": 1}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": x_value, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "text": name,
             "showarrow": False}
        ]  # fmt: skip
    return Chart(title, traces, layout, name=file_name)


def intervals(
    title: str, names: Sequence[str], values: Sequence[tuple[float, float, float]], x: str
) -> Chart:
    """Return a chart of values and intervals in percent, the first on top and in color."""
    rows = list(range(len(names)))
    start = max(0, 10 * floor(min(low for _, low, _ in values) / 10 - 0.5))
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [value for value, _, _ in values],
        "y": rows,
        "text": [f"{value:.1f}" for value, _, _ in values],
        "textposition": "bottom center",
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, _, high in values],
            "arrayminus": [value - low for value, low, _ in values],
            "color": GRAY,
        },
        "marker": {
            "color": [BLUE if row == 0 else GRAY for row in rows],
            "symbol": ["circle" if row == 0 else "square" for row in rows],
            "size": 10,
        },
        "customdata": [
            f"{plain(name)}: {value:.1f}%<br>95% interval {low:.1f} to {high:.1f}%"
            for name, (value, low, high) in zip(names, values, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": x}, "range": [start, 101.5], "showgrid": True},
        "yaxis": {
            "tickvals": rows,
            "ticktext": [plain(name, 30) for name in names],
            "showticklabels": False,
            "range": [len(names) - 0.5, -0.7],
            "showgrid": False,
            "zeroline": False,
        },
        "showlegend": False,
        # Names above the intervals leave the full width to the plot, also on a phone.
        "annotations": [
            {
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": row - 0.34,
                "text": plain(name, 45),
                "showarrow": False,
            }
            for row, name in enumerate(names)
        ],
    }
    return Chart(title, [trace], layout, height=110 + 56 * len(names), name="comparison")


def confusion(title: str, counts: NDArray[Any], classes: Sequence[str]) -> Chart:
    """Return a confusion matrix, a row for each true class; the shade is the share of that class."""
    share = counts / counts.sum(1, keepdims=True).clip(1)
    rows = range(len(classes))
    names = {"tickvals": list(rows), "ticktext": [plain(name, MAX_NAME_LENGTH) for name in classes]}
    trace = {
        "type": "heatmap",
        "z": share.round(4).tolist(),
        "zmin": 0,
        "zmax": 1,
        "colorscale": "--shades",
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "customdata": [
            [
                f"truly {plain(classes[true])}<br>predicted {plain(classes[predicted])}<br>"
                f"{counts[true, predicted]:,} nodes, {share[true, predicted]:.1%} of the class"
                for predicted in rows
            ]
            for true in rows
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    if len(classes) <= MAX_ANNOTATED_CLASSES:
        trace |= {"text": [[f"{count:,}" for count in row] for row in counts], "texttemplate": "%{text}"}
    layout = {
        "xaxis": {"title": {"text": "predicted"}, "showgrid": False, "zeroline": False,
                  "tickangle": _angle(classes), "ticklabeloverflow": "allow", **names},
        "yaxis": {"title": {"text": "true"}, "showgrid": False, "zeroline": False,
                  "autorange": "reversed", **names},
    }  # fmt: skip
    return Chart(title, [trace], layout, height=min(900, 200 + 34 * len(classes)), name="confusion")


def _angle(names: Sequence[str]) -> int:
    """Return 0 if names fit side by side under a chart, else the angle of rotation."""
    return 0 if len(names) * max(map(len, names), default=0) <= MIN_WIDTH else -40


def reliability(title: str, confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> Chart:
    """Return a reliability diagram: accuracy against confidence; the diagonal is ideal."""
    import numpy as np

    sure, hits = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    number = np.minimum((sure * bins).astype(int), bins - 1)
    counts = np.bincount(number, minlength=bins)
    filled = np.flatnonzero(counts)
    x, y = (100 * np.bincount(number, part, bins)[filled] / counts[filled] for part in (sure, hits))
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, 100],
        "y": [0, 100],
        "name": "ideal",
        "line": {"color": GRAY, "dash": "dot"},
        "hoverinfo": "skip",
    }
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "this model",
        "cliponaxis": False,  # the largest points are at the edge
        "x": x.round(2).tolist(),
        "y": y.round(2).tolist(),
        "line": {"color": BLUE, "width": 2},
        # The area of a point shows the number of nodes.
        "marker": {
            "color": BLUE,
            "size": (6 + 20 * np.sqrt(counts[filled] / counts.max())).round(1).tolist(),
        },
        "customdata": counts[filled].tolist(),
        "hovertemplate": "%{customdata:,} nodes, on average %{x:.1f}% confident: "
        "%{y:.1f}% are right<extra></extra>",
    }
    start = max(0, 10 * floor(min(x.min(), y.min(), 90) / 10 - 0.5)) if len(filled) else 0
    layout = {
        "xaxis": {"title": {"text": "confidence (%)"}, "range": [start, 103]},
        "yaxis": {"title": {"text": "right (%)"}, "range": [start, 103]},
    }
    return Chart(title, [diagonal, trace], layout, height=300)


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return numbers for JSON; None, a gap, for values that are not finite."""
    return [round(value, 6) if abs(value) < float("inf") else None for value in map(float, values)]
