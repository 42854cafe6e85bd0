"""Define command-line options: the parser, the options that commands share, and reading a user's graph."""

import argparse
import inspect
import shlex
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pairnorm.base.errors import PairNormError, closest, one_of, parse_duration, quoted
from pairnorm.base.files import check_path
from pairnorm.commands import console

if TYPE_CHECKING:
    from pairnorm.data import Graph
    from pairnorm.data.encoder import Encoder

Number = TypeVar("Number", int, float)
Result = int | dict[str, Any] | None
"""What a command returns: an exit code, a summary for ``--json``, or nothing."""
MAX_MESSAGE_LENGTH = 400
TYPES: dict[str, type] = {"FILE": Path, "FOLDER": Path, "N": int}
LISTS = ("NAMES", "NUMBERS")
"""Metavars of options that take several values, separated by commas."""
OLD_NAMES = {
    "--budget": "--time-limit",
    "--depths": "--depth",
    "--fill": "--impute",
    "--minutes": "--time-limit",
    "--on": "--backend",
    "--remedy": "--method",
    "--scaling": "--feature-scaling",
    "--time": "--time-column",
    "--unknown-edges": "--on-unknown-node",
}
PYTHON_NAMES = {new[2:].replace("-", "_"): old[2:].replace("-", "_") for old, new in OLD_NAMES.items()} | {
    "impute": "impute",
    "time_limit": "time_limit",
}
"""Arguments in Python by the option that sets them, where the two have different names."""
OUT_OF_SCOPE = {
    ("task", "regression", "regress"): "pairnorm predicts classes. To predict a number, cut it into classes "
    "with --classes 5, or use graph features from `pairnorm.impute` in a regression of your own.",
    ("multilabel", "multi-label", "labels"): "A node has one label. With several labels per node, run fit "
    "once per label, with a column of yes and no.",
    ("link", "links", "link-prediction", "predict-edges"): "pairnorm labels nodes and does not predict "
    "edges. For link prediction, use torch_geometric; PairNorm works in its models.",
    ("node-type", "edge-type", "edge-types", "node-types", "hetero"): "Nodes and edges have one type. Pass "
    "the type as a feature column, or run fit on the edges of one type.",
}


def option(metavar: str, help: str, default: object = None, **settings: Any) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for an option; its type follows from its metavar."""
    kind = settings.get("type", TYPES.get(metavar, str))
    if default is not None:
        settings["default"] = kind(default)
        help += f" Default: {default}."
    return {"metavar": metavar, "help": help, "type": kind} | settings


def flag(help: str) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for an option without a value."""
    return {"help": help, "action": "store_true"}


def _count(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


SEVERAL = {"action": "extend", "nargs": 1}
SHARED = {
    "nodes": option(
        "TABLE",
        "Read nodes from this table: .csv, .tsv, .parquet, .xlsx, .json, .jsonl, also .gz, .zst or .zip; - "
        "for standard input; or a file of a whole graph. Several tables are joined by id.",
        required=True,
        **SEVERAL,
    ),
    "edges": option("TABLE", "Read edges from this table, one per row. May be repeated.", **SEVERAL),
    "features": option(
        "TABLE", "Read features as rows of node, feature and value. May be repeated.", **SEVERAL
    ),
    "database": option(
        "URL",
        "Read tables from this database; --nodes and --edges are then queries: sqlite:///…, duckdb:///…, "
        "postgresql://…",
    ),
    "delimiter": option("TEXT", "Separate cells by this text, or tab. Default: detected from the file."),
    "encoding": option("NAME", "Decode text as this, such as latin-1. Default: detected from the file."),
    "decimal": option("SIGN", "Use this decimal sign, . or a comma. Default: detected for each column."),
    "id": option("COLUMN", "Take node ids from this column. Default: the first."),
    "label": option("COLUMN", "Take classes from this column; an empty cell means unknown."),
    "split": option("COLUMN", "Take train, validation or test from this column. Default: a random split."),
    "source": option("COLUMN", "Take one end of an edge from this column. Default: source, else the first."),
    "target": option("COLUMN", "Take the other end from this column. Default: target, else the second."),
    "weight": option("COLUMN", "Take edge weights from this column. Default: every edge counts 1."),
    "categorical": option(
        "COLUMN", "Treat numbers in this column as categories. May be repeated.", **SEVERAL
    ),
    "ignore": option("COLUMN", "Leave out this column. May be repeated.", **SEVERAL),
    "keep": option("COLUMN", "Keep this column of many different texts. May be repeated.", **SEVERAL),
    "classes": option("N", "Cut a numeric label into N classes; each makes every value one.", type=_count),
    "merge-classes": flag("Merge labels that differ by case, spaces or one letter."),
    "edge-columns": option(
        "COLUMN",
        "Make features of this column of edges: counts, sums, means. May be repeated; auto: all.",
        **SEVERAL,
    ),
    "edge-delimiter": option("TEXT", "Separate cells of --edges by this text. Default: as in --delimiter."),
    "on-unknown-node": option(
        "ACTION", "Handle edges with unknown endpoints: error stops, drop leaves them out. Default: error."
    ),
    "feature-scaling": option(
        "KIND", "Scale features by rows (words, counts), columns (ages, incomes), none or auto.", "auto"
    ),
    "spreadsheet-safe": flag("Escape text in .csv files that a spreadsheet would run as a formula."),
    "device": option("DEVICE", "Compute on auto, cpu or cuda.", "auto"),
    "dataset": option("NAMES", "Use only these graphs, such as cora,citeseer. Default: all."),
    "runs": option("N", "Train every setting N times. Default: as in the paper (5)."),
    "epochs": option("N", "Train for N epochs. Default: as in the paper (500 for SGC, else 1000)."),
    "depth": option("NUMBERS", "Use these numbers of layers, such as 2,4. Default: as in the paper."),
    "missing": option("NUMBERS", "Use only these percentages of missing vectors, such as 0,100."),
    "memory": option(
        "SIZE", "Use at most this memory to read tables, such as 8GB. Default: half of what is free."
    ),
    "root": option("FOLDER", "Look for raw files here. Default: $PAIRNORM_DATA, else your cache folder."),
    "workers": option("N", "Use N processes on a CPU. Default: one per core."),
    "backend": option("NAME", "Train here, or on ray: the cluster at $RAY_ADDRESS.", "here"),
    "time-limit": option("TIME", "Start no training after this time: 90s, 5m, 1h. Default: no limit."),
    "quiet": flag("Print only notes and errors."),
    "json": flag("Print a summary as JSON to standard output, and messages to standard error."),
}
FILES = (
    *("nodes", "edges", "features", "database", "delimiter", "edge-delimiter", "encoding", "decimal"),
    "memory",
)
EDGE_COLUMNS = ("source", "target", "weight", "on-unknown-node")
NODE_COLUMNS = (
    *("id", "label", "classes", "merge-classes", "split", *EDGE_COLUMNS, "edge-columns"),
    *("categorical", "ignore", "keep"),
)
"""Options about columns, of every command that reads labeled tables."""
COLUMNS = (
    *("features", "database", "delimiter", "encoding", "decimal", "id", "label", "split", "classes"),
    *("source", "target", "weight", "on_unknown_node", "categorical", "ignore", "keep"),
    *("merge_classes", "edge_delimiter", "edge_columns", "strict"),
)
NOT_GIVEN = (None, False, "auto", "here")
"""Values of options that a user did not set."""


class Parser(argparse.ArgumentParser):
    """A parser that shows a short usage and the error where a command line is wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, add_help=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Explain what is wrong with the command line, and exit with code 2."""
        console.show(f"Usage: {self.usage}\nTry '{self.prog} --help'.", error=True)
        short = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}…"
        console.complain(short)
        raise SystemExit(2)


class _ShowHelp(argparse.Action):
    """Print the help: the essential options, or all of them for ``--help-all``."""

    def __call__(self, parser: Any, *rest: Any) -> None:
        if "--help-all" not in rest:
            parser.hide_advanced()
        parser.print_help()
        parser.exit()


class Command(Parser):
    """The parser of one command: options and arguments in any order, and any text as an option's value."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.essential: tuple[str, ...] = ()  # options that --help shows; empty shows all
        self.either: tuple[str, ...] = ()  # options of which one is required
        self.old_names = dict(OLD_NAMES)
        self._flags = {"-h", "--help", "--help-all"}
        self._names = set(self._flags)
        self._repeatable: set[str] = set()
        self._lists: set[str] = set()
        self.add_argument("-h", "--help", "--help-all", action=_ShowHelp, nargs=0, help=argparse.SUPPRESS)

    def group(self, title: str, *shared: str, **own: dict[str, Any]) -> None:
        """Add options that belong together: names among ``SHARED``, and this command's own."""
        panel = self.add_argument_group(title)
        for name, settings in ({name: SHARED[name] for name in shared} | own).items():
            panel.add_argument(f"--{name}", **settings)
            self._names.add(f"--{name}")
            if "nargs" in settings:
                self._repeatable.add(f"--{name}")
            if settings.get("metavar") in LISTS:
                self._lists.add(f"--{name}")
            if settings.get("action") == "store_true":
                self._flags.add(f"--{name}")

    def hide_advanced(self) -> None:
        """Leave only the essential options in the help, and say how to see the others."""
        hidden = 0
        for action in self._actions:
            shown = action.option_strings and action.help != argparse.SUPPRESS
            if shown and self.essential and action.option_strings[0][2:] not in self.essential:
                action.help = argparse.SUPPRESS
                hidden += 1
        if hidden:
            self.epilog = f"{self.epilog}\n\n{hidden} more options: {self.prog} --help-all"

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse what follows the command's name: options joined with their values, then arguments."""
        words, options, arguments = list(args or ()), list[str](), list[str]()
        previous: dict[str, str] = {}
        while words:
            name, equals, value = words.pop(0).partition("=")
            if not name.startswith("-"):
                arguments.append(name + equals + value)
                previous[arguments[-1]] = options[-1].partition("=")[0] if options else ""
                continue
            given, name = name, self._current_name(name)
            if name in self._flags or (not equals and (not words or words[0] in self._names)):
                options.append(name + equals + value)
                continue
            value = value if equals else words.pop(0)
            options.append(f"{name}={value}m" if given == "--minutes" else f"{name}={value}")
            while name in self._repeatable - {"--categorical", "--ignore", "--keep"} and not equals:
                if not words or words[0].startswith("-"):
                    break
                options.append(f"{name}={words.pop(0)}")  # a shell expanded a pattern
        parsed, unknown = super().parse_known_args([*self._merged(options), *arguments], namespace)
        if unknown:
            option = previous.get(unknown[0])
            again = f" {option} takes one value: repeat the option for another." if option else ""
            self.error(f"there is no argument {quoted(unknown[0])}.{again}")
        if self.either and all(getattr(parsed, name) is None for name in self.either):
            self.error(f"{' or '.join(f'--{name}' for name in self.either)} is needed.")
        return parsed, []

    def _current_name(self, name: str) -> str:
        """Return the name of an option, also by an old spelling; exit where there is no such option."""
        if name in self._names:
            return name
        if (new := self.old_names.get(name)) in self._names:
            console.note(f"{name} is now called {new}; the old name will go in the next release.")
            return str(new)
        advice = [text for names, text in OUT_OF_SCOPE.items() if name.removeprefix("--") in names]
        suggestion = advice[0] if advice else closest(name, sorted(self._names))
        return self.error(f"there is no option {quoted(name)}. {suggestion}".rstrip())

    def _merged(self, options: Iterable[str]) -> list[str]:
        """Join repeated lists by commas, and refuse other options that are repeated."""
        merged: dict[str, str] = {}
        for number, word in enumerate(options):
            name, equals, value = word.partition("=")
            if name in self._repeatable or name in self._flags or not equals:
                merged[f"{number} {word}"] = word
            elif name not in merged:
                merged[name] = word
            elif name in self._lists:
                merged[name] += f",{value}"
            elif merged[name] != word:
                first = merged[name].partition("=")[2]
                self.error(f"{name} takes one value, but has {quoted(first)} and {quoted(value)}.")
        return list(merged.values())


def _formatter(prog: str) -> argparse.HelpFormatter:
    try:
        import rich.console  # rich_argparse looks for it only when it prints  # noqa: F401
        from rich_argparse import RawDescriptionRichHelpFormatter as Formatter
    except ImportError:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=26)
    return Formatter(prog, max_help_position=26)


def add_command(commands: Any, usage: str, run: Callable[[Namespace], Result], example: str) -> Command:
    """Return the parser of a new command, whose help is the docstring of ``run``."""
    text, name = inspect.cleandoc(run.__doc__ or ""), usage.split()[0]
    parser: Command = commands.add_parser(
        name,
        usage=f"pairnorm {usage} [options]",
        prog=f"pairnorm {name}",
        help=text.partition("\n")[0],
        description=text,
        epilog=f"Example:\n  {example}",
    )
    parser.set_defaults(handler=run)
    return parser


def columns_of(options: Namespace) -> dict[str, Any]:
    """Return the options about tables, by the names of the Python arguments."""
    given = ((name, getattr(options, name, None)) for name in COLUMNS)
    return {PYTHON_NAMES.get(name, name): value for name, value in given if value}


def _key(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "").replace("_", "")


def match_name(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed name that equals a name except for case, spaces and hyphens, else the name.

    >>> match_name("Logistic-Regression", ["SGC", "logistic regression"])
    'logistic regression'
    """
    return next((one for one in allowed if _key(one) == _key(name)), name)


def names_in(option: str, text: str | None, allowed: Sequence[str] = ()) -> list[str] | None:
    """Parse ``cora,citeseer``; None and ``all`` stand for no choice.

    >>> names_in("dataset", "Cora, pubmed", ("cora", "pubmed"))
    ['cora', 'pubmed']
    """
    if text is None or text == "all":
        return None
    names = [name.strip() for name in text.split(",")]
    return [one_of(option, match_name(name, allowed), allowed) for name in names] if allowed else names


def numbers_in(option: str, text: str | None, kind: type[Number] = int) -> list[Number] | None:  # type: ignore[assignment]
    """Parse ``2,4,8`` or ``0%,100%``; None and ``all`` stand for no choice.

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


def minutes_in(text: str | None) -> float | None:
    """Return the minutes of a time limit such as ``90s``, ``5m`` or ``1h``."""
    return None if text is None else parse_duration("time-limit", text, allow_zero=True) / 60


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
    from pairnorm.data.readers import STDIN, find_files

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
    return graph
