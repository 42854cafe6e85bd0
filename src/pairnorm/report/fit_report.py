"""Write the report of ``fit`` to a folder, as Markdown with figures and as an HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import atomic_folder, check_not_file, drafts_in, locked_folder
from pairnorm.base.memory import size
from pairnorm.classify.conformal import ALL
from pairnorm.classify.findings import Findings
from pairnorm.classify.persistence import FACTS, TENSORS, holds_model
from pairnorm.classify.predictions import PREDICTION_FILES
from pairnorm.classify.search_limits import ENOUGH
from pairnorm.classify.streaming import Outcome
from pairnorm.report.document import Document, Section, Table, Text, render_markdown
from pairnorm.report.fit_page import CLASS_COLUMNS, GROUP_COLUMNS, accuracy_tables, fit_page, percent
from pairnorm.report.html import can_render_html, render_html

REPORT, PAGE = "report.md", "report.html"
FIGURES = ("smoothing.png", "confusion.png", "comparison.png", "depth.png")
REPORT_FILES = {REPORT, PAGE, *FIGURES}
OUTPUT_FILES = {*PREDICTION_FILES, FACTS, TENSORS, *REPORT_FILES}
"""All that a run may write."""


def write_report(findings: Findings, folder: Path, notes: Sequence[str] = ()) -> None:
    """Write ``report.md`` with its figures and, where the libraries are installed, ``report.html``."""
    write_document(fit_page(findings, notes), folder)


def write_document(document: Document, folder: Path) -> None:
    """Write ``report.md`` with its figures and, where the libraries are installed, ``report.html``."""
    (folder / REPORT).write_text(render_markdown(document, folder), encoding="utf-8")
    if can_render_html():
        (folder / PAGE).write_text(render_html(document), encoding="utf-8")


def streamed_page(outcome: Outcome) -> Document:
    """Return the report of a model that was fitted to a packed graph.

    Args:
        outcome: the result of the search.
    """
    graph, rows, scores, best = outcome.graph, outcome.rows, outcome.scores, outcome.best
    low, high = scores.interval
    metric = outcome.metric.replace("-", " ")
    by_group, by_class = accuracy_tables({ALL: scores}, graph.facts.classes)
    tried = [
        [
            one.name,
            one.setting,
            f"{score:.3f}",
            percent(one.validation_accuracy),
            f"{one.validation_loss:.3f}",
        ]
        for one, score, _ in outcome.best_by_method
    ]
    setting = f" ({best.setting})" if best.setting else ""
    learned = np.count_nonzero(rows.train_labels >= 0)
    selected = (
        f"{best.name}{setting} was selected by its {metric} on {len(rows.validation):,} validation nodes. "
        f"It was trained on {len(rows.train):,} of {learned:,} training nodes, a stratified sample; the "
        f"candidates were compared on {min(ENOUGH, len(rows.train)):,} of them."
    )
    plan = outcome.plan
    memory = (
        f"At most {size(plan.peak(plan.width))} of {size(plan.memory)} allowed were planned, in blocks of "
        f"{plan.width} columns."
    )
    interval = f"95% interval {100 * low:.1f} to {100 * high:.1f}%"
    text = f"on {scores.count:,} test nodes, whose labels were not used otherwise; {interval}."
    sections = [
        Section(
            "Accuracy",
            [
                *([Text(outcome.caveat)] if outcome.caveat else []),
                Table(["group", *GROUP_COLUMNS], by_group),
                Table(CLASS_COLUMNS, by_class),
            ],
        ),
        Section(
            "Candidates",
            [
                Text(selected),
                Table(["candidate", "setting", metric, "validation accuracy", "validation loss"], tried),
            ],
        ),
        Section("Not tried", [Text(f"{what}.") for what in outcome.left_out]),
        Section("Data and memory", [Table([], graph.describe()), Text(memory)]),
    ]
    cards = [("Accuracy", percent(scores.accuracy), text)]
    return Document(f"Labels for {graph.folder.name}", cards, sections, {})


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
    """Refuse a folder that is in use for something else."""
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
    """Return whether files are the output for a packed graph, which has no model."""
    named = {path.name: path for path in paths}
    if not {PREDICTION_FILES[0], REPORT} <= named.keys() <= {*PREDICTION_FILES, *REPORT_FILES}:
        return False
    with named[PREDICTION_FILES[0]].open("rb") as file:
        return file.read(13) == b"id,predicted,"
