"""The trials of a store that are none of the paper's: a sweep of one's own, graph by graph as a table."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isnan

from pairnorm.escaping import markdown, markdown_code
from pairnorm.paper.experiments import EXPERIMENTS, Selection
from pairnorm.paper.results import Summary, best
from pairnorm.paper.tables import markdown_rows
from pairnorm.train import Spec, Trial

FILE = "own-trials.csv"
# The most rows of a graph that the report shows; the file has all.
SHOWN = 50
_FIELDS = tuple(field.name for field in fields(Spec))


def own_trials(cells: Mapping[Spec, Sequence[Trial]], selection: Selection) -> list[Summary]:
    """Return the runs of every spec that no experiment asks for, as the paper has it or as it is selected."""
    experiments = [
        one for found in EXPERIMENTS.values() for one in (found, selection.narrow(found)) if one is not None
    ]
    known = {spec for one in experiments for place in one.places() for spec in one.candidates(place)}
    return [Summary(spec, tuple(trials)) for spec, trials in cells.items() if spec not in known and trials]


def own_section(own: Sequence[Summary]) -> str:
    """Return the section: of each graph the best spec by validation, and what varied, the best first."""
    if not own:
        return ""
    lines = [
        "## Trials of your own\n",
        f"{len(own):,} specs that are none of the paper's, ranked by mean validation accuracy; all are in "
        f"[{FILE}]({FILE}).\n",
    ]
    for dataset in dict.fromkeys(summary.spec.dataset for summary in own):
        found = [summary for summary in own if summary.spec.dataset == dataset]
        first = best(found)
        varied = [name for name in _FIELDS if len({getattr(one.spec, name) for one in found}) > 1]
        columns = [*varied, "runs", "validation", "test accuracy", *_measures(found)]
        lines += [
            f"### {markdown(dataset)}\n",
            f"Best by validation: {markdown_code(first.spec)}, {_accuracy(first)} of the test nodes over "
            f"{len(first.trials)} runs.\n",
        ]
        rows = [
            [
                *(markdown(getattr(one.spec, name)) for name in varied),
                str(len(one.trials)),
                f"{one.mean('validation_accuracy'):.3f}",
                _accuracy(one),
                *(f"{value:.3g}" if value is not None else "" for value in _values(one, found)),
            ]
            for one in sorted(found, key=lambda one: -one.validation)[:SHOWN]
        ]
        lines += [
            *markdown_rows(list(map(markdown, columns)), rows),
            "",
            *([f"… and {len(found) - SHOWN:,} more.\n"] if len(found) > SHOWN else []),
        ]
    return "\n".join(lines)


def own_csv(own: Sequence[Summary]) -> str:
    """Return all of them as CSV: a row for each spec, with every field of it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*_FIELDS, "runs", "validation_accuracy", "accuracy", "accuracy_std", *_measures(own)])
    for one in own:
        numbers = [one.mean("validation_accuracy"), one.mean("test_accuracy"), one.std("test_accuracy")]
        shown = [
            "" if value is None or isnan(value) else f"{value:.6g}"
            for value in (*numbers, *_values(one, own))
        ]
        writer.writerow([*(getattr(one.spec, name) for name in _FIELDS), len(one.trials), *shown])
    return file.getvalue()


def _measures(found: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(name for one in found for trial in one.trials for name in trial.measures))


def _values(one: Summary, among: Sequence[Summary]) -> list[float | None]:
    """Return the mean of each measure that any of them has; None where a run lacks it."""
    return [
        one.mean(name) if all(name in trial.measures for trial in one.trials) else None
        for name in _measures(among)
    ]


def _accuracy(one: Summary) -> str:
    spread = one.std("test_accuracy")
    return f"{one.mean('test_accuracy'):.3f}" + ("" if isnan(spread) else f" ± {spread:.3f}")
