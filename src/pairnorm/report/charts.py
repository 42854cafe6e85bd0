"""Charts for a page, as Plotly reads them; colors are names of the stylesheet, for light and dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from numpy.typing import ArrayLike, NDArray

from pairnorm.base.escaping import terminal

BLUE, VERMILLION, GREEN, PURPLE, GRAY, INK = (
    "--blue", "--vermillion", "--green", "--purple", "--gray", "--ink"
)  # fmt: skip
COLORS = {"train": BLUE, "validation": PURPLE, "test": VERMILLION}
NORMS = {"none": VERMILLION, "PN": BLUE, "PN-SI": GREEN, "PN-SCS": PURPLE}
SYMBOLS = {"train": "square", "validation": "triangle-up", "test": "circle"}
LONGEST, ANNOTATED = 22, 15
# So many characters fit under a chart side by side, also on a narrow screen.
NARROWEST = 40


@dataclass(frozen=True)
class Chart:
    """A chart to hover over.

    Args:
        title: what it shows, also for those who cannot see it.
        traces: of Plotly.
        layout: of Plotly; the script adds fonts, colors and margins.
        height: in pixels.
    """

    title: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 340
    kind: ClassVar[str] = "chart"

    @property
    def data(self) -> Any:
        """What the script needs."""
        return {"traces": list(self.traces), "layout": self.layout, "height": self.height}


class Line(NamedTuple):
    """A line of a chart: where its points are, what to call it, how it looks, whether the legend names it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False
    symbol: str = "circle"
    listed: bool = True


def plain(text: str, longest: int | None = None) -> str:
    """Return a text as Plotly will show it letter by letter: it reads tags, entities and formulas.

    >>> plain("<b>x</b>")
    '&lt;b&gt;x&lt;/b&gt;'
    """
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return html.escape(terminal(text), quote=False).replace("$", "&#36;")  # no formula


def lines(
    title: str,
    found: Sequence[Line],
    x: str,
    y: str,
    form: str = ".1f",
    marks: Sequence[tuple[float, float, str]] = (),
    upright: tuple[float, str] | None = None,
    from_zero: bool = False,
) -> Chart:
    """Draw lines; ``marks`` are points with a name, ``upright`` is a dotted line with one."""
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
        for line in found
    ]
    traces += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [place],
            "y": [value],
            "marker": {"color": INK, "symbol": symbol, "size": 13},
            "hoverinfo": "skip",
        }
        for (place, value, name), symbol in zip(marks, ("star", "diamond-open"), strict=False)
    ]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x}, "rangemode": "tozero", "unifiedhovertitle": {"text": f"{x} %{{x}}"}},
        "yaxis": {"title": {"text": y}, **({"rangemode": "tozero"} if from_zero else {})},
        "hovermode": "x unified",
    }
    if upright is not None:
        place, name = upright
        layout["shapes"] = [
            {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": INK, "dash": "dot", "width": 1}}
        ]  # fmt: skip
        layout["annotations"] = [
            {"x": place, "y": 1, "yref": "paper", "yanchor": "top", "xanchor": "left", "text": name,
             "showarrow": False}
        ]  # fmt: skip
    return Chart(title, traces, layout)


def intervals(
    title: str, names: Sequence[str], values: Sequence[tuple[float, float, float]], x: str
) -> Chart:
    """Draw a value and its interval, all in percent, for each name, the first on top and in color."""
    rows = list(range(len(names)))
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [value for value, _, _ in values],
        "y": rows,
        "text": [f"{value:.1f}" for value, _, _ in values],
        "textposition": "top center",
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
        "xaxis": {"title": {"text": x}, "range": [0, 103], "showgrid": True},
        "yaxis": {
            "tickvals": rows,
            "ticktext": [plain(name, 40) for name in names],
            "range": [len(names) - 0.5, -0.7],
            "showgrid": False,
        },
        "showlegend": False,
    }
    return Chart(title, [trace], layout, height=110 + 48 * len(names))


def confusion(title: str, counts: NDArray[Any], classes: Sequence[str]) -> Chart:
    """Draw a confusion matrix, a row for each true class; the shade is the share of that class."""
    share = counts / counts.sum(1, keepdims=True).clip(1)
    rows = range(len(classes))
    names = {"tickvals": list(rows), "ticktext": [plain(name, LONGEST) for name in classes]}
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
    if len(classes) <= ANNOTATED:
        trace |= {"text": [[f"{count:,}" for count in row] for row in counts], "texttemplate": "%{text}"}
    layout = {
        "xaxis": {"title": {"text": "predicted"}, "showgrid": False, "zeroline": False,
                  "tickangle": _angle(classes), "ticklabeloverflow": "allow", **names},
        "yaxis": {"title": {"text": "true"}, "showgrid": False, "zeroline": False,
                  "autorange": "reversed", **names},
    }  # fmt: skip
    return Chart(title, [trace], layout, height=min(900, 200 + 34 * len(classes)))


def _angle(names: Sequence[str]) -> int:
    """Return 0 where names fit side by side under a chart, else the angle that they are turned by."""
    return 0 if len(names) * max(map(len, names), default=0) <= NARROWEST else -40


def reliability(title: str, confidence: ArrayLike, right: ArrayLike, bins: int = 10) -> Chart:
    """Draw how often a model is right against how confident it is; ideal is the diagonal."""
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
        "cliponaxis": False,  # the largest points are at the edge: right throughout
        "x": x.round(2).tolist(),
        "y": y.round(2).tolist(),
        "line": {"color": BLUE, "width": 2},
        # The area of a point is the number of nodes behind it.
        "marker": {
            "color": BLUE,
            "size": (6 + 20 * np.sqrt(counts[filled] / counts.max())).round(1).tolist(),
        },
        "customdata": counts[filled].tolist(),
        "hovertemplate": "%{customdata:,} nodes, on average %{x:.1f}% confident: "
        "%{y:.1f}% are right<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "confidence (%)"}, "range": [0, 104]},
        "yaxis": {"title": {"text": "right (%)"}, "range": [0, 104]},
    }
    return Chart(title, [diagonal, trace], layout, height=380)


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return numbers that JSON can hold: what is not finite is a gap."""
    return [round(value, 6) if abs(value) < float("inf") else None for value in map(float, values)]
