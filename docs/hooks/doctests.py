"""The doctests of docstrings as highlighted blocks: to Markdown, ``>>>`` would be a quotation."""

import re
import textwrap
from typing import Any

import griffe

_SECTION = re.compile(r"^Examples?:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_DOCTEST = re.compile(r"^( *)(>>> .*(?:\n *\S.*)*)", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring, if there is one, as soon as its object is known."""
        if obj.docstring:
            text = _SECTION.sub(lambda section: textwrap.dedent(section[1]), obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", text)
