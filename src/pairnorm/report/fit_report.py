"""Write the report of ``fit`` to a folder, as Markdown with figures and as an HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import atomic_folder, check_not_file, drafts_in, locked_folder
from pairnorm.classify.findings import Findings
from pairnorm.classify.persistence import FACTS, TENSORS, holds_model
from pairnorm.classify.predictions import PREDICTION_FILES
from pairnorm.report.document import render_markdown
from pairnorm.report.fit_page import fit_page
from pairnorm.report.html import can_render_html, render_html

REPORT, PAGE = "report.md", "report.html"
FIGURES = ("smoothing.png", "confusion.png", "comparison.png", "depth.png")
REPORT_FILES = {REPORT, PAGE, *FIGURES}
OUTPUT_FILES = {*PREDICTION_FILES, FACTS, TENSORS, *REPORT_FILES}
"""All that a run may write."""


def write_report(findings: Findings, folder: Path, notes: Sequence[str] = ()) -> None:
    """Write ``report.md`` with its figures and, where the libraries are installed, ``report.html``.

    Args:
        findings: what the report says.
        folder: where to write.
        notes: what else the user should know, a sentence each.
    """
    document = fit_page(findings, notes)
    (folder / REPORT).write_text(render_markdown(document, folder), encoding="utf-8")
    if can_render_html():
        (folder / PAGE).write_text(render_html(document), encoding="utf-8")


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
    """Return whether files are the output for a packed graph, which has no model."""
    named = {path.name: path for path in paths}
    if not {PREDICTION_FILES[0], REPORT} <= named.keys() <= {*PREDICTION_FILES, REPORT}:
        return False
    with named[PREDICTION_FILES[0]].open("rb") as file:
        return file.read(13) == b"id,predicted,"
