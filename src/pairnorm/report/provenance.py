"""Sections about a store: where its trials come from, and those that belong to no experiment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from math import isnan
from operator import attrgetter

from pairnorm.base.escaping import markdown as markdown_text
from pairnorm.base.escaping import markdown_code
from pairnorm.base.files import csv_text
from pairnorm.paper.claims import requested_runs
from pairnorm.paper.experiments import CLAIMS_AGAIN, EXPERIMENTS, Selection
from pairnorm.report.document import Markdown, Section
from pairnorm.sweep.grid import Summary, best
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.tables import markdown_table
from pairnorm.train import Spec, Trial
from pairnorm.train.result import Origin, Result

OWN_FILE = "own-trials.csv"
MAX_ROWS = 50
"""Rows of a graph that the section shows; the file has all."""
_FIELDS = tuple(field.name for field in fields(Spec))


def own_trials(cells: Mapping[Spec, Sequence[Trial]], selection: Selection) -> list[Summary]:
    """Return the runs of every spec that no experiment asks for, as the paper has it or as it is selected."""
    known = _of_experiments(selection)
    return [Summary(spec, tuple(trials)) for spec, trials in cells.items() if spec not in known and trials]


def _of_experiments(selection: Selection) -> set[Spec]:
    experiments = {
        one
        for experiment in EXPERIMENTS.values()
        for one in (experiment, selection.narrow(experiment))
        if one is not None
    }
    return {spec for one in experiments for spec in one.specs()}


def _shortened(own: Sequence[Summary]) -> Iterator[str]:
    """Yield the command that compares trials with the paper's numbers that differ in their epochs only."""
    paper = _of_experiments(Selection())
    usual = {spec.epochs for spec in paper}
    counts = Counter(
        one.spec.epochs for one in own if any(one.spec.replace(epochs=epochs) in paper for epochs in usual)
    )
    for epochs, count in sorted(counts.items()):
        command = f"`pairnorm report --epochs {epochs}`"
        yield f"{command} shows {count:,} of them next to the paper's numbers: only their epochs differ.\n"


def own_section(own: Sequence[Summary]) -> Section | None:
    """Return the section: of each graph the best spec by validation, and what varied, the best first."""
    if not own:
        return None
    lines = [
        f"{len(own):,} specs that are none of the paper's, ranked by mean validation accuracy; all are in "
        f"[{OWN_FILE}]({OWN_FILE}).\n",
        *_shortened(own),
    ]
    for dataset in dict.fromkeys(summary.spec.dataset for summary in own):
        summaries = [summary for summary in own if summary.spec.dataset == dataset]
        first = best(summaries)
        varied = [name for name in _FIELDS if len({getattr(one.spec, name) for one in summaries}) > 1]
        columns = [*varied, "runs", "validation", "test accuracy", *_measures(summaries)]
        lines += [
            f"### {markdown_text(dataset)}\n",
            f"Best by validation: {markdown_code(first.spec)}, {_accuracy(first)} of the test nodes over "
            f"{len(first.trials)} runs.\n",
        ]
        rows = [
            [
                *(markdown_text(getattr(one.spec, name)) for name in varied),
                str(len(one.trials)),
                f"{one.mean('validation_accuracy'):.3f}",
                _accuracy(one),
                *(f"{value:.3g}" if value is not None else "" for value in _values(one, summaries)),
            ]
            for one in sorted(summaries, key=lambda one: -one.validation)[:MAX_ROWS]
        ]
        lines += [
            markdown_table(list(map(markdown_text, columns)), rows),
            "",
            *([f"… and {len(summaries) - MAX_ROWS:,} more.\n"] if len(summaries) > MAX_ROWS else []),
        ]
    return Section("Trials of your own", [Markdown("\n".join(lines).strip())])


def own_csv(own: Sequence[Summary]) -> str:
    """Return all of them as CSV: a row for each spec, with every field of it."""
    rows = []
    for one in own:
        numbers = [one.mean("validation_accuracy"), one.mean("test_accuracy"), one.std("test_accuracy")]
        shown = [
            "" if value is None or isnan(value) else f"{value:.6g}"
            for value in (*numbers, *_values(one, own))
        ]
        rows.append([*(getattr(one.spec, name) for name in _FIELDS), len(one.trials), *shown])
    headings = (*_FIELDS, "runs", "validation_accuracy", "accuracy", "accuracy_std", *_measures(own))
    return csv_text(headings, rows)


def _measures(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(name for one in summaries for trial in one.trials for name in trial.measures))


def _values(one: Summary, among: Sequence[Summary]) -> list[float | None]:
    """Return the mean of each measure that any of them has; None where a run lacks it."""
    return [
        one.mean(name) if all(name in trial.measures for trial in one.trials) else None
        for name in _measures(among)
    ]


def _accuracy(one: Summary) -> str:
    spread = one.std("test_accuracy")
    return f"{one.mean('test_accuracy'):.3f}" + ("" if isnan(spread) else f" ± {spread:.3f}")


_ORIGINS = {
    "pairnorm": "pairnorm_version",
    "torch": "torch_version",
    "Python": "python_version",
    "Commit": "git_commit",
}


def provenance(
    stored: Mapping[Spec, Sequence[Result]], results: ResultIndex, selection: Selection, store: str
) -> Section:
    """Return the section on what was run: experiments, versions, commits, devices and times."""
    origins = {spec: {one.trial.seed: one.origin for one in some} for spec, some in stored.items()}
    ran = [origin for some in origins.values() for origin in some.values()]
    distinct = _distinct(ran)
    devices = sorted({one.device for one in distinct})
    rows = _by_experiment(origins, results, selection, devices)
    lines = [
        markdown_table(["Command", "What", "Trials", "of", *map(markdown_text, devices)], rows, left=2),
        "",
        "Experiments share trials: a trial that several of them need is trained once and counted in each. "
        "Times are those in which at least one of an experiment's trials was being trained.",
    ]
    if ran:
        diverged = sum(one.trial.diverged for some in stored.values() for one in some)
        lines += [
            "",
            *(
                f"- {name}: {markdown_text(_listed(map(attrgetter(column), distinct)))}"
                for name, column in _ORIGINS.items()
            ),
            f"- Trials in the store: {len(ran):,}, of which diverged: {diverged:,}",
        ]
        counts, times = Counter(one.device for one in ran), _busy(distinct)
        lines += [
            f"- Time in which something was trained on {markdown_text(device)}: {times[device]}, "
            f"{counts[device]:,} trials"
            for device in devices
        ]
        finished = [one.finished for one in distinct]
        lines.append(markdown_text(f"- From {min(finished)} to {max(finished)}"))
    command = markdown_code(f"pairnorm report --store {store}{selection.options}")
    lines.append(f"- This report: {command}")
    return Section("What was run", [Markdown("\n".join(lines))])


def _by_experiment(
    origins: Mapping[Spec, Mapping[int, Origin]],
    results: ResultIndex,
    selection: Selection,
    devices: Iterable[str],
) -> list[list[str]]:
    """Return a row for every experiment: its command, how much of it has been run, and how long that took."""
    rows = []
    for experiment in EXPERIMENTS.values():
        narrowed = selection.narrow(experiment)
        if narrowed is None or experiment.name == "case-study":
            continue
        again = experiment.name == CLAIMS_AGAIN.name
        pairs = (
            [(spec, seed) for spec, seeds in requested_runs(results, narrowed).items() for seed in seeds]
            if again
            else list(narrowed.requested())
        )
        done = [seeds[seed] for spec, seed in pairs if (seeds := origins.get(spec)) and seed in seeds]
        times = _busy(_distinct(done))
        command = f"`pairnorm reproduce {experiment.name}{selection.options}`"
        title = experiment.title[:1].upper() + experiment.title[1:]
        spent = (times.get(device, "") for device in devices)
        rows.append([command, title, f"{len(done):,}", f"{len(pairs):,}", *spent])
    return rows


def _distinct(origins: Iterable[Origin]) -> list[Origin]:
    """Return every origin once: thousands of trials share one, the same object."""
    return list({id(one): one for one in origins}.values())


def _busy(ran: Iterable[Origin]) -> dict[str, str]:
    """Return by device how long at least one job ran: an origin has its end and its duration."""
    jobs: dict[str, set[tuple[str, float]]] = {}
    for one in ran:
        jobs.setdefault(one.device, set()).add((one.finished, one.seconds))
    return {device: _duration(_union(some)) for device, some in jobs.items()}


def _union(jobs: Iterable[tuple[str, float]]) -> float:
    ends = [(datetime.fromisoformat(text).timestamp(), seconds) for text, seconds in jobs]
    total, reached = 0.0, float("-inf")
    for start, end in sorted((end - seconds, end) for end, seconds in ends):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _listed(values: Iterable[object]) -> str:
    known = sorted({str(value) for value in values if value is not None and value == value})
    return ", ".join(known) or "unknown"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
