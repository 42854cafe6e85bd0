"""The report, from the store alone: what was run, tables, claims, whose the gain is, figures."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pairnorm.paper.advice import ablation_section, gain_section, scaling_section
from pairnorm.paper.claim import Evidence, Verdict
from pairnorm.paper.claims import verdicts
from pairnorm.paper.grids import EXPERIMENTS, NAMES
from pairnorm.paper.layers import file_beside, read_layers
from pairnorm.paper.outputs import FIGURES, Outputs, write_outputs
from pairnorm.paper.reported import reported
from pairnorm.paper.results import Results, opened
from pairnorm.paper.selection import Selection
from pairnorm.paper.tables import TITLES, markdown

if TYPE_CHECKING:
    import pandas

NOTES = "notes.md"
"""A file in the output folder that, if there is one, becomes a section of the report: findings of people."""

LARGE = 0.05


def write_report(
    store: str | os.PathLike[str], out: str | os.PathLike[str], selection: Selection | None = None
) -> Outputs:
    """Write all tables and figures of what has been run, and ``report.md``; return what was written.

    The same store gives the same files, bit for bit.

    Args:
        store: the store, or its export as ``.csv`` or ``.csv.gz``.
        out: the folder.
        selection: how much of the experiments is wanted. Default: the paper's.
    """
    selection = selection or Selection()
    with opened(store) as found:
        results, frame = Results(found.cells()), found.frame()
    layers = read_layers(file_beside(store))
    outputs = write_outputs([name for name in NAMES if name != "all"], results, layers, selection, Path(out))
    decided = verdicts(Evidence(results, layers, selection))
    sections = [
        "# The paper, reproduced\n",
        _summary(outputs, decided),
        _what_was_run(frame, selection, Path(store).name),
        *(_table_section(outputs, name) for name in ("table1", "table2", "table3") if name in outputs.tables),
        _differences(outputs),
        _notes(Path(out)),
        scaling_section(outputs.tables.get("scaling")),
        gain_section(outputs.tables.get("tuned")),
        ablation_section(results, selection, outputs.tables.get("ablation")),
        _claims(decided),
        _figures(outputs),
    ]
    outputs.write("report.md", "\n".join(section for section in sections if section))
    return outputs


def _summary(outputs: Outputs, decided: Sequence[Verdict]) -> str:
    filled = sum(
        entry.ours is not None and entry.paper is not None
        for name in ("table1", "table2", "table3")
        if name in outputs.tables
        for entry in outputs.tables[name].entries
    )
    words = {
        "holds": "hold",
        "holds so far": "hold so far",
        "fails so far": "fail so far",
        "fails": "fail",
        "not run": "have not been run",
    }
    counts = Counter(verdict.status for verdict in decided)
    listed = ", ".join(f"{counts[status]} {word}" for status, word in words.items() if counts[status])
    return (
        f"Of the {len(reported())} numbers in the paper's three tables, {filled} stand beside ours here. "
        f"Of {len(decided)} claims of its text, {listed}.\n"
    )


def _what_was_run(frame: "pandas.DataFrame", selection: Selection, store: str) -> str:
    devices = sorted(set(frame["device"]))
    columns = ["Command", "What", "Trials", "of", *devices]
    lines = [
        "## What was run\n",
        f"| {' | '.join(columns)} |",
        f"|---|---|{'---:|' * (len(columns) - 2)}",
    ]
    keys = frame.set_index(["hash", "seed"]).index
    for experiment in EXPERIMENTS.values():
        narrowed = selection.narrow(experiment)
        if narrowed is None or experiment.name == "case-study":
            continue
        wanted = {(spec.hash, seed) for spec, seed in narrowed.pairs()}
        done = frame[keys.isin(wanted)]
        times = {device: _duration(_busy_seconds(trials)) for device, trials in done.groupby("device")}
        cells = [
            f"`pairnorm reproduce {experiment.name}{selection.options}`",
            _capital(experiment.title),
            f"{len(done):,}",
            f"{len(wanted):,}",
            *(times.get(device, "") for device in devices),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        "Experiments share trials: a trial that several of them need is trained once and counted in each. "
        "Times are those in which at least one of an experiment's trials was being trained."
    )
    if len(frame):
        lines.append("")
        lines += [f"- {name}: {_listed(frame[column])}" for name, column in _ORIGINS.items()]
        lines.append(
            f"- Trials in the store: {len(frame):,}, of which diverged: {int(frame['diverged'].sum()):,}"
        )
        lines += [
            f"- Time in which something was trained on {device}: {_duration(_busy_seconds(trials))}, "
            f"{len(trials):,} trials"
            for device, trials in frame.groupby("device")
        ]
        lines.append(f"- From {frame['finished'].min()} to {frame['finished'].max()}")
    lines.append(f"- This report: `pairnorm report --store {store}{selection.options}`")
    return "\n".join(lines) + "\n"


_ORIGINS = {
    "pairnorm": "pairnorm_version",
    "torch": "torch_version",
    "Python": "python_version",
    "Commit": "git_commit",
}


def _busy_seconds(frame: "pandas.DataFrame") -> float:
    """Return the length of the union of all jobs' times: a job ends when it says and began so long before."""
    jobs = set(zip(frame["finished"], frame["seconds"], strict=True))
    ends = {text: datetime.fromisoformat(text).timestamp() for text, _ in jobs}
    spans = sorted((ends[text] - seconds, ends[text]) for text, seconds in jobs)
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _table_section(outputs: Outputs, name: str) -> str:
    table = outputs.tables[name]
    return (
        f"## Table {name[-1]}: {table.title}\n\n{markdown(table)}\n[CSV]({name}.csv), [LaTeX]({name}.tex)\n"
    )


def _differences(outputs: Outputs) -> str:
    entries = [
        entry
        for name in ("table1", "table2", "table3")
        if name in outputs.tables
        for entry in outputs.tables[name].entries
        if entry.difference is not None
    ]
    if not entries:
        return ""
    large = sorted(
        (entry for entry in entries if abs(entry.difference or 0) > LARGE),
        key=lambda entry: -abs(entry.difference or 0),
    )
    mean = sum(abs(entry.difference or 0) for entry in entries) / len(entries)
    lines = [
        "## Where we differ from the paper\n",
        f"On average over {len(entries)} numbers we differ by {mean:.3f}; {len(large)} differ by more than "
        f"{LARGE}:\n",
        "| Graph | Method | Missing | Ours | Paper | Difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for entry in large:
        dataset, method, percent = entry.place
        assert entry.ours is not None
        assert entry.paper is not None
        ours = f"{entry.ours.accuracy:.3f} @ {entry.ours.layers}"
        paper = f"{entry.paper.accuracy:.3f} @ {entry.paper.layers}"
        lines.append(
            f"| {TITLES[dataset]} | {method} | {percent}% | {ours} | {paper} | {entry.difference:+.3f} |"
        )
    return "\n".join(lines) + "\n"


def _notes(out: Path) -> str:
    path = out / NOTES
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _claims(decided: Sequence[Verdict]) -> str:
    lines = [
        "## Claim by claim\n",
        "A case that lacks some of its trials counts as not run.\n",
        "| | Where | The paper says | Read as | Cases |",
        "|---|---|---|---|---|",
    ]
    for verdict in decided:
        claim = verdict.claim
        lines.append(
            f"| **{verdict.status}** | {claim.place} | {claim.text} | {claim.reading} | {verdict.counts} |"
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
        return ""
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
