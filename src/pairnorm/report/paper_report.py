"""The report of the paper, from the store alone: five sentences, gains, tables, claims, figures."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

from pairnorm.base.escaping import markdown_code
from pairnorm.base.files import write_text
from pairnorm.base.memory import without_collection
from pairnorm.base.plotting import Save, save, saving
from pairnorm.data import datasets
from pairnorm.paper.case_study import Layers, read_layers
from pairnorm.paper.claims import verdicts
from pairnorm.paper.evidence import CASES, STATUSES, Evidence, Verdict
from pairnorm.paper.experiments import DATASETS, EXPERIMENTS, TABLE1, Selection, reported
from pairnorm.paper.figures import MODELS, PER_GRAPH, Drawing, drawings, two_steps
from pairnorm.report.document import Details, Document, Image, Markdown, Only, Section, Text, render_markdown
from pairnorm.report.document import Table as Shown
from pairnorm.report.html import can_render_html, render_html
from pairnorm.report.paper_sections import (
    Gain,
    ablation_section,
    gain_section,
    interactive_figures,
    scaling_section,
    split_gains,
    splits_section,
    table_blocks,
    tuned_gains,
)
from pairnorm.report.provenance import OWN_FILE, own_csv, own_section, own_trials, provenance
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.index import ResultIndex, open_results
from pairnorm.sweep.significance import significant
from pairnorm.sweep.tables import TITLES, Table, as_csv, latex
from pairnorm.train import Spec

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
LARGE = 0.05
"""A difference from the paper that is listed."""
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
    trials = {spec: [one.trial for one in some] for spec, some in stored.items()}
    results = ResultIndex(trials)
    own = own_trials(trials, selection)
    is_own = bool(own) and len(own) == len(trials)  # then the report is not about the paper
    with saving(workers) as save:  # while the rest is written
        outputs = write_outputs([] if is_own else selection.names(), results, layers, selection, folder, save)
        if own:
            outputs.write(OWN_FILE, own_csv(own))
        ran = provenance(stored, results, selection, Path(store).name)
        sections: list[Section | None] = [own_section(own)]
        title, lead = f"Trials of {Path(store).name}", ""
        if not is_own:
            decided = verdicts(Evidence(results, layers, selection, every_run=selection.runs is None))
            gains = split_gains(results, selection)
            title, lead = "PairNorm, reproduced", _lead(outputs.tables, gains, decided, selection)
            sections += _sections(outputs, results, selection, gains, decided, folder)
        sections.append(ran)
        document = Document(
            title, [], [section for section in sections if section is not None], GLOSSARY, lead
        )
        if not outputs.note:
            (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        outputs.write("report.md", render_markdown(document, None if outputs.note else folder))
        if can_render_html():
            outputs.write("report.html", render_html(document))
    return outputs


def _sections(
    outputs: Outputs,
    results: ResultIndex,
    selection: Selection,
    gains: Sequence[Gain],
    decided: Sequence[Verdict],
    folder: Path,
) -> Iterator[Section | None]:
    """Yield the sections about the paper, in the order of the report."""
    tables = outputs.tables
    blocks = {name: table_blocks(table, results, selection) for name, table in tables.items()}
    yield splits_section(gains)
    for number, name in enumerate(MODELS, 1):
        if name in tables:
            links = Only("markdown", [Markdown(f"[CSV]({name}.csv), [LaTeX]({name}.tex)")])
            yield Section(f"Table {number}: {tables[name].title}", [*blocks[name], links])
    yield _differences([tables[name] for name in MODELS if name in tables])
    yield _claims(decided)
    yield gain_section(tables.get("tuned"), blocks.get("tuned", ()))
    yield scaling_section(tables, blocks.get("scaling", ()))
    yield ablation_section(results, selection, tables.get("ablation"), blocks.get("ablation", ()))
    path = folder / NOTES
    if path.is_file():
        for part in f"\n{path.read_text(encoding='utf-8', errors='replace')}".split("\n## ")[1:]:
            heading, _, text = part.partition("\n")
            yield Section(heading.strip(), [Markdown(text.strip())])
    yield _statistics()
    images = [Image(f"{FIGURES}/{name}", caption) for name, caption in outputs.captions.items()]
    shown = [*images, Only("html", list(interactive_figures(results, selection)))]
    yield Section("Figures", [*([Text(outputs.note)] if outputs.note else []), *shown])


def _lead(
    tables: Mapping[str, Table], gains: Sequence[Gain], decided: Sequence[Verdict], selection: Selection
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


def _gain_sentences(gains: Sequence[Gain]) -> Iterator[str]:
    for percent in sorted({one.percent for one in gains}, reverse=True):
        some = [one for one in gains if one.percent == percent]
        where = "With all features" if percent == 0 else f"With {percent}% of the vectors missing"
        runs = min(one.difference.runs for one in some)
        verdicts = []
        for verdict in ("better", "worse"):
            sizes = [abs(one.difference.mean) for one in some if one.verdict == verdict]
            ends = [f"{size:.3f}" for size in (min(sizes, default=0), max(sizes, default=0))]
            by = f" (by {' to '.join(dict.fromkeys(ends))})"
            verdicts.append(f"{verdict} in {len(sizes)}{by}" if sizes else f"{verdict} in none")
        yield (
            f"{where}, PairNorm is significantly {' and '.join(verdicts)} of {len(some)} cases, over {runs} "
            "random splits each."
        )


def _tuned_sentence(table: Table | None) -> Iterator[str]:
    gains = [gain for gain in tuned_gains(table) if gain.percent == 100]
    if gains:
        decided = [
            f"{TITLES[gain.dataset]} {gain.tuned.mean:+.3f}{'' if is_sure else ' (not significant)'}"
            for gain, is_sure in zip(gains, significant([gain.tuned for gain in gains]), strict=True)
        ]
        yield (
            "For SGC with all vectors missing, learning rate, weight decay and dropout tuned for both, the "
            f"gain that remains is {', '.join(decided)}."
        )


def _number_sentence(tables: Sequence[Table]) -> Iterator[str]:
    gaps = [abs(one.difference) for table in tables for one in table.entries if one.difference is not None]
    if gaps:
        yield (
            f"Of the {len(reported())} numbers in the paper's three tables, {len(gaps)} were run again: they "
            f"differ by {fmean(gaps):.3f} on average, {sum(gap <= LARGE for gap in gaps)} by at most {LARGE}."
        )


def _claim_sentence(decided: Sequence[Verdict]) -> str:
    counts = Counter(verdict.status for verdict in decided)
    listed = ", ".join(f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status])
    own = sum(one.in_paper is not None and one.in_paper.status == "fails" for one in decided)
    noise = sum(bool(verdict.unsure) for verdict in decided)
    return (
        f"Of {len(decided)} claims of its text, {listed}"
        + (f"; {own} fail on the paper's own numbers already" if own else "")
        + (f"; {noise} verdicts are within the noise of their runs" if noise else "")
        + "."
    )


def _differences(tables: Sequence[Table]) -> Section | None:
    known = [
        (entry, entry.difference)
        for table in tables
        for entry in table.entries
        if entry.difference is not None
    ]
    if not known:
        return None
    large = [(entry, difference) for entry, difference in known if abs(difference) > LARGE]
    rows = []
    for entry, difference in sorted(large, key=lambda pair: -abs(pair[1])):
        dataset, method, percent = entry.cell
        values = [
            f"{one.accuracy:.3f} @ {one.layers}" for one in (entry.ours, entry.paper) if one is not None
        ]
        rows.append([TITLES[dataset], method, f"{percent}%", *values, f"{difference:+.3f}"])
    headings = ["Graph", "Method", "Missing", "Ours", "Paper", "Difference"]
    text = f"{len(large)} of {len(known)} numbers differ from the paper's by more than {LARGE}."
    return Section("Where we differ from the paper", [Text(text), *([Shown(headings, rows)] if rows else [])])


def _claims(decided: Sequence[Verdict]) -> Section:
    """Return all claims in one table, and below it, folded, the cases of each."""
    marks = {True: "yes", False: "no", None: "not run"}
    rows = [
        [
            f"{one.claim.text} ({one.claim.section})",
            one.in_paper.answer if one.in_paper else "no numbers",
            one.answer,
            one.strength,
        ]
        for one in decided
    ]
    evidence = [
        Details(
            f"{one.claim.text} ({one.answer})",
            [
                Text(f"Tested: {one.claim.reading}."),
                Shown(
                    ["Case", "Holds", "Evidence"],
                    [[case.label, marks[case.holds], case.evidence] for case in one.cases],
                ),
            ],
            folded=True,
        )
        for one in decided
        if one.run
    ]
    headings = ["The paper says", "In its numbers", "In ours", "How strongly"]
    return Section("Claim by claim", [Shown(headings, rows, search=True), Markdown(CASES), *evidence])


def _statistics() -> Section:
    """Return the statistics of the four graphs."""
    rows = [
        [
            one.title,
            f"{one.nodes:,}",
            f"{one.edges:,}",
            f"{one.listed_edges:,}",
            f"{one.features:,}",
            str(one.classes),
            f"{one.label_rate:.3f}",
        ]
        for one in datasets()
        if one.name in DATASETS
    ]
    headings = ["Graph", "Nodes", "Edges", "Edges in the paper", "Features", "Classes", "Label rate"]
    text = (
        "Edges are distinct and undirected; the paper counts all listed pairs, with repeats and self-loops."
    )
    return Section("Data sets", [Shown(headings, rows), Text(text)])
