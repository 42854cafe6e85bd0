"""Define the parts of a report, and render them as Markdown; ``pairnorm.report.html`` renders HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from pairnorm.base.escaping import markdown
from pairnorm.report.charts import Chart


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text."""

    text: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Markdown:
    """Our own text in Markdown; HTML in it is not interpreted."""

    text: str
    kind: ClassVar[str] = "markdown"


@dataclass(frozen=True)
class Table:
    """A table; in HTML, a click on a heading sorts it.

    Args:
        headings: names of the columns.
        rows: a text for each cell.
        caption: what it shows.
        search: in HTML, add a search field.
        charts: in HTML, a chart for each row, shown when the row is selected; or None.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    search: bool = False
    charts: Sequence[Chart | None] = ()
    kind: ClassVar[str] = "table"

    @property
    def data(self) -> Any:
        """Data for the script."""
        return [chart and chart.data for chart in self.charts] or None


@dataclass(frozen=True)
class Details:
    """Blocks that are folded in HTML; in Markdown below a heading, or folded as well."""

    summary: str
    blocks: Sequence[Any]
    folded: bool = False
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Image:
    """A figure that was written as ``path.png`` and ``path.pdf``; in Markdown only."""

    path: str
    caption: str
    kind: ClassVar[str] = "image"


@dataclass(frozen=True)
class Only:
    """Blocks for one medium: ``"markdown"`` or ``"html"``."""

    medium: str
    blocks: Sequence[Any]

    @property
    def kind(self) -> str:
        """The kind, which the page shows for HTML alone."""
        return f"only-{self.medium}"


@dataclass(frozen=True)
class Threshold:
    """A slider from 0 to 100%, and a sentence for each of these values."""

    label: str
    sentences: Sequence[str]
    start: int = 90
    kind: ClassVar[str] = "threshold"

    @property
    def data(self) -> Any:
        """Data for the script."""
        return list(self.sentences)


@dataclass(frozen=True)
class Choices:
    """Blocks for each of several choices; HTML shows one at a time."""

    label: str
    choices: Mapping[str, Sequence[Any]]
    start: int = 0
    kind: ClassVar[str] = "choices"


@dataclass(frozen=True)
class Nodes:
    """The table of nodes, in HTML only: it sorts, filters and finds ids.

    ``assets/page.js`` describes its columns.
    """

    total: int
    columns: Mapping[str, Any]
    kind: ClassVar[str] = "nodes"

    @property
    def data(self) -> Any:
        """Data for the script."""
        return {"total": self.total, **self.columns}


@dataclass(frozen=True)
class Section:
    """A part with a heading; in a wide one, HTML puts charts side by side."""

    title: str
    blocks: Sequence[Any]
    wide: bool = False

    @property
    def anchor(self) -> str:
        """The end of a link to it, as on GitHub."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: of the document.
        cards: on top, each a question, an answer in large letters and an explanation.
        sections: what follows.
        glossary: terms and their meanings.
        lead: a sentence in Markdown below the title.
        download: the label of a button that downloads the nodes to review.
    """

    title: str
    cards: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    glossary: Mapping[str, str] = field(default_factory=dict)
    lead: str = ""
    download: str = ""


def render_markdown(document: Document, folder: Path | None = None) -> str:
    """Return a document as Markdown, and draw its named charts as PNG files.

    Controls of the HTML page become text: a slider its first sentence, choices one part each.

    Args:
        document: the document.
        folder: where to draw charts. Default: no charts.
    """
    parts = [f"# {markdown(document.title)}"]
    parts += [document.lead] if document.lead else []
    rows = [[f"{question}: {answer}", meaning] for question, answer, meaning in document.cards]
    parts += [_table(["", ""], rows)] if rows else []
    for section in document.sections:
        blocks = list(_blocks(section.blocks, folder))
        parts += [f"## {markdown(section.title)}", *blocks] if blocks else []
    return "\n\n".join(parts) + "\n"


def _blocks(blocks: Sequence[Any], folder: Path | None) -> Iterator[str]:
    for name, group in groupby(blocks, lambda block: block.name if isinstance(block, Chart) else None):
        if name is None:
            for block in group:
                yield from _block(block, folder)
        elif name and folder is not None:
            from pairnorm.report.figures import save_charts

            charts = list(group)
            save_charts(charts, folder / f"{name}.png")
            yield f"![{markdown(charts[0].title)}]({name}.png)"


def _block(block: Any, folder: Path | None) -> Iterator[str]:
    if isinstance(block, Text):
        yield markdown(block.text)
    elif isinstance(block, Markdown):
        yield block.text
    elif isinstance(block, Table):
        if block.caption:
            yield f"{markdown(block.caption)}:"
        yield _table(block.headings or [""] * len(block.rows[0]), block.rows)
    elif isinstance(block, Details):
        summary = markdown(block.summary)
        yield f"<details><summary>{summary}</summary>" if block.folded else f"### {summary}"
        yield from _blocks(block.blocks, folder)
        if block.folded:
            yield "</details>"
    elif isinstance(block, Image):
        name = markdown(block.caption)
        yield f"![{name}]({block.path}.png)\n\n{name} [PDF]({block.path}.pdf)"
    elif isinstance(block, Only) and block.medium == "markdown":
        yield from _blocks(block.blocks, folder)
    elif isinstance(block, Threshold):
        yield f"{markdown(block.label)} {block.start}%: {markdown(block.sentences[block.start])}"
    elif isinstance(block, Choices):
        name = list(block.choices)[block.start]
        yield f"{markdown(block.label)} {markdown(name)}:"
        yield from _blocks(block.choices[name], folder)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; numbers are aligned right."""
    rule = [":--", *["--:" if len(headings) > 2 else ":--"] * (len(headings) - 1)]
    lines = [map(markdown, headings), rule, *(map(markdown, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
