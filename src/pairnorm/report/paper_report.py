"""Write the report of the paper from the store alone: five sentences, gains, tables, claims, figures."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from statistics import fmean

from pairnorm.base.errors import markdown as markdown_text
from pairnorm.base.errors import markdown_code
from pairnorm.base.files import write_text
from pairnorm.base.memory import without_collection
from pairnorm.base.plotting import save
from pairnorm.paper.claims import requested_runs, verdicts
from pairnorm.paper.evidence import STATUSES, Evidence, Layers, Verdict, read_layers
from pairnorm.paper.experiments import CLAIMS_AGAIN, EXPERIMENTS, TABLE1, Selection, reported
from pairnorm.paper.figures import MODELS, PER_GRAPH, Drawing, drawings, figure2_drawing
from pairnorm.report import document as doc
from pairnorm.report import paper_sections as paper
from pairnorm.report.document import Table as Shown
from pairnorm.sweep.grid import Summary, best
from pairnorm.sweep.index import ResultIndex, open_results
from pairnorm.sweep.significance import significant
from pairnorm.sweep.tables import TITLES, Table, as_csv, latex, show_mean
from pairnorm.train import Spec, Trial
from pairnorm.train.result import Origin, Result

FIGURES = "figures"
NOTES = "notes.md"
"""A file in the output folder that, if there is one, becomes a section of the report: findings of people."""
SPEC_FIELDS = [field.name for field in fields(Spec)]
MAX_ROWS = 50
"""Specs of the user per graph that the report shows."""
ORIGIN_COLUMNS = {"pairnorm": "pairnorm_version", "torch": "torch_version", "Python": "python_version",
                  "Commit": "git_commit", "Device": "device"}  # fmt: skip
GLOSSARY = {
    "Missing": "The share of nodes outside the training set whose features were removed.",
    "Layers": "The number of graph convolutions, chosen by accuracy on the validation nodes.",
    "PN, PN-SI": "PairNorm: after each layer, nodes are centered and rescaled together, or each by itself.",
    "t1, t2": "Skip connections: the output of a layer is added to that of the next layer, or the one after.",
    "SGC, GCN, GAT": "The models: a linear one, one with hidden layers, and one with attention.",
    "Row-diff, col-diff": "The mean distance between nodes, and between features: both fall as a model "
    "oversmooths.",
    "±": "The standard deviation over the runs, which differ in their seeds.",
}


@dataclass
class Outputs:
    """Writes files to a folder, and lists them: tables by name, captions of figures by name, all files."""

    out: Path
    tables: dict[str, Table] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    can_draw: bool = field(default_factory=lambda: find_spec("matplotlib") is not None)

    def add_table(self, table: Table, settings: Sequence[str] = ()) -> None:
        """Write a table, if any cell of it has been run."""
        if table.filled:
            self.tables[table.name] = table
            self.write(f"{table.name}.csv", as_csv(table, settings))
            self.write(f"{table.name}.tex", latex(table))

    def add_figures(self, drawings: Iterable[Drawing]) -> None:
        """Write the figures that are not None, if matplotlib is installed."""
        for name, caption, figure in drawings if self.can_draw else ():
            if figure is not None:
                self.captions[name] = caption
                self.files += save(figure, self.out / FIGURES, name)

    def write(self, name: str, text: str) -> None:
        """Write a text file."""
        write_text(self.out / name, text)
        self.files.append(self.out / name)


def write_outputs(
    names: Iterable[str], results: ResultIndex, layers: dict[Spec, Layers], selection: Selection, out: Path
) -> Outputs:
    """Write the tables and figures of the named experiments, as far as their trials have been run."""
    outputs = Outputs(out)
    for name in names:
        if name == "figure2":
            outputs.add_figures(figure2_drawing())
        elif experiment := selection.narrow(EXPERIMENTS[name]):
            if name == "tuned" and Table.of(results, experiment).filled:
                # Below what the released code's optimizer gives with the same features.
                both = filter(None, (selection.narrow(TABLE1), experiment))
                table = Table.of(results, *both, reported=reported())
                outputs.add_table(table, ("scale", *experiment.searched))
            elif name not in ("case-study", *PER_GRAPH):
                outputs.add_table(Table.of(results, experiment, reported=reported()))
            outputs.add_figures(drawings(experiment, results, layers))
    return outputs


@without_collection()
def write_report(
    store: str | os.PathLike[str], out: str | os.PathLike[str], selection: Selection | None = None
) -> Outputs:
    """Write all tables and figures of what has been run, ``report.md`` and ``report.html``; return them.

    The same store, or its export as ``.csv``, gives the same files, bit for bit.
    """
    selection, folder = selection or Selection(), Path(out)
    with open_results(store) as opened:
        stored, layers = opened.results_by_spec(), read_layers(opened)
    trials = {spec: [run.trial for run in runs] for spec, runs in stored.items()}
    results = ResultIndex(trials)
    others = find_user_trials(trials, selection)
    only_others = bool(others) and len(others) == len(trials)  # then the report is not about the paper
    outputs = write_outputs([] if only_others else selection.names(), results, layers, selection, folder)
    title, lead = f"Trials of {Path(store).name}", ""
    sections: list[doc.Section | None] = []
    if others:
        sections.append(user_section(others))
    if not only_others:
        decided = verdicts(Evidence(results, layers, selection, all_runs=selection.runs is None))
        gains = paper.split_gains(results, selection)
        title, lead = "PairNorm, reproduced", _lead(outputs.tables, gains, decided, selection)
        sections += _sections(outputs, gains, decided)
    sections.append(_provenance(stored, results, selection, Path(store).name))
    shown = [section for section in sections if section is not None]
    document = doc.Document(title, [], shown, GLOSSARY, lead)
    if outputs.can_draw:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    outputs.write("report.md", doc.render_markdown(document, folder if outputs.can_draw else None))
    if doc.can_render_html():  # which embeds the figures
        outputs.write("report.html", doc.render_html(document, folder))
    return outputs


def _sections(
    outputs: Outputs, gains: Sequence[paper.Gain], decided: Sequence[Verdict]
) -> Iterator[doc.Section | None]:
    """Yield the sections about the paper, in the order of the report."""
    tables = outputs.tables
    blocks = {name: paper.table_blocks(table) for name, table in tables.items()}
    yield paper.splits_section(gains)
    for number, name in enumerate(MODELS, 1):
        if name in tables:
            yield doc.Section(f"Table {number}: {tables[name].title}", blocks[name])
    yield paper.differences_section([tables[name] for name in MODELS if name in tables])
    yield paper.claims_section(decided)
    yield paper.gain_section(tables.get("tuned"), blocks.get("tuned", ()))
    yield paper.scaling_section(tables, blocks.get("scaling", ()))
    yield paper.ablation_section(tables.get("ablation"), blocks.get("ablation", ()))
    path = outputs.out / NOTES
    if path.is_file():
        for part in f"\n{path.read_text(encoding='utf-8', errors='replace')}".split("\n## ")[1:]:
            heading, _, text = part.partition("\n")
            yield doc.Section(heading.strip(), [doc.Markdown(text.strip())])
    yield paper.statistics_section()
    others = [name for name in tables if name not in (*MODELS, "tuned", "scaling", "ablation")]
    links = f"More tables: {', '.join(f'[{name}]({name}.csv)' for name in others)}."
    more = [doc.Only("markdown", [doc.Markdown(links)])] if others else []
    note = [] if outputs.can_draw else [doc.Text("There are no figures: matplotlib is not installed.")]
    images = [doc.Image(f"{FIGURES}/{name}", caption) for name, caption in outputs.captions.items()]
    yield doc.Section("Figures", [*more, *note, *images])


def _lead(
    tables: Mapping[str, Table], gains: Sequence[paper.Gain], decided: Sequence[Verdict], selection: Selection
) -> str:
    """Summarize the results in at most five numbered sentences."""
    sentences = [
        *_gain_sentences(gains),
        *_tuned_sentence(tables.get("tuned")),
        *_number_sentence([tables[name] for name in MODELS if name in tables]),
        _claim_sentence(decided),
    ]
    text = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1))
    other = Selection(runs=selection.runs, epochs=selection.epochs, depths=selection.depths).options.strip()
    note = f"\n\nThese are not the paper's runs: {markdown_code(other)} was requested." if other else ""
    return text + note


def _gain_sentences(gains: Sequence[paper.Gain]) -> Iterator[str]:
    for percent in sorted({gain.percent for gain in gains}, reverse=True):
        group = [gain for gain in gains if gain.percent == percent]
        where = "With all features" if percent == 0 else f"With {percent}% of the vectors missing"
        parts = []
        for verdict in ("better", "worse"):
            sizes = sorted(abs(gain.difference.mean) for gain in group if gain.verdict == verdict)
            ends = dict.fromkeys(f"{size:.3f}" for size in (sizes[:1] + sizes[-1:]))
            by = f"{len(sizes)} (by {' to '.join(ends)})"
            parts.append(f"{verdict} in {by if sizes else 'none'}")
        runs = min(gain.difference.runs for gain in group)
        yield (
            f"{where}, PairNorm is significantly {' and '.join(parts)} of {len(group)} cases, over {runs} "
            "random splits each."
        )


def _tuned_sentence(table: Table | None) -> Iterator[str]:
    gains = [gain for gain in paper.tuned_gains(table) if gain.percent == 100]
    if gains:
        listed = [
            f"{TITLES[gain.dataset]} {gain.tuned.mean:+.3f}{'' if is_sure else ' (not significant)'}"
            for gain, is_sure in zip(gains, significant([gain.tuned for gain in gains]), strict=True)
        ]
        yield (
            "For SGC with all vectors missing, learning rate, weight decay and dropout tuned for both, the "
            f"gain that remains is {', '.join(listed)}."
        )


def _number_sentence(tables: Sequence[Table]) -> Iterator[str]:
    gaps = [abs(cell.difference) for table in tables for cell in table.entries if cell.difference is not None]
    if gaps:
        near = sum(gap <= paper.LARGE_DIFFERENCE for gap in gaps)
        yield (
            f"Of the {len(reported())} numbers in the paper's three tables, {len(gaps)} were run again: they "
            f"differ by {fmean(gaps):.3f} on average, {near} by at most {paper.LARGE_DIFFERENCE}."
        )


def _claim_sentence(decided: Sequence[Verdict]) -> str:
    counts = Counter(verdict.status for verdict in decided)
    listed = ", ".join(f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status])
    failing = sum(verdict.in_paper is not None and verdict.in_paper.status == "fails" for verdict in decided)
    noise = sum(bool(verdict.unsure) for verdict in decided)
    text = f"Of {len(decided)} claims of its text, {listed}"
    text += f"; {failing} fail on the paper's own numbers already" if failing else ""
    return f"{text}; {noise} verdicts are within the noise of their runs." if noise else f"{text}."


def find_user_trials(cells: Mapping[Spec, Sequence[Trial]], selection: Selection) -> list[Summary]:
    """Return the runs of every spec that belongs to no experiment of the paper, nor to the selection."""
    known = _specs_of(Selection()) | _specs_of(selection)
    return [Summary(spec, tuple(trials)) for spec, trials in cells.items() if spec not in known and trials]


def _specs_of(selection: Selection) -> set[Spec]:
    narrowed = filter(None, map(selection.narrow, EXPERIMENTS.values()))
    return {spec for experiment in narrowed for spec in experiment.specs()}


def user_section(summaries: Sequence[Summary]) -> doc.Section:
    """Return the section on the user's trials: per graph, the best spec and a table of the varied fields."""
    text = (
        f"{len(summaries):,} specs that are none of the paper's, ranked by mean validation accuracy. "
        "Python's `Store.export` writes all trials as CSV. Give `pairnorm report` the options of `pairnorm "
        "reproduce`, such as `--epochs`, to see trials next to the paper's numbers."
    )
    graphs = dict.fromkeys(summary.spec.dataset for summary in summaries)
    tables = [_user_graph(name, [runs for runs in summaries if runs.spec.dataset == name]) for name in graphs]
    return doc.Section("Trials of your own", [doc.Markdown(text), *tables])


def _user_graph(dataset: str, summaries: Sequence[Summary]) -> doc.Details:
    first, trials = best(summaries), [trial for runs in summaries for trial in runs.trials]
    measures = list(dict.fromkeys(name for trial in trials for name in trial.measures))
    varied = [name for name in SPEC_FIELDS if len({getattr(runs.spec, name) for runs in summaries}) > 1]
    rows = []
    for runs in sorted(summaries, key=lambda runs: -runs.validation)[:MAX_ROWS]:
        accuracy = show_mean(runs.mean("test_accuracy"), runs.std("test_accuracy"))
        numbers = [str(len(runs.trials)), f"{runs.mean('validation_accuracy'):.3f}", accuracy]
        settings = [str(getattr(runs.spec, name)) for name in varied]
        rows.append([*settings, *numbers, *(_mean(runs, name) for name in measures)])
    text = (
        f"Best by validation: {markdown_code(first.spec)}, {first.mean('test_accuracy'):.3f} of the test "
        f"nodes over {len(first.trials)} runs."
    )
    columns = [*varied, "runs", "validation", "test accuracy", *measures]
    more = [doc.Text(f"… and {len(summaries) - MAX_ROWS:,} more.")] if len(summaries) > MAX_ROWS else []
    return doc.Details(dataset, [doc.Markdown(text), Shown(columns, rows), *more])


def _mean(runs: Summary, measure: str) -> str:
    """Format the mean of a measure; empty where a run lacks it, or it is NaN."""
    is_known = all(measure in trial.measures for trial in runs.trials)
    return "" if not is_known or isnan(runs.mean(measure)) else f"{runs.mean(measure):.3g}"


def _provenance(
    stored: Mapping[Spec, Sequence[Result]], results: ResultIndex, selection: Selection, store: str
) -> doc.Section:
    """Return the section on what was run: experiments, versions, commits, devices and times."""
    origins = {(spec, run.trial.seed): run.origin for spec, runs in stored.items() for run in runs}
    rows = []
    for experiment in EXPERIMENTS.values():
        narrowed = selection.narrow(experiment)
        if narrowed is None or experiment.name == "case-study":
            continue
        pairs = list(narrowed.requested())
        if experiment.name == CLAIMS_AGAIN.name:
            pairs = requested_runs(results, narrowed)
        done = [origins[pair] for pair in pairs if pair in origins]
        command = f"`pairnorm reproduce {experiment.name}{selection.options}`"
        counts = [f"{len(done):,}", f"{len(pairs):,}"]
        rows.append([command, experiment.title, *counts, _training_time(done)])
    headings = ["Command", "What", "Trials", "of", "Time"]
    text = (
        "Experiments share trials: a trial that several of them need is trained once and counted in each. "
        "Time is that in which at least one of an experiment's trials was being trained, on any device. "
        "In brackets: trials."
    )
    items = []
    if origins:
        for name, column in ORIGIN_COLUMNS.items():
            values = Counter(getattr(origin, column) or "unknown" for origin in origins.values())
            listed = ", ".join(f"{value} ({count:,})" for value, count in values.most_common())
            items.append(f"{name}: {markdown_text(listed)}")
        diverged = sum(run.trial.diverged for runs in stored.values() for run in runs)
        items.append(f"Trials in the store: {len(origins):,}, of which diverged: {diverged:,}")
        items.append(f"Time in which something was trained: {_training_time(origins.values())}")
        finished = [origin.finished for origin in origins.values()]
        items.append(markdown_text(f"From {min(finished)} to {max(finished)}"))
    items.append(f"This report: {markdown_code(f'pairnorm report --store {store}{selection.options}')}")
    items = [f"- {item}" for item in items]
    shown = Shown(headings, rows, formatted=True, left=2)
    return doc.Section("What was run", [shown, doc.Text(text), doc.Markdown("\n".join(items))])


def _training_time(origins: Iterable[Origin]) -> str:
    """Return the time in which at least one job ran; jobs that overlap count once."""
    spans = set()
    for origin in {id(origin): origin for origin in origins}.values():  # thousands of trials share one object
        end = datetime.fromisoformat(origin.finished).timestamp()
        spans.add((end - origin.seconds, end))
    seconds, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    minutes = f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    return "" if not spans else f"{seconds:.0f} s" if seconds < 120 else minutes
