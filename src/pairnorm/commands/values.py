"""Use the values of options: parse lists, refuse conflicts, and read a user's graph."""

import shlex
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.base.files import check_path
from pairnorm.commands import console
from pairnorm.commands.options import TABLE_ARGUMENTS

if TYPE_CHECKING:
    from pairnorm.classify.evaluation import Scores
    from pairnorm.data import Graph
    from pairnorm.data.encoder import Encoder

Number = TypeVar("Number", int, float)
NOT_GIVEN = (None, False, "auto", "here")
"""Values of options that a user did not set."""


def columns_of(options: Namespace) -> dict[str, Any]:
    """Return the options about tables, by the names of the Python arguments."""
    given = {name: value for name, value in vars(options).items() if name in TABLE_ARGUMENTS and value}
    if "on_unknown_node" in given:
        given["unknown_edges"] = given.pop("on_unknown_node")
    return given


def match_name(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed name that equals a name except for case, spaces and hyphens, else the name.

    >>> match_name("Logistic-Regression", ["SGC", "logistic regression"])
    'logistic regression'
    """

    def key(name: str) -> str:
        return name.lower().replace(" ", "").replace("-", "").replace("_", "")

    return next((one for one in allowed if key(one) == key(name)), name)


def names_in(option: str, text: str | None, allowed: Sequence[str] = ()) -> list[str] | None:
    """Parse ``cora,citeseer``; returns None for None and ``all``.

    >>> names_in("dataset", "Cora, pubmed", ("cora", "pubmed"))
    ['cora', 'pubmed']
    """
    if text is None or text == "all":
        return None
    names = [name.strip() for name in text.split(",")]
    return [one_of(option, match_name(name, allowed), allowed) for name in names] if allowed else names


def numbers_in(option: str, text: str | None, kind: type[Number] = int) -> list[Number] | None:  # type: ignore[assignment]
    """Parse ``2,4,8`` or ``0%,100%``; returns None for None and ``all``.

    >>> numbers_in("missing", "50, 99.5%", float)
    [50.0, 99.5]
    """
    words = names_in(option, text)
    try:
        return None if words is None else [kind(word.removesuffix("%")) for word in words]
    except ValueError:
        whole = "whole numbers" if kind is int else "numbers"
        problem, expected = f"{option} is {quoted(text)}", f"{whole} with commas, such as 2,4"
        raise PairNormError(problem, code="not-a-number", value=text, expected=expected) from None


def command_line(name: str, options: Namespace, *arguments: str) -> str:
    """Return the command that continues where this one stops, with the options that were given."""
    words = ["pairnorm", name, *arguments]
    for one, value in vars(options).items():
        if one not in ("handler", "what") and value not in NOT_GIVEN:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{one.replace('_', '-')}", *([] if each is True else [str(each)])]
    return shlex.join(words)


def refuse(options: Namespace, names: Iterable[str], why: str, hint: str, **more: Any) -> None:
    """Refuse options that have no effect here; ``why`` continues a sentence that begins with the option."""
    for name in names:
        if getattr(options, name) not in NOT_GIVEN:
            problem = f"--{name.replace('_', '-')} {why}"
            raise PairNormError(problem, code="conflicting-options", hint=hint, **more)


def _table_options(options: Namespace) -> Iterator[str]:
    for name in ("nodes", "edges", "features"):
        yield from getattr(options, name, None) or ()


def files_of(options: Namespace) -> list[Path]:
    """Return the files that the options name, none where they are queries of a database."""
    from pairnorm.data.files import STDIN, find_files

    if getattr(options, "database", None):
        return []
    return [path for path in find_files(_table_options(options)) if path != STDIN]


def refuse_inputs(out: Path, *inputs: Path | None) -> None:
    """Refuse to write over what is read, by whatever name: a file, or files in a folder."""
    check_path(out)  # a database is named by text, so the parser does not check this path
    for path in (path for path in inputs if path is not None and path.exists() and out.exists()):
        if out.samefile(path.parent if out.is_dir() else path):
            problem = f"{out}: writing there would replace {path}, which is read"
            hint = "Choose another path: {out}"
            raise PairNormError(problem, code="would-overwrite", value=str(out), hint=hint, out=...)


def check_classes(graph: "Graph", options: Namespace) -> None:
    """Refuse a graph without classes where no label column was named."""
    if options.label is None and not graph.num_classes:
        problem, hint = f"{graph.name}: no node has a class", "Name the column that holds them: {label}"
        raise PairNormError(problem, code="no-labels", hint=hint, label=...)


def read_graph(options: Namespace, encoder: "Encoder | None" = None) -> "Graph":
    """Read the graph that the options name, as an ``encoder`` read one before, and print what is in it."""
    from pairnorm.data import Graph, GraphWarning

    if sys.stdin is None and "-" in map(str, _table_options(options)):
        raise PairNormError("standard input is closed", code="unreadable-file", hint="Name a file.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # the description has the same notes
        graph = Graph.from_files(
            options.nodes,
            options.edges,
            encoder=encoder,
            memory=getattr(options, "memory", None),
            **columns_of(options),
        )
    console.show(f"[bold]Graph {console.safe(repr(graph.name))}[/]")
    if len(files := files_of(options)) > 2:
        console.facts([("files", ", ".join(map(str, files)))])
    split = any(mask.any() for mask in graph.split)
    console.facts((what, text) for what, text in graph.describe() if what != "split" or split)
    if console.is_quiet():
        for note in graph.notes:
            console.note(note)
    return graph


def interval(scores: "Scores") -> str:
    """Return the interval of an accuracy, in brackets."""
    low, high = scores.interval
    return f"(95% interval {low:.1%} to {high:.1%})"
