"""The figures of ``fit`` and ``diagnose``: depth, what it does to features, confusion, baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pairnorm.base.escaping import terminal
from pairnorm.base.plotting import BLUE, GRAY, NORMS, new_figure, style, whole_ticks
from pairnorm.classify.candidates.base import Candidate, best_by_depth
from pairnorm.classify.diagnosis import Smoothing
from pairnorm.classify.evaluation import Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MARK = "#000000"
MODEL_STYLES = {"SGC": "o", "GCN": "s", "GAT": "^", "GCNII": "D", "APPNP": "v"}
ANNOTATED_CLASSES = 15


@style()
def draw_smoothing(rows: Sequence[Smoothing], depth: int | None = None) -> Figure:
    """Draw row-diff, col-diff and effective rank against depth, without and with PairNorm.

    Args:
        rows: the measures.
        depth: one to mark.
    """
    figure = new_figure(10, 3.5)
    axes = figure.subplots(1, 3)
    titles = {
        "row_diff": "row-diff: distance between nodes",
        "col_diff": "col-diff: distance between features",
        "effective_rank": "effective rank: directions in use",
    }
    for axis, (measure, title) in zip(axes, titles.items(), strict=True):
        for norm, line_style in (("none", "s--"), ("PN", "o-")):
            line = [row for row in rows if row.norm == norm]
            values = [getattr(row, measure) for row in line]
            # What is left of the start: the two have units of their own.
            start = 1.0 if measure == "effective_rank" else max(values[0], 1e-30)
            label = "with PairNorm" if norm == "PN" else "without"
            shares = [value / start for value in values]
            axis.plot(
                [row.depth for row in line], shares, line_style, color=NORMS[norm], markersize=4, label=label
            )
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_xlabel("depth")
        axis.set_ylim(bottom=0)
        if measure != "effective_rank":
            axis.set_ylabel("relative to depth 0")
        if depth is not None:
            axis.axvline(depth, color=MARK, linewidth=1, linestyle=":", label=f"depth {depth}")
        whole_ticks(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


@style()
def draw_depths(tried: Sequence[Candidate], best: Candidate) -> Figure:
    """Draw the validation accuracy of the best scale against depth, for every model and norm tried.

    Args:
        tried: all candidates.
        best: the best of them, to mark.
    """
    figure = new_figure(6.4, 3.8)
    axis = figure.subplots()
    for (model, norm), accuracy in best_by_depth(tried).items():
        plain = norm == "none"
        axis.plot(
            list(accuracy),
            [100 * value for value in accuracy.values()],
            marker=MODEL_STYLES[model],
            linestyle="--" if plain else "-",
            color=NORMS[norm],
            markersize=4.5,
            label=model if plain else f"{model}-{norm}",
        )
    chosen = f"best: depth {best.depth}"
    axis.plot(best.depth, 100 * best.validation_accuracy, "*", color=MARK, markersize=13, label=chosen)
    axis.set_xlabel("depth")
    axis.set_ylabel("accuracy on validation nodes (%)")
    axis.legend()
    whole_ticks(axis)
    return figure


@style()
def draw_confusion(scores: Scores, classes: Sequence[str]) -> Figure:
    """Draw the confusion matrix; the shade is the share of the true class.

    Args:
        scores: of the held-out nodes.
        classes: their names.
    """
    count = len(classes)
    size = min(10.0, 2.8 + 0.55 * count)
    figure = new_figure(size, 0.9 * size)
    axis = figure.subplots()
    counts = scores.confusion
    share = counts / counts.sum(1, keepdims=True).clip(1)
    axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
    names = [name if len(name) <= 22 else name[:21] + "…" for name in map(terminal, classes)]
    # A class may be called "$x_$", which is no formula.
    axis.set_xticks(
        range(count), names, rotation=40, ha="right", rotation_mode="anchor", fontsize=9, parse_math=False
    )
    axis.set_yticks(range(count), names, fontsize=9, parse_math=False)
    axis.set_title("shade: share of the true class", loc="left", fontsize=9)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if count <= ANNOTATED_CLASSES:
        for true in range(count):
            for predicted in range(count):
                axis.text(
                    predicted,
                    true,
                    f"{counts[true, predicted]:,}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if share[true, predicted] > 0.55 else "#333333",
                )
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


@style()
def draw_baselines(baselines: Mapping[str, Scores]) -> Figure:
    """Draw the accuracy of the model, which comes first, and of simpler methods, with their 95% intervals.

    Args:
        baselines: by name.
    """
    figure = new_figure(7, 0.9 + 0.42 * len(baselines))
    axis = figure.subplots()
    for place, scores in enumerate(baselines.values()):
        low, high = scores.interval
        color = BLUE if place == 0 else GRAY
        axis.plot([100 * low, 100 * high], [place, place], color=color, linewidth=2)
        axis.plot(100 * scores.accuracy, place, "o" if place == 0 else "s", color=color, markersize=7)
        axis.annotate(
            f"{100 * scores.accuracy:.1f}",
            (100 * scores.accuracy, place),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=color,
        )
    axis.set_yticks(range(len(baselines)), list(baselines), fontsize=10)
    axis.set_ylim(len(baselines) - 0.5, -0.7)
    axis.set_xlim(0, 102)
    axis.set_xlabel("right on held-out nodes (%), with 95% interval")
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    return figure
