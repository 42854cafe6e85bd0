"""Define the parts of a report, and render them as Markdown or as one HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from pairnorm import __version__
from pairnorm.base.errors import PairNormError, install, markdown, terminal
from pairnorm.report.charts import Block, Chart, save_charts
from pairnorm.sweep.tables import markdown_table

ASSETS = files("pairnorm.report") / "assets"
NEEDED = ("jinja2", "plotly", "markdown_it")


@dataclass(frozen=True)
class Text(Block):
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Markdown(Block):
    """Text of this package in Markdown; HTML in it is not interpreted."""

    text: str


@dataclass(frozen=True)
class Table(Block):
    """A table; in HTML, a click on a heading sorts it.

    Args:
        headings: names of the columns.
        rows: a text for each cell.
        caption: what it shows.
        search: in HTML, add a search field.
        formatted: whether cells are our own text in Markdown. Default: plain text.
        left: columns that are aligned to the left where cells are formatted. Default: all.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    search: bool = False
    formatted: bool = False
    left: int | None = None


@dataclass(frozen=True)
class Details(Block):
    """Blocks that are folded in HTML; in Markdown below a heading, or folded as well."""

    summary: str
    blocks: Sequence[Any]
    folded: bool = False


@dataclass(frozen=True)
class Image(Block):
    """A figure that was written as ``path.png`` and ``path.pdf``, relative to the report."""

    path: str
    caption: str


@dataclass(frozen=True)
class Only(Block):
    """Blocks for one medium: ``"markdown"`` or ``"html"``."""

    medium: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Threshold(Block):
    """A slider from 0 to 100%, and a sentence for each of these values."""

    label: str
    sentences: Sequence[str]
    start: int = 90

    @property
    def data(self) -> Any:
        """The data that the page's script reads, as JSON."""
        return list(self.sentences)


@dataclass(frozen=True)
class Choices(Block):
    """Blocks for each of several choices; HTML shows one at a time."""

    label: str
    choices: Mapping[str, Sequence[Any]]
    start: int = 0


@dataclass(frozen=True)
class Nodes(Block):
    """The table of nodes, in HTML only: it sorts, filters and finds ids.

    ``assets/page.js`` describes its columns.
    """

    total: int
    columns: Mapping[str, Any]

    @property
    def data(self) -> Any:
        """The data that the page's script reads, as JSON."""
        return {"total": self.total, **self.columns}


@dataclass(frozen=True)
class Section:
    """A part of a report with a heading; in a wide one, HTML puts charts side by side."""

    title: str
    blocks: Sequence[Any]
    wide: bool = False

    @property
    def anchor(self) -> str:
        """The anchor of links to the section, as GitHub writes it."""
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
    """
    parts = [f"# {markdown(document.title)}"]
    parts += [document.lead] if document.lead else []
    rows = [[f"{question}: {answer}", meaning] for question, answer, meaning in document.cards]
    parts += [_plain_table(["", ""], rows)] if rows else []
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
        if block.formatted:
            yield markdown_table(block.headings, block.rows, block.left)
        else:
            yield _plain_table(block.headings or [""] * len(block.rows[0]), block.rows)
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


def _plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of plain texts; of more than two columns, the others hold numbers."""
    headings, *rows = ([markdown(text) for text in row] for row in (headings, *rows))
    return markdown_table(headings, rows, 1 if len(headings) > 2 else None)


def can_render_html() -> bool:
    """Return whether the libraries for HTML are installed."""
    return all(find_spec(name) for name in NEEDED)


def render_html(document: Document, folder: Path | None = None) -> str:
    """Return a document as HTML. The same document gives the same text."""
    if not can_render_html():
        absent = [name for name in NEEDED if not find_spec(name)]
        problem = "writing HTML needs jinja2, plotly and markdown-it-py"
        raise PairNormError(problem, code="library-missing", value=absent, hint=install("all"))
    from jinja2 import Environment, StrictUndefined
    from markdown_it import MarkdownIt
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    data: list[Any] = []

    def store(block: Any) -> int:
        data.append(block.data)
        return len(data) - 1

    def embed(path: str) -> str:
        file = folder / f"{path}.png" if folder is not None else None
        if file is None or not file.is_file():
            return ""
        return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    environment.filters["embed"] = embed
    environment.filters["markdown"] = lambda text: Markup(parser.render(text))
    environment.filters["inline"] = lambda text: Markup(parser.renderInline(text))
    # Control characters are shown as Python writes them; rendered HTML stays.
    environment.finalize = lambda value: value if hasattr(value, "__html__") else terminal(value)
    template = environment.from_string(_asset("page.html"))
    script, plotly = _asset("page.js"), get_plotlyjs()
    return template.render(
        document=document,
        store=store,
        # Called at the end, when all blocks have stored their data.
        data=lambda: _compressed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        plotly=_compressed(plotly),
        script=Markup(script),
        style=Markup(_asset("page.css")),
        hashes=[_hash(script), _hash(plotly)],
        version=__version__,
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _compressed(text: str) -> str:
    """Return a text compressed, as base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return the hash by which the page's security policy allows a script; no other script runs."""
    return f"sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}"
