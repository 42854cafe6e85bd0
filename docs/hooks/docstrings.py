"""Show doctests as highlighted blocks (in Markdown ``>>>`` is a quotation), and fields of named tuples."""

import re
import textwrap
from typing import Any

import griffe

_SECTION = re.compile(r"^Examples?:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)
_DOCTEST = re.compile(r"^( *)(>>> .*(?:\n *\S.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Puts fences around doctests, and gives a named tuple the signature that it has when called."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring, if there is one, as soon as its object is known."""
        if obj.docstring:
            text = _SECTION.sub(lambda section: textwrap.dedent(section[1]), obj.docstring.value)
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", text)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor that ``NamedTuple`` writes: one parameter per annotated field."""
        if "NamedTuple" not in map(str, cls.bases) or "__init__" in cls.members:
            return
        kind = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(name, annotation=field.annotation, kind=kind, default=field.value)
            for name, field in cls.attributes.items()
            if field.annotation is not None
        ]
        owner = griffe.Parameter("self", kind=kind)
        init = griffe.Function("__init__", parameters=griffe.Parameters(owner, *fields), returns="None")
        cls.set_member("__init__", init)
