"""A row of the store: a spec, the trial it gave and where that comes from, under named columns."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pairnorm.errors import PairNormError
from pairnorm.train.origin import Origin
from pairnorm.train.spec import Spec
from pairnorm.train.trial import Trial

Row = dict[str, Any]
"""Values by column: numbers and strings, ``measures`` and ``curves`` as dictionaries."""


def _types(kind: type) -> dict[str, Any]:
    return {field.name: getattr(field.type, "__origin__", field.type) for field in fields(kind)}


SPEC, TRIAL, ORIGIN = tuple(_types(Spec)), tuple(_types(Trial)), tuple(_types(Origin))
TYPES: dict[str, Any] = {"hash": str, **_types(Spec), **_types(Trial), **_types(Origin)}
COLUMNS = tuple(TYPES)


def row(spec: Spec, trial: Trial, origin: Origin) -> Row:
    """Return the row of a trial."""
    clash = sorted(set(trial.measures) & set(COLUMNS))
    if clash:
        raise PairNormError(
            f"a measure is named {clash[0]!r}, as is a column of the store; rename the measure."
        )
    parts = (spec, trial, origin)
    values = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    return {"hash": spec.hash, **values}


def spec_of(values: Mapping[str, Any]) -> Spec:
    """Return the spec of a row."""
    return Spec(**{name: values[name] for name in SPEC})


def trial_of(values: Mapping[str, Any]) -> Trial:
    """Return the trial of a row."""
    return Trial(**{name: values[name] for name in TRIAL})
