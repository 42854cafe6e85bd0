"""What records of a Probe mean in words: states collapse, gradients vanish, or it does not generalize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from pairnorm.base.errors import PairNormError, real_number

SCALE_FREE = ("effective_rank", "numerical_rank", "mean_average_distance", "col_diff")
# What a verdict is drawn at: docs/measures.md holds it against real states, noise and smoothed ones.
SAME_DIRECTION = 0.05
ONE_DIMENSION = 1.05
VANISHED = 1e-3


@dataclass(frozen=True)
class Record:
    """One call of one convolution: its measures, one value per trial, and distances of node pairs.

    A backward pass adds ``gradient_norm`` to the measures. ``norm`` is ‖X‖_F, and ``node_type`` is empty
    where there is only one.
    """

    forward: int
    layer: int
    name: str
    node_type: str
    nodes: int
    norm: Tensor
    measures: dict[str, Tensor]
    distances: dict[str, Tensor]


class Verdict(NamedTuple):
    """What a Probe has seen, in words and as a code.

    Args:
        kind: which of the verdicts of ``Probe.verdict``.
        layer: from which on states collapse or are not finite, up to which gradients vanish, or down from
            which they are not finite; counted from 1, and None where it is none's in particular.
        text: the same in a sentence or two, with the numbers.
    """

    kind: Literal["not-finite", "states-collapse", "gradients-vanish", "does-not-generalize", "no-sign"]
    layer: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def judge(
    records: Sequence[Record],
    train_loss: float | None = None,
    validation_loss: float | None = None,
    chance_loss: float | None = None,
) -> Verdict:
    """Say in words what ails the last forward pass, if anything; arguments as for ``Probe.verdict``."""
    last = max((record.forward for record in records), default=0)
    records = [record for record in records if record.forward == last]
    if not records:
        raise no_records()
    for name in ("numerical_rank", "mean_average_distance"):
        if name not in records[0].measures:
            problem = f"{name} was not measured"
            hint = "Leave the Probe its own measures, {measures}, or add this one."
            raise PairNormError(problem, code="no-measure", value=name, hint=hint, measures=list(SCALE_FREE))
    layers = sorted({record.layer for record in records})
    responses = [_response(records, layer) for layer in layers]
    several = [record for record in records if record.nodes > 1]  # a single one can but be like itself
    apart = "the states keep apart" if several else "nothing can be told from fewer than two nodes"
    return (
        _not_finite(records)
        or _collapse(several, layers[:-1] or layers)
        or _vanishing(layers, responses)
        or _no_generalization(train_loss, validation_loss, chance_loss)
        or Verdict(
            "no-sign",
            None,
            f"No sign of oversmoothing: {apart}, and "
            + ("no gradient came back." if math.isnan(responses[0]) else "gradients reach the first layer."),
        )
    )


def no_records() -> PairNormError:
    """Return the error of a Probe that has seen nothing."""
    problem = "nothing was recorded"
    hint = "Run the model inside `with Probe(model) as probe:`."
    return PairNormError(problem, code="no-records", hint=hint)


def _not_finite(records: list[Record]) -> Verdict | None:
    """Return the verdict on states with NaN or infinity, or else on such gradients, first met at the end."""
    states = [("States", "on", record, record.norm) for record in records]
    gradients = [
        ("Gradients", "down", record, record.measures.get("gradient_norm", record.norm))
        for record in reversed(records)
    ]
    for what, way, record, norm in states + gradients:
        if not norm.isfinite().all():
            text = f"{what} are not finite from layer {record.layer} ({_place(record)}) {way}."
            return Verdict("not-finite", record.layer, text)
    return None


def _collapse(records: list[Record], layers: list[int]) -> Verdict | None:
    """Return the verdict on states that have collapsed from some layer on to the last of ``layers``."""
    verdict = None
    for layer in reversed(layers):
        worst = [found for record in records if record.layer == layer and (found := _collapsed(record))]
        if not worst:
            break
        text = f"States collapse: from layer {layer} {worst[0]}."
        verdict = Verdict("states-collapse", layer, text)
    return verdict


def _collapsed(record: Record) -> str:
    """Say where and how states have collapsed; nothing where they have not."""
    where = _place(record)
    angle, rank = (
        float(record.measures[name].mean()) for name in ("mean_average_distance", "numerical_rank")
    )
    if angle < SAME_DIRECTION:
        return f"({where}) on, all nodes point the same way (mean average distance {angle:.2g})"
    return (
        f"({where}) on, all nodes lie on one line (numerical rank {rank:.3g})" if rank < ONE_DIMENSION else ""
    )


def _place(record: Record) -> str:
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
    limit = VANISHED * responses[-1]
    if not responses[0] < limit:
        return None
    weak = max(layer for layer, response in zip(layers, responses, strict=True) if response < limit)
    return Verdict(
        "gradients-vanish",
        weak,
        f"Gradients vanish: at layer {layers[0]} the loss answers to the states "
        f"{responses[0] / responses[-1]:.1g} times as much as at layer {layers[-1]}, and up to layer {weak} "
        "hardly anything is learned. The states themselves do not collapse.",
    )


def _no_generalization(*losses: float | None) -> Verdict | None:
    if None in losses:
        if any(loss is not None for loss in losses):
            names = ("train_loss", "validation_loss", "chance_loss")
            lacking = [name for name, loss in zip(names, losses, strict=True) if loss is None]
            problem = f"there is no {lacking[0]}"
            raise PairNormError(problem, code="no-loss", value=lacking[0], expected="all three losses")
        return None
    train, validation, chance = (real_number("a loss", loss) for loss in losses)
    if train > chance / 2 or chance - validation >= (chance - train) / 2:
        return None
    return Verdict(
        "does-not-generalize",
        None,
        f"It fits and does not generalize: the loss is {train:.3g} in training, {validation:.3g} in "
        f"validation and {chance:.3g} by chance. The states do not collapse.",
    )
