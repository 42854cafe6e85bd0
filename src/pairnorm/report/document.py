"""What a page is made of, and how it becomes one file: template, script, stylesheet and Plotly inside."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, ClassVar

from pairnorm.base.errors import PairNormError
from pairnorm.base.escaping import terminal
from pairnorm.report.charts import Chart
from pairnorm.version import __version__

ASSETS = files("pairnorm.report") / "assets"
NEEDED = ("jinja2", "plotly", "markdown_it")


@dataclass(frozen=True)
class Text:
    """A paragraph, shown as it is."""

    text: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Markdown:
    """Our own words, formatted; what looks like HTML in them is shown as it is."""

    text: str
    kind: ClassVar[str] = "markdown"


@dataclass(frozen=True)
class Table:
    """A table that sorts by a click on a heading; numbers in texts are seen as numbers.

    Args:
        headings: of the columns.
        rows: a text for each cell.
        caption: what it shows.
        search: whether there is a field to search in it.
        charts: one for each row, drawn when the row is chosen; None where there is none.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    search: bool = False
    charts: Sequence[Chart | None] = ()
    kind: ClassVar[str] = "table"

    @property
    def data(self) -> Any:
        """What the script needs."""
        return [chart and chart.data for chart in self.charts] or None


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away."""

    summary: str
    blocks: Sequence[Any]
    kind: ClassVar[str] = "details"


@dataclass(frozen=True)
class Threshold:
    """A slider from 0 to 100%, and a sentence for each of these values."""

    label: str
    sentences: Sequence[str]
    start: int = 90
    kind: ClassVar[str] = "threshold"

    @property
    def data(self) -> Any:
        """What the script needs."""
        return list(self.sentences)


@dataclass(frozen=True)
class Choices:
    """A list to choose from, and blocks for each choice, of which one is shown."""

    label: str
    choices: Mapping[str, Sequence[Any]]
    start: int = 0
    kind: ClassVar[str] = "choices"


@dataclass(frozen=True)
class Nodes:
    """The table of nodes: it sorts, filters, finds an id, and draws only the rows in view.

    Columns are lists that ``assets/page.js`` knows.
    """

    total: int
    columns: Mapping[str, Any]
    kind: ClassVar[str] = "nodes"

    @property
    def data(self) -> Any:
        """What the script needs."""
        return {"total": self.total, **self.columns}


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; in a wide one charts stand side by side."""

    title: str
    blocks: Sequence[Any]
    wide: bool = False

    @property
    def anchor(self) -> str:
        """What a link to it ends in, as on GitHub."""
        return re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Document:
    """A page: on top cards in plain words (question, answer in large letters, meaning), then sections."""

    title: str
    cards: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    glossary: Mapping[str, str] = field(default_factory=dict)


def can_render() -> bool:
    """Say whether the libraries are there."""
    return all(find_spec(name) for name in NEEDED)


def render(document: Document) -> str:
    """Return a page as HTML. The same document gives the same text."""
    if not can_render():
        raise PairNormError(
            "writing HTML needs jinja2, plotly and markdown-it-py",
            code="library-missing",
            value=[name for name in NEEDED if not find_spec(name)],
            hint="pip install 'pairnorm[all]'",
        )
    from jinja2 import Environment, StrictUndefined

    data: list[Any] = []

    def place(block: Any) -> int:
        data.append(block.data)
        return len(data) - 1

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markdown"] = _markdown
    # What steers a text, or is none, is shown as Python writes it; what is HTML already stays.
    environment.finalize = lambda value: value if hasattr(value, "__html__") else terminal(value)
    template = environment.from_string(_asset("page.html"))
    script, plotly = _asset("page.js"), _plotly()
    return template.render(
        document=document,
        place=place,
        # Asked for at the end, when all blocks have put their data aside.
        data=lambda: _packed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        plotly=_packed(plotly),
        script=_safe(script),
        style=_safe(_asset("page.css")),
        hashes=[_hash(script), _hash(plotly)],
        version=__version__,
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _safe(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def _renderer() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def _markdown(text: str) -> Any:
    return _safe(_renderer().render(text))


def _packed(text: str) -> str:
    """Return a text compressed, in letters that mean nothing to HTML; the same text gives the same."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return by what the page's policy knows a script: no other one runs, whatever a name may hold."""
    return f"sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}"
