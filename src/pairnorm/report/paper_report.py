"""The report, from the store alone: what was run, tables, claims, whose the gain is, figures."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from pairnorm.base.escaping import markdown as markdown_text
from pairnorm.base.escaping import markdown_code
from pairnorm.base.files import write_text
from pairnorm.base.memory import without_collection
from pairnorm.base.plotting import Save, save, saving
from pairnorm.paper.case_study import Layers, read_layers
from pairnorm.paper.claims import requested_runs, verdicts
from pairnorm.paper.evidence import CASES, STATUSES, Evidence, Verdict
from pairnorm.paper.experiments import CLAIMS_AGAIN, EXPERIMENTS, TABLE1, Selection, reported
from pairnorm.paper.figures import MODELS, PER_GRAPH, Drawing, drawings, two_steps
from pairnorm.report import can_render_html, render_html
from pairnorm.report.paper_page import paper_page
from pairnorm.report.paper_sections import (
    OWN_FILE,
    Show,
    ablation_section,
    gain_section,
    own_csv,
    own_section,
    own_trials,
    scaling_section,
    splits_section,
)
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.index import ResultIndex, open_results
from pairnorm.sweep.tables import TITLES, Table, as_csv, latex, markdown, markdown_table
from pairnorm.train import Spec
from pairnorm.train.result import Origin, Result

FIGURES = "figures"
NO_FIGURES = "There are no figures: matplotlib is not installed."


@dataclass
class Outputs:
    """What has been written: tables by name, captions of figures by file name, and all files."""

    out: Path
    save: Save = save
    tables: dict[str, Table] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    @cached_property
    def note(self) -> str:
        """What is to be said about them: that figures cannot be drawn here."""
        return "" if find_spec("matplotlib") else NO_FIGURES

    def add_table(self, table: Table, settings: Sequence[str] = ()) -> None:
        """Write a table, if any cell of it has been run."""
        if not table.filled:
            return
        self.tables[table.name] = table
        self.write(f"{table.name}.csv", as_csv(table, settings))
        self.write(f"{table.name}.tex", latex(table))

    def add_figures(self, drawings: Iterable[Drawing]) -> None:
        """Write the figures that there are."""
        for name, caption, figure in () if self.note else drawings:
            if figure is not None:
                self.captions[name] = caption
                self.files += self.save(figure, self.out / FIGURES, name)

    def write(self, name: str, text: str) -> Path:
        """Write a text file."""
        path = self.out / name
        write_text(path, text)
        self.files.append(path)
        return path


def write_outputs(
    what: Iterable[str],
    results: ResultIndex,
    layers: dict[Spec, Layers],
    selection: Selection,
    out: Path,
    save: Save = save,
) -> Outputs:
    """Write what belongs to the named experiments and has been run."""
    outputs, names = Outputs(out, save), list(what)
    for name in names:
        if name == "figure2":
            outputs.add_figures(two_steps())
        elif experiment := selection.narrow(EXPERIMENTS[name]):
            if name == "tuned":
                _add_tuned(outputs, results, experiment, selection.narrow(TABLE1))
            elif name not in ("case-study", *PER_GRAPH):
                outputs.add_table(Table.of(results, experiment, reported=reported()))
            if not (name in MODELS and "figure4" in names):  # which has it among its panels
                outputs.add_figures(drawings(experiment, results, layers))
    return outputs


def _add_tuned(outputs: Outputs, results: ResultIndex, tuned: Experiment, untuned: Experiment | None) -> None:
    """Add the table of tuned optimizers, below what the paper's optimizer gives with the same features."""
    if Table.of(results, tuned).filled:
        both = (tuned,) if untuned is None else (untuned, tuned)
        settings = ("scale", *tuned.searched)
        outputs.add_table(Table.of(results, *both, reported=reported()), settings)


NOTES = "notes.md"
"""A file in the output folder that, if there is one, becomes a section of the report: findings of people."""
FEW, MANY = 3, 7
"""The summary counts claims that fail in at most ``FEW`` of at least ``MANY`` cases."""
LARGE = 0.05
"""A difference from the paper that is listed."""


@without_collection()
def write_report(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    selection: Selection | None = None,
    workers: int = 1,
) -> Outputs:
    """Write all tables and figures of what has been run, ``report.md`` and ``report.html``; return them.

    The same store gives the same files, bit for bit.

    Args:
        store: the store, or its export as ``.csv`` or ``.csv.gz``.
        out: the folder.
        selection: which part of the experiments is requested. Default: the paper's.
        workers: processes that draw figures. More than one are for programs that can be imported again, as
            those that ``if __name__ == "__main__"`` guards.
    """
    selection, folder = selection or Selection(), Path(out)
    with open_results(store) as opened:
        stored, layers = opened.results_by_spec(), read_layers(opened)
    cells = {spec: [one.trial for one in some] for spec, some in stored.items()}
    results = ResultIndex(cells)
    own = own_trials(cells, selection)
    alone = bool(own) and len(own) == len(cells)  # then nothing is to be said about the paper
    with saving(workers) as save:  # while the rest is written
        outputs = write_outputs([] if alone else selection.names(), results, layers, selection, folder, save)
        if own:
            outputs.write(OWN_FILE, own_csv(own))
        decided = verdicts(Evidence(results, layers, selection, every_run=selection.runs is None))
        tables = [outputs.tables[name] for name in MODELS if name in outputs.tables]
        path = folder / NOTES
        notes = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        takeaway, notes = _takeaway(notes)
        ran = _what_was_run(stored, results, selection, Path(store).name)
        texts = partial(_texts, outputs.tables, results, selection, notes)
        sections = [
            f"# Trials of {markdown_text(Path(store).name)}\n" if alone else "# The paper, reproduced\n",
            "" if alone else _summary(tables, decided, selection) + takeaway,
            own_section(own),
            ran,
            *texts(markdown).values(),
            "" if alone else _claims(decided),
            _figures(outputs),
        ]
        outputs.write("report.md", "\n".join(section for section in sections if section))
        if can_render_html():
            shown = {"takeaway": f"## In short\n{takeaway}" if takeaway else ""}
            shown |= texts(lambda table: "")  # a page has tables apart, and can sort them
            shown |= {
                name: f"## {outputs.tables[name].title}"
                for name in ("bars", "table1-rows")
                if name in outputs.tables
            }
            page = paper_page(results, selection, outputs.tables, decided, shown | {"run": ran})
            outputs.write("report.html", render_html(page))
    return outputs


def _texts(
    tables: Mapping[str, Table], results: ResultIndex, selection: Selection, notes: str, show: Show
) -> dict[str, str]:
    """Return the sections about results, by the name of their table where they have one."""
    main = [tables[name] for name in MODELS if name in tables]
    return {
        **{table.name: _table_section(table, show) for table in main},
        "differences": _differences(main),
        "splits": splits_section(results, selection),
        "notes": notes,
        "scaling": scaling_section(tables, show),
        "tuned": gain_section(tables.get("tuned"), show),
        "ablation": ablation_section(results, selection, tables.get("ablation"), show),
    }


def _takeaway(notes: str) -> tuple[str, str]:
    """Return what the notes say before their first heading, which belongs on top, and the rest of them."""
    first, heading, rest = f"\n{notes}".partition("\n## ")
    return (f"{first}\n" if first.strip() else "", f"## {rest}" if heading else "")


def _summary(tables: Sequence[Table], decided: Sequence[Verdict], selection: Selection) -> str:
    filled = sum(entry.difference is not None for table in tables for entry in table.entries)
    counts = Counter(verdict.status for verdict in decided)
    listed = ", ".join(f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status])
    failed = [verdict for verdict in decided if verdict.status == "fails" and len(verdict.run) >= MANY]
    narrow = sum(1 <= sum(case.holds is False for case in verdict.run) <= FEW for verdict in failed)
    unsure = sum(bool(verdict.unsure) for verdict in decided)
    own = sum(verdict.in_paper.startswith("fails") for verdict in decided)
    other = Selection(runs=selection.runs, epochs=selection.epochs, depths=selection.depths).options.strip()
    return (
        f"Of the {len(reported())} numbers in the paper's three tables, {filled} are compared with ours. "
        f"Of {len(decided)} claims of its text, {listed}"
        + (f", {narrow} of these in only one to {FEW} cases of {MANY} or more" if narrow else "")
        + (f"; verdicts within the noise of their runs: {unsure}" if unsure else "")
        + (f"; {own} fail on the paper's own numbers" if own else "")
        + ".\n"
        + (f"\nThese are not the paper's runs: {markdown_code(other)} was asked for.\n" if other else "")
    )


_ORIGINS = {
    "pairnorm": "pairnorm_version",
    "torch": "torch_version",
    "Python": "python_version",
    "Commit": "git_commit",
}


def _what_was_run(
    stored: Mapping[Spec, Sequence[Result]], results: ResultIndex, selection: Selection, store: str
) -> str:
    origins = {spec: {one.trial.seed: one.origin for one in some} for spec, some in stored.items()}
    ran = [origin for some in origins.values() for origin in some.values()]
    distinct = _distinct(ran)
    devices = sorted({one.device for one in distinct})
    rows = _by_experiment(origins, results, selection, devices)
    lines = [
        "## What was run\n",
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
    return "\n".join(lines) + "\n"


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
    """Return by device how long at least one job ran: it ends when it says and began so long before."""
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


def _table_section(table: Table, show: Show) -> str:
    name, shown = table.name, show(table)
    links = f"\n\n{shown}\n[CSV]({name}.csv), [LaTeX]({name}.tex)\n" if shown else ""
    return f"## Table {name[-1]}: {table.title}{links}"


def _differences(tables: Sequence[Table]) -> str:
    entries = [(entry, entry.difference) for table in tables for entry in table.entries]
    known = [(entry, difference) for entry, difference in entries if difference is not None]
    if not known:
        return ""
    large = [(entry, difference) for entry, difference in known if abs(difference) > LARGE]
    mean = fmean(abs(difference) for _, difference in known)
    lines = [
        "## Where we differ from the paper\n",
        f"On average over {len(known)} numbers we differ by {mean:.3f}; {len(large)} differ by more than "
        f"{LARGE}:\n",
    ]
    rows = []
    for entry, difference in sorted(large, key=lambda pair: -abs(pair[1])):
        dataset, method, percent = entry.cell
        values = [
            f"{one.accuracy:.3f} @ {one.layers}" for one in (entry.ours, entry.paper) if one is not None
        ]
        rows.append([TITLES[dataset], method, f"{percent}%", *values, f"{difference:+.3f}"])
    headings = ["Graph", "Method", "Missing", "Ours", "Paper", "Difference"]
    return "\n".join([*lines, markdown_table(headings, rows, left=2)]) + "\n"


def _claims(decided: Sequence[Verdict]) -> str:
    lines = [
        "## Claim by claim\n",
        f"{CASES}\n",
        "| Section | The paper says | Read as | In its numbers | In ours | How strongly |",
        "|---|---|---|---|---|---|",
    ]
    for verdict in decided:
        claim = verdict.claim
        lines.append(
            f"| {claim.section} | {claim.text} | {claim.reading} | {verdict.in_paper} | "
            f"**{verdict.status}**{verdict.hedge}, {verdict.counts} | {verdict.strength} |"
        )
    for verdict in decided:
        if verdict.run:
            lines += ["", *_details(verdict)]
    return "\n".join(lines) + "\n"


def _details(verdict: Verdict) -> Iterable[str]:
    marks = {True: "yes", False: "**no**", None: "not run"}
    yield f"<details><summary>{verdict.claim.text} ({verdict.status}: {verdict.counts})</summary>\n"
    yield "| Case | | Evidence |"
    yield "|---|---|---|"
    for case in verdict.cases:
        yield f"| {case.label} | {marks[case.holds]} | {case.evidence} |"
    yield "\n</details>"


def _figures(outputs: Outputs) -> str:
    if not outputs.captions:
        return outputs.note and f"{outputs.note}\n"
    lines = ["## Figures\n"]
    for name, caption in outputs.captions.items():
        lines.append(f"![{caption}]({FIGURES}/{name}.png)\n\n{caption} [PDF]({FIGURES}/{name}.pdf)\n")
    return "\n".join(lines)


def _listed(values: Iterable[object]) -> str:
    known = sorted({str(value) for value in values if value is not None and value == value})
    return ", ".join(known) or "unknown"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
