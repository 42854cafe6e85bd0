"""What a Probe recorded, as a verdict in words and as figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from torch import Tensor

from pairnorm.base import plotting
from pairnorm.base.errors import PairNormError, real_number
from pairnorm.base.plotting import BLUE, GRAY, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.measure.influence import NEGLIGIBLE_SHARE, Influence

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCALE_FREE = ("effective_rank", "numerical_rank", "mean_average_distance", "col_diff")
# The thresholds of verdicts; docs/measures.md compares them with real states, noise and smoothed ones.
MAX_COLLAPSED_DISTANCE, MAX_COLLAPSED_RANK = 0.05, 1.05
MAX_VANISHED_RESPONSE = 1e-3  # of that at the last layer
# Markers distinguish the lines in gray.
_LINE_STYLES = list(zip([BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GRAY], "os^DvP", strict=True))
_TITLES = {
    "apd": "pairwise distance",
    "apsd": "pairwise squared distance",
    "col_diff": "col-diff",
    "tpsd": "TPSD",
    "dirichlet_energy": "Dirichlet energy",
    "dominant_subspace_distance": "distance to the dominant subspace",
}
"""Titles of panels that are not the measure's name."""
_NO_MEASURE = ("forward", "layer", "name", "node_type", "trial")


@dataclass
class Record:
    """One call of one convolution: its measures, one value per trial, and distances of node pairs.

    ``norm`` is ‖X‖_F, and ``node_type`` is empty where there is only one. If ``has_gradient``, a backward
    pass adds ``gradient_norm`` to the measures.
    """

    forward: int
    layer: int
    name: str
    node_type: str
    nodes: int
    norm: Tensor
    measures: dict[str, Tensor]
    distances: dict[str, Tensor]
    has_gradient: bool = False


class Verdict(NamedTuple):
    """A diagnosis, in words and as a code.

    Args:
        kind: Which of the verdicts of ``Probe.verdict``.
        layer: The layer, counted from 1, from which states collapse or are not finite, up to which gradients
            vanish, or down from which they are not finite; None for the other verdicts.
        text: The same in a sentence or two, with the numbers.
    """

    kind: Literal[
        "not-finite", "states-collapse", "gradients-vanish", "short-range", "does-not-generalize", "no-sign"
    ]
    layer: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def form_verdict(
    records: Sequence[Record],
    influence: Influence | None = None,
    train_loss: float | None = None,
    validation_loss: float | None = None,
    chance_loss: float | None = None,
) -> Verdict:
    """Diagnose the last forward pass; losses as for ``Probe.verdict``."""
    records = last_forward(records)
    for name in ("numerical_rank", "mean_average_distance"):
        if name not in records[0].measures:
            problem = f"{name} was not measured"
            hint = "Leave the Probe its own measures, {measures}, or add this one."
            raise PairNormError(problem, code="no-measure", value=name, hint=hint, measures=list(SCALE_FREE))
    layers = sorted({record.layer for record in records})
    responses = [_response(records, layer) for layer in layers]
    several = [record for record in records if record.nodes > 1]
    states = "the states keep apart" if several else "fewer than two nodes show nothing"
    gradients = "no gradient came back" if math.isnan(responses[0]) else "gradients reach the first layer"
    return (
        _not_finite(records)
        or _collapse(several, layers[:-1] or layers)
        or _vanishing(layers, responses)
        or (None if influence is None else _short_range(influence))
        or _no_generalization(train_loss, validation_loss, chance_loss)
        or Verdict("no-sign", None, f"No sign of oversmoothing: {states}, and {gradients}.")
    )


def last_forward(records: Sequence[Record]) -> list[Record]:
    """Return the records of the last forward pass."""
    if not records:
        problem = "nothing was recorded"
        hint = "Call the model itself inside `with Probe(model) as probe:`."
        raise PairNormError(problem, code="no-records", hint=hint)
    return [record for record in records if record.forward == records[-1].forward]


def _not_finite(records: list[Record]) -> Verdict | None:
    """Return the verdict on states with NaN or infinity, or else on such gradients, first met at the end."""
    states = [("States", "on", record, record.norm) for record in records]
    gradients = [
        ("Gradients", "down", record, record.measures.get("gradient_norm", record.norm))
        for record in reversed(records)
    ]
    for what, way, record, norm in states + gradients:
        if not norm.isfinite().all():
            text = f"{what} are not finite from layer {record.layer} ({_where(record)}) {way}."
            return Verdict("not-finite", record.layer, text)
    return None


def _collapse(records: list[Record], layers: list[int]) -> Verdict | None:
    """Return the verdict on states that have collapsed from some layer on to the last of ``layers``."""
    verdict = None
    for layer in reversed(layers):
        collapsed = [one for one in records if one.layer == layer and _describe_collapse(one)]
        if not collapsed:
            break
        where, how = _where(collapsed[0]), _describe_collapse(collapsed[0])
        text = f"States collapse: from layer {layer} ({where}) on, all nodes {how}."
        verdict = Verdict("states-collapse", layer, text)
    return verdict


def _describe_collapse(record: Record) -> str:
    """Describe how states have collapsed; empty where they have not."""
    distance, rank = (
        float(record.measures[name].mean()) for name in ("mean_average_distance", "numerical_rank")
    )
    if distance < MAX_COLLAPSED_DISTANCE:
        return f"point the same way (mean average distance {distance:.2g})"
    return f"lie on one line (numerical rank {rank:.3g})" if rank < MAX_COLLAPSED_RANK else ""


def _where(record: Record) -> str:
    return f"{record.name}, {record.node_type}" if record.node_type else record.name


def _response(records: list[Record], layer: int) -> float:
    """Return ‖X‖ ‖∂L/∂X‖ of a layer, the largest of its node types; NaN without a backward pass."""
    values = [
        float((record.norm * record.measures["gradient_norm"]).mean())
        for record in records
        if record.layer == layer and "gradient_norm" in record.measures
    ]
    return max(values, default=math.nan)


def _vanishing(layers: list[int], responses: list[float]) -> Verdict | None:
    if max(responses) == 0:
        text = "Gradients vanish: they are zero at every layer. The loss does not depend on the states."
        return Verdict("gradients-vanish", layers[-1], text)
    limit = MAX_VANISHED_RESPONSE * responses[-1]
    if not responses[0] < limit:
        return None
    weak = max(layer for layer, response in zip(layers, responses, strict=True) if response < limit)
    text = (
        f"Gradients vanish: at layer {layers[0]} the loss responds to the states "
        f"{responses[0] / responses[-1]:.1g} times as much as at layer {layers[-1]}, and up to layer {weak} "
        "hardly anything is learned. The states themselves do not collapse."
    )
    return Verdict("gradients-vanish", weak, text)


def _short_range(influence: Influence) -> Verdict | None:
    reached = influence.reach()
    if reached is None:
        return None
    beyond = float(influence.baseline[reached + 1 :].sum())
    cause = f"topological bottleneck: propagation alone would take {beyond:.1%} from there as well, so the "
    cause += "graph itself lets little through"
    if beyond > NEGLIGIBLE_SHARE:
        cause = f"computational bottleneck: propagation alone would take {beyond:.0%} from there, so weights "
        cause += "and activations lose it"
    text = (
        f"The model does not use information beyond {reached} hops: less than {NEGLIGIBLE_SHARE:.0%} of the "
        f"influence comes from there, although its {influence.steps} convolutions reach further. A {cause}."
    )
    return Verdict("short-range", None, text)


def _no_generalization(*losses: float | None) -> Verdict | None:
    if all(loss is None for loss in losses):
        return None
    if None in losses:
        missing = ("train_loss", "validation_loss", "chance_loss")[losses.index(None)]
        problem = f"there is no {missing}"
        raise PairNormError(problem, code="no-loss", value=missing, expected="all three losses")
    train, validation, chance = (real_number("a loss", loss) for loss in losses)
    if train > chance / 2 or chance - validation >= (chance - train) / 2:
        return None
    text = (
        f"It fits and does not generalize: the loss is {train:.3g} in training, {validation:.3g} in "
        f"validation and {chance:.3g} by chance. The states do not collapse."
    )
    return Verdict("does-not-generalize", None, text)


def draw(frame: pandas.DataFrame) -> Figure:
    """Return the figure of one forward pass: the measures of ``Probe.frame()`` over the layers."""
    panels = _panels(frame)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with plotting.style():
        figure = plotting.new_figure(0.6 + 3.6 * columns, 0.6 + 2.6 * rows)
        figure.supxlabel("graph convolutions", fontsize=10)
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, (title, lines) in zip(axes, panels.items(), strict=False):
            _draw_panel(axis, frame, title, lines)
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
    return figure


def _panels(frame: pandas.DataFrame) -> dict[str, dict[str, str]]:
    """Group the columns of measures into plots: title → {label of a line: column}."""
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
    for (label, column), (color, marker) in zip(ordered, itertools.cycle(_LINE_STYLES), strict=False):
        trials = frame.groupby("layer")[column]
        mean = trials.mean()
        every = -(-len(mean) // 20)
        axis.plot(mean.index, mean, color=color, marker=marker, markevery=every, label=label)
        axis.fill_between(mean.index, trials.min(), trials.max(), color=color, alpha=0.18, linewidth=0)
    shown = frame[list(lines.values())].to_numpy()
    if (shown > 0).all() and shown.max() > 30 * shown.min():
        axis.set_yscale("log")
    else:
        # From zero, where all states are equal.
        lowest, top = axis.get_ylim()
        bottom = min(0.0, lowest)
        axis.set_ylim(bottom, top + 0.05 * (top - bottom))
        axis.ticklabel_format(axis="y", useMathText=True, scilimits=(-3, 5))
    axis.set_title(title, loc="left")
    plotting.whole_ticks(axis)
    if len(lines) > 1:
        axis.legend()
