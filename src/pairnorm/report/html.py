"""Render a document as one HTML file: template, script, stylesheet and Plotly inside, no network needed."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from pairnorm.base.errors import PairNormError
from pairnorm.base.escaping import terminal
from pairnorm.report.document import Document
from pairnorm.version import __version__

ASSETS = files("pairnorm.report") / "assets"
NEEDED = ("jinja2", "plotly", "markdown_it")


def can_render_html() -> bool:
    """Return whether the libraries for HTML are installed."""
    return all(find_spec(name) for name in NEEDED)


def render_html(document: Document) -> str:
    """Return a document as HTML. The same document gives the same text."""
    if not can_render_html():
        raise PairNormError(
            "writing HTML needs jinja2, plotly and markdown-it-py",
            code="library-missing",
            value=[name for name in NEEDED if not find_spec(name)],
            hint="pip install 'pairnorm[all]'",
        )
    from jinja2 import Environment, StrictUndefined

    data: list[Any] = []

    def store(block: Any) -> int:
        data.append(block.data)
        return len(data) - 1

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["markdown"] = _markdown
    # Control characters are shown as Python writes them; rendered HTML stays.
    environment.finalize = lambda value: value if hasattr(value, "__html__") else terminal(value)
    template = environment.from_string(_asset("page.html"))
    script, plotly = _asset("page.js"), _plotly()
    return template.render(
        document=document,
        store=store,
        # Called at the end, when all blocks have stored their data.
        data=lambda: _compressed(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        plotly=_compressed(plotly),
        script=_markup(script),
        style=_markup(_asset("page.css")),
        hashes=[_hash(script), _hash(plotly)],
        version=__version__,
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _markup(text: str) -> Any:
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
    return _markup(_renderer().render(text))


def _compressed(text: str) -> str:
    """Return a text compressed, as base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _hash(script: str) -> str:
    """Return the hash by which the page's security policy allows a script; no other script runs."""
    return f"sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}"
