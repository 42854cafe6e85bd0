"""What a run writes: predictions, a report, and all of it at once or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pairnorm.base.errors import PairNormError
from pairnorm.base.escaping import markdown
from pairnorm.base.files import atomic_folder, check_not_file, drafts_in, locked_folder
from pairnorm.classify.candidates.base import Candidate
from pairnorm.classify.diagnosis import HEADINGS, measured
from pairnorm.classify.findings import COMING_LATER, LATER, Findings
from pairnorm.classify.persistence import FACTS, TENSORS, holds_model
from pairnorm.classify.predictions import PREDICTION_FILES
from pairnorm.classify.search import BASELINE_EPOCHS, BASELINE_SEEDS
from pairnorm.report import can_render, render
from pairnorm.report.fit_figures import draw_baselines, draw_confusion, draw_depths, draw_smoothing
from pairnorm.report.fit_page import (
    CLASS_COLUMNS,
    GROUP_COLUMNS,
    accuracy_tables,
    fit_page,
    numbers,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


REPORT, PAGE = "report.md", "report.html"
FIGURES = ("smoothing.png", "confusion.png", "comparison.png", "depth.png")


def write_report(findings: Findings, folder: Path, notes: Sequence[str] = ()) -> None:
    """Write ``report.md`` and its figures, and the same as a page, ``report.html``, where it can be written.

    Args:
        findings: what there is to say.
        folder: where to.
        notes: what else the user should know, a sentence each.
    """
    figures: dict[str, Figure] = {}
    if findings.smoothing:
        depth = None if findings.deep is None else findings.deep.depth
        figures["smoothing.png"] = draw_smoothing(findings.smoothing, depth)
    if findings.test.any():
        scores = findings.scores(findings.predicted, findings.test)
        figures["confusion.png"] = draw_confusion(scores, findings.graph.class_names)
        figures["comparison.png"] = draw_baselines(findings.comparison())
    if findings.chosen and findings.deep is not None:
        figures["depth.png"] = draw_depths(findings.classifier.search_, findings.deep)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may have any letters
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=150)
    text = "\n\n".join(_sections(findings, notes)) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")
    if can_render():
        (folder / PAGE).write_text(render(fit_page(findings, notes)), encoding="utf-8")


def _sections(findings: Findings, notes: Sequence[str]) -> Iterator[str]:
    yield f"# Labels for {markdown(findings.graph.name)}"
    yield findings.verdict()
    yield _about(findings)
    if notes:
        yield "\n".join(f"- {markdown(note)}" for note in notes)
    if findings.test.any():
        yield from _accuracy(findings)
        yield "## Against simpler methods"
        yield _table(
            ["", *GROUP_COLUMNS[1:]],
            [[name, *numbers(scores)] for name, scores in findings.comparison().items()],
        )
        yield _tuning(findings)
        yield "![Accuracy of the model and of simpler methods](comparison.png)"
    if findings.chosen:
        yield from _parts(findings)
        if findings.deep is not None:
            yield from _depth(findings, findings.deep)
    if findings.smoothing:
        yield from _smoothing(findings)


def _about(findings: Findings) -> str:
    graph, classifier, suggestion = findings.graph, findings.classifier, findings.suggestion
    sizes = [f"{int(mask.sum()):,} {part}" for part, mask in graph.split._asdict().items()]
    missing = int(graph.missing_vectors.sum())
    rows = [
        ["nodes", f"{graph.num_nodes:,}, {graph.num_edges:,} edges"],
        ["classes", f"{graph.num_classes}: {', '.join(graph.class_names[:12])}"],
        ["labeled", f"{int(graph.labeled.sum()):,} nodes: {', '.join(sizes)}"],
        *([["tested on", f"the latest by {classifier.time}"]] if classifier.time is not None else []),
        ["homophily", dict(graph.describe())["homophily"]],
        ["without features", f"{missing:,} nodes ({percent(missing / graph.num_nodes)})"],
    ]
    if suggestion.unreachable:
        what = "of those have no path to a node with features: all of them get the same guess"
        rows.append(["out of reach", f"{suggestion.unreachable:,} {what}"])
    if findings.direction is not None:
        rows.append(["direction", findings.direction])
    rows += [
        ["features", f"{graph.num_features:,}; {classifier.scaling_.sentence}"],
        ["model", f"{classifier.best_.name}, adjacency {classifier.adjacency}"],
    ]
    return _table(["", ""], rows)


def _accuracy(findings: Findings) -> Iterator[str]:
    yield "## How often it is right"
    yield (
        "On held-out nodes, whose labels took no part in training or in choosing the model. Balanced "
        "accuracy (the mean over classes) and macro F1 count small classes as much as large ones."
    )
    groups = findings.groups()
    if LATER in groups:
        yield COMING_LATER
    by_group, by_class = accuracy_tables(groups, findings.graph.class_names)
    yield _table(["", *GROUP_COLUMNS], by_group)
    yield "By class:"
    yield _table(CLASS_COLUMNS, by_class)
    yield "![Confusion matrix](confusion.png)"
    count, right = findings.confident()
    yield (
        f"It gives its class at least 90% on {count:,} held-out nodes, and is right on {percent(right)} of "
        "them. (How confident to be was learned from "
        f"{findings.judges}: temperature {findings.classifier.temperature_:.2g}.)"
    )


def _tuning(findings: Findings) -> str:
    """Say how each method was tuned."""
    if not findings.chosen:
        return (
            "All were fitted on the same training nodes. There are no validation nodes: settings are by rule."
        )
    tried = [(findings.classifier.best_.name, len(findings.classifier.search_), "")]
    tried += [
        (baseline.name, baseline.num_candidates, baseline.best.setting)
        for baseline in findings.baselines
        if baseline.num_candidates > 1
    ]
    amounts = [f"{name}: {count:,}{f' ({setting})' if setting else ''}" for name, count, setting in tried]
    return (
        f"All were fitted on the same nodes, and the settings of each chosen by {findings.judges}, "
        f"among so many: {'; '.join(amounts)}. Validation nodes choose learning rate and dropout of the GCN "
        f"and the best of {BASELINE_EPOCHS} epochs; the width is fixed, {BASELINE_SEEDS} seeds are averaged."
    )


def _parts(findings: Findings) -> Iterator[str]:
    classifier = findings.classifier
    yield "## What it consists of"
    taken = f"those were taken that together do best on {findings.judges}, by {classifier.metric}"
    if classifier.best_.one_per_model:
        taken = f"{findings.judges} tell none from the classes' shares; the best of every kind was taken"
    yield f"Of {len(classifier.search_):,} models tried, {taken}: probabilities are averaged. Each alone:"
    named = [*classifier.parts_, (sum(weight for weight, _ in classifier.parts_), classifier.best_)]
    yield _table(
        ["", "taken", "validation accuracy", "validation loss"],
        [
            [
                one.name if one.depth or one.model == "average" else f"{one.name} {one.setting}".strip(),
                f"{weight}",
                percent(one.validation_accuracy),
                f"{one.validation_loss:.3f}",
            ]
            for weight, one in (named if classifier.best_.model == "average" else named[:1])
        ],
    )
    if classifier.refit:
        yield (
            "The delivered model learned from all labels after this choice, except your test labels; "
            "all numbers here are from before."
        )


def _depth(findings: Findings, best: Candidate) -> Iterator[str]:
    tried = [candidate for candidate in findings.classifier.search_ if candidate.depth]
    yield "## How deep"
    yield (
        f"Of {len(tried):,} networks tried, {best.name} had the smallest loss on {findings.judges} "
        f"(right on {percent(best.validation_accuracy)}). Of each depth the best scale is drawn."
    )
    depths = {candidate.depth for candidate in tried if candidate.model == best.model}
    if len(depths) > 1 and best.depth == max(depths):
        yield f"No {best.model} was tried with more layers; --depth tries others."
    if {("SGC", "none"), ("SGC", "PN")} <= {(candidate.model, candidate.norm) for candidate in tried}:
        yield (
            "For SGC, PairNorm centers and rescales what propagation has shrunk. A plain SGC could "
            "make up for that with a regularization of its own at every depth; with these scales it cannot."
        )
    yield "![Validation accuracy against depth](depth.png)"


def _smoothing(findings: Findings) -> Iterator[str]:
    yield "## What depth does to the features"
    yield (
        "Repeated averaging makes nodes alike (row-diff falls) and features alike (col-diff falls). PairNorm "
        "keeps the total squared distance between nodes where it was. Measured on the scaled features, "
        "propagated without any training; row-diff and col-diff as a share of depth 0."
    )
    yield "![Oversmoothing measures against depth](smoothing.png)"
    yield _table(HEADINGS, measured(findings.smoothing))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; numbers to the right."""
    rule = [":--", *["--:" if len(header) > 2 else ":--"] * (len(header) - 1)]
    lines = [header, rule, *(map(markdown, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


REPORT_FILES = {REPORT, PAGE, *FIGURES}
OUTPUT_FILES = {*PREDICTION_FILES, FACTS, TENSORS, *REPORT_FILES}
"""All that a run may write."""


@contextmanager
def result_folder(folder: Path, names: Collection[str] = OUTPUT_FILES) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing has changed.

    Args:
        folder: absent, empty, or with the output of an earlier run.
        names: files to replace or, where the drafts have no such file, to remove. Other files stay.
    """
    check_folder(folder)
    with atomic_folder(folder, names) as drafts:
        yield drafts


def check_folder(folder: Path) -> None:
    """Refuse a folder that is in use for something else.

    Args:
        folder: where results are to go.
    """
    check_not_file(folder)
    with locked_folder(folder):
        pass
    if not folder.is_dir() or holds_model(folder):
        return
    others = set(folder.iterdir()) - set(drafts_in(folder, folder.resolve()))
    if others and not _is_streamed(others):
        problem = f"{folder}: the folder holds files that no run wrote"
        hint = "Choose another, such as a new one in it."
        raise PairNormError(problem, code="foreign-folder", value=str(folder), hint=hint)


def _is_streamed(paths: set[Path]) -> bool:
    """Say whether files are the outcome of a packed graph, which has no model."""
    found = {path.name: path for path in paths}
    if not {PREDICTION_FILES[0], REPORT} <= found.keys() <= {*PREDICTION_FILES, REPORT}:
        return False
    with found[PREDICTION_FILES[0]].open("rb") as file:
        return file.read(13) == b"id,predicted,"
