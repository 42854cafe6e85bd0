"""How commands take options: the parser, the options that several share, and reading a user's graph."""

import argparse
import inspect
import shlex
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pairnorm.base.errors import PairNormError, closest, one_of, quoted
from pairnorm.commands import console

if TYPE_CHECKING:
    from pairnorm.data import Graph
    from pairnorm.data.encoder import Encoder

Number = TypeVar("Number", int, float)
LONGEST = 400
KINDS: dict[str, type] = {"FILE": Path, "FOLDER": Path, "N": int, "MINUTES": float}
LISTS = ("NAMES", "NUMBERS")
"""Values that are several, with commas."""


def option(metavar: str, help: str, default: object = None, **settings: Any) -> dict[str, Any]:
    """Return how ``argparse`` is told of an option; what its value is made of follows from its metavar."""
    kind = KINDS.get(metavar, str)
    if default is not None:
        settings["default"] = kind(default)
        help += f" Default: {default}."
    return {"metavar": metavar, "help": help, "type": kind} | settings


def flag(help: str) -> dict[str, Any]:
    """Return how ``argparse`` is told of an option that takes no value."""
    return {"help": help, "action": "store_true"}


def _count(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


SHARED = {
    "nodes": option(
        "TABLE",
        "Table of nodes: .csv, .tsv, .parquet, .xlsx, .json, .jsonl, also .gz, .zst or .zip; - for the "
        "standard input; or a file of the whole graph. Several are put together by id.",
        required=True,
        action="extend",
        nargs=1,
    ),
    "edges": option(
        "TABLE",
        "Table of edges: a row for each, with its two ends. May be repeated.",
        action="extend",
        nargs=1,
    ),
    "features": option(
        "TABLE",
        "Table of node, feature and value, for features that are mostly 0. May be repeated.",
        action="extend",
        nargs=1,
    ),
    "database": option(
        "URL", "Tables are queries of this database: sqlite:///…, duckdb:///…, postgresql://…"
    ),
    "delimiter": option("TEXT", "What separates cells, or tab. Default: found by the first line."),
    "encoding": option("NAME", "Of text, as utf-16 or latin-1. Default: found by its bytes."),
    "decimal": option("SIGN", "Decimal point, . or a comma. Default: found column by column."),
    "id": option("COLUMN", "Column of nodes with their ids. Default: the first."),
    "label": option("COLUMN", "Column of nodes with classes; empty = unknown."),
    "split": option("COLUMN", "Column that says train, validation or test. Default: drawn at random."),
    "source": option("COLUMN", "Column of edges with one end. Default: source, else the first."),
    "target": option("COLUMN", "Column with the other end. Default: target, else the second."),
    "weight": option("COLUMN", "Column of edges with weights."),
    "categorical": option(
        "COLUMN", "Column of numbers that are categories. May be repeated.", action="append"
    ),
    "ignore": option("COLUMN", "Column to leave out. May be repeated.", action="append"),
    "keep": option(
        "COLUMN", "Column of very many texts to keep as categories. May be repeated.", action="append"
    ),
    "classes": option("N", "Cut a label of numbers into so many classes, or each.", type=_count),
    "unknown-edges": option("WHAT", "Edges whose ends are no nodes: error or drop. Default: error."),
    "scaling": option(
        "KIND", "Of features: rows (words, counts), columns (ages, incomes), none or auto.", "auto"
    ),
    "spreadsheet-safe": flag("Put ' before names in the .csv that a spreadsheet would take for formulas."),
    "device": option("DEVICE", "auto, cpu or cuda.", "auto"),
    "dataset": option("NAMES", "Only these graphs, such as cora,citeseer."),
    "runs": option("N", "Runs of everything. Default: the paper's (5)."),
    "epochs": option("N", "Epochs. Default: the paper's (500 for SGC, 1000 else)."),
    "depths": option("NUMBERS", "Depths, such as 2,4. Default: the paper's."),
    "missing": option("NUMBERS", "Only these percentages of missing vectors, as 0,100."),
    "root": option("FOLDER", "Folder of the raw files. Default: $PAIRNORM_DATA, else your cache folder."),
    "workers": option("N", "Processes on a CPU. Default: one per core."),
    "on": option("PLACE", "here, or ray: the cluster at $RAY_ADDRESS, else this machine's.", "here"),
}
FILES = ("nodes", "edges", "features", "database", "delimiter", "encoding", "decimal")
ENDS = ("source", "target", "weight", "unknown-edges")
COLUMNS = (
    *("features", "database", "delimiter", "encoding", "decimal", "id", "label", "split", "classes"),
    *("source", "target", "weight", "unknown_edges", "categorical", "ignore", "keep"),
)


NOT_GIVEN = (None, False, "auto", "here")
"""What options are where nobody gives them, as far as these leave the choice to us."""


class Parser(argparse.ArgumentParser):
    """A parser that shows a short usage and the error where a command line is wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, add_help=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line, and end with code 2."""
        console.show(f"Usage: {self.usage}\nTry '{self.prog} --help'.", error=True)
        console.complain(message if len(message) <= LONGEST else f"{message[:LONGEST]}…")  # it quotes values
        raise SystemExit(2)


class Command(Parser):
    """The parser of one command: options and arguments in any order, and any text as an option's value."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._names = {"-h", "--help"}
        self._several: set[str] = set()
        self._lists: set[str] = set()
        self.either: tuple[str, ...] = ()  # options of which one is needed
        self._flags = {"-h", "--help"}
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)

    def group(self, title: str, *shared: str, **own: dict[str, Any]) -> None:
        """Add options that belong together: names among ``SHARED``, and this command's own."""
        panel = self.add_argument_group(title)
        for name, settings in ({name: SHARED[name] for name in shared} | own).items():
            panel.add_argument(f"--{name}", **settings)
            self._names.add(f"--{name}")
            if "nargs" in settings:
                self._several.add(f"--{name}")
            if settings.get("metavar") in LISTS:
                self._lists.add(f"--{name}")
            if settings.get("action") == "store_true":
                self._flags.add(f"--{name}")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse what follows the command's name: options joined with their values, then arguments."""
        words, options, arguments = list(args or ()), list[str](), list[str]()
        behind: dict[str, str] = {}
        while words:
            word = words.pop(0)
            name, equals, _ = word.partition("=")
            if not word.startswith("-"):
                arguments.append(word)
                behind[word] = options[-1].partition("=")[0] if options else ""
            elif name not in self._names:
                self.error(
                    f"there is no option {quoted(name)}. {closest(name, sorted(self._names))}".rstrip()
                )
            elif equals or name in self._flags or not words or words[0] in self._names:
                options.append(word)
            else:
                options.append(f"{word}={words.pop(0)}")
                while name in self._several and words and not words[0].startswith("-"):
                    options.append(f"{word}={words.pop(0)}")  # what a shell made of a pattern
        found, unknown = super().parse_known_args(self._joined(options) + arguments, namespace)
        if unknown:
            option = behind.get(unknown[0])
            again = f" {option} has one value: say it again for another." if option else ""
            self.error(f"there is no argument {quoted(unknown[0])}.{again}")
        if self.either and all(getattr(found, name) is None for name in self.either):
            self.error(f"{' or '.join(f'--{name}' for name in self.either)} is needed.")
        return found, []

    def _joined(self, options: Iterable[str]) -> list[str]:
        """Give an option of several values that is repeated all of them; ``argparse`` would keep the last."""
        joined: dict[str, str] = {}
        for number, word in enumerate(options):
            name, equals, value = word.partition("=")
            if equals and name in self._lists:
                joined[name] = f"{joined[name]},{value}" if name in joined else word
            else:
                joined[f"{number} {word}"] = word
        return list(joined.values())


def _formatter(prog: str) -> argparse.HelpFormatter:
    try:
        import rich.console  # rich_argparse looks for it only when it prints  # noqa: F401
        from rich_argparse import RawDescriptionRichHelpFormatter as Formatter
    except ImportError:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=26)
    return Formatter(prog, max_help_position=26)


def add_command(commands: Any, usage: str, run: Callable[[Namespace], int | None], example: str) -> Command:
    """Return the parser of a new command.

    Args:
        commands: what ``add_subparsers`` returned.
        usage: the command's name, and what it cannot do without.
        run: is called with the options and returns an exit code or None; its docstring is the help.
        example: a command line.
    """
    words, name = inspect.cleandoc(run.__doc__ or ""), usage.split()[0]
    parser: Command = commands.add_parser(
        name,
        usage=f"pairnorm {usage} [options]",
        prog=f"pairnorm {name}",
        help=words.partition("\n")[0],
        description=words,
        epilog=f"Example:\n  {example}",
    )
    parser.set_defaults(run=run)
    return parser


def columns_of(options: Namespace) -> dict[str, Any]:
    """Return what a user says of tables, by name."""
    return {name: value for name in COLUMNS if (value := getattr(options, name, None))}


def names_in(option: str, text: str | None, allowed: Sequence[str] = ()) -> list[str] | None:
    """Read ``cora,citeseer``; None and ``all`` stand for no choice.

    >>> names_in("dataset", "Cora, pubmed", ("cora", "pubmed"))
    ['cora', 'pubmed']
    """
    if text is None or text == "all":
        return None
    names = [name.strip() for name in text.split(",")]
    return [one_of(option, name.lower(), allowed) for name in names] if allowed else names


def numbers_in(option: str, text: str | None, kind: type[Number] = int) -> list[Number] | None:  # type: ignore[assignment]
    """Read ``2,4,8`` or ``0%,100%``; None and ``all`` stand for no choice.

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
    """Return the command that goes on where this one stops, with the options that were given."""
    words = ["pairnorm", name, *arguments]
    for one, value in vars(options).items():
        if one not in ("run", "what") and value not in NOT_GIVEN:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{one.replace('_', '-')}", str(each)]
    return shlex.join(words)


def refuse(options: Namespace, names: Iterable[str], why: str, hint: str, **more: Any) -> None:
    """Refuse options that would not be heeded, rather than let someone believe they are.

    Args:
        options: what was given.
        names: of those that are not heeded here.
        why: the rest of a sentence that begins with the option's name.
        hint: as of ``PairNormError``.
        more: options that the hint names.
    """
    for name in names:
        if getattr(options, name) not in NOT_GIVEN:
            problem = f"--{name.replace('_', '-')} {why}"
            raise PairNormError(problem, code="conflicting-options", hint=hint, **more)


def files_of(options: Namespace) -> list[Path]:
    """Return the files that the options name, none where they are queries of a database."""
    from pairnorm.data.readers import STDIN, find_files

    if getattr(options, "database", None):
        return []
    given = (place for name in ("nodes", "edges", "features") for place in getattr(options, name, None) or ())
    return [path for path in find_files(given) if path != STDIN]


def refuse_inputs(out: Path, *inputs: Path | None) -> None:
    """Refuse to write over what is read, by whatever name: a file, or files in a folder."""
    for path in (path for path in inputs if path is not None and path.exists() and out.exists()):
        if out.samefile(path.parent if out.is_dir() else path):
            problem = f"{out}: writing there would replace {path}, which is read"
            hint = "Choose another place: {out}"
            raise PairNormError(problem, code="would-overwrite", value=str(out), hint=hint, out=...)


def check_classes(graph: "Graph", options: Namespace) -> None:
    """Refuse a graph without classes where no column of them was named."""
    if options.label is None and not graph.num_classes:
        problem, hint = f"{graph.name}: no node has a class", "Name the column that holds them: {label}"
        raise PairNormError(problem, code="no-labels", hint=hint, label=...)


def read_graph(options: Namespace, encoder: "Encoder | None" = None) -> "Graph":
    """Read the graph that the options name, as an ``encoder`` read one before, and say what is in it."""
    from pairnorm.data import Graph, GraphWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # shown with the rest of what was found
        graph = Graph.from_files(options.nodes, options.edges, encoder=encoder, **columns_of(options))
    console.show(f"[bold]Graph {console.safe(repr(graph.name))}[/]")
    if len(files := files_of(options)) > 2:
        console.facts([("files", ", ".join(map(str, files)))])
    split = any(mask.any() for mask in graph.split)
    console.facts((what, text) for what, text in graph.describe() if what != "split" or split)
    return graph
