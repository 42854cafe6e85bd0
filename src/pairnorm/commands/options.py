"""Declare commands and their options as tables of signature and help, and parse command lines."""

import argparse
import inspect
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pairnorm.base.errors import closest, quoted
from pairnorm.commands import console

Result = dict[str, Any] | None
"""What a command returns: a summary for ``--json``, or nothing."""
MAX_MESSAGE_LENGTH = 400
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
OPTION_NAMES = {old[2:].replace("-", "_"): new[2:].replace("-", "_") for old, new in OLD_NAMES.items()} | {
    "time_limit": "time_limit"
}
"""Options by the argument in Python that they set, where the two are spelled differently."""
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
ONE_VALUE_AT_A_TIME = ("--categorical", "--ignore", "--keep")
"""Options that are repeated for each value; others take several, as a shell expands a pattern."""
LISTS = ("NAMES", "NUMBERS")
"""Metavars of options that take several values, separated by commas."""


def _count(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


TYPES: dict[str, Callable[[str], Any]] = {"FILE": Path, "FOLDER": Path, "N": int, "N|each": _count}


def add_option(group: argparse._ArgumentGroup, signature: str, help: str) -> None:
    """Add an option to a parser; its signature and help are those that ``--help`` shows.

    Args:
        group: of options in the parser.
        signature: such as ``--depth N=3``: an option, the kind of its value, the default. ``--quiet`` is a
            flag, ``--nodes TABLE...`` may be repeated, and ``WHAT...`` stands for arguments.
        help: what the option does.
    """
    name, _, value = signature.partition(" ")
    kind, _, default = value.partition("=")
    metavar, convert = kind.removesuffix("..."), TYPES.get(kind, str)
    if not name.startswith("--"):
        word = name.removesuffix("...")
        group.add_argument(word.lower(), metavar=word, nargs="+", help=help)
    elif not kind:
        group.add_argument(name, action="store_true", help=help)
    elif kind.endswith("..."):
        group.add_argument(name, action="extend", nargs=1, metavar=metavar, help=help)
    elif default:
        help = f"{help} Default: {default}."
        group.add_argument(name, metavar=metavar, type=convert, default=convert(default), help=help)
    else:
        group.add_argument(name, metavar=metavar, type=convert, help=help)


FILES = {
    "--nodes TABLE...": "Read nodes from this table: .csv, .tsv, .parquet, .xlsx, .json, .jsonl, also .gz, "
    ".zst or .zip; - for standard input; or a file of a whole graph. Several tables are joined by id.",
    "--edges TABLE...": "Read edges from this table, one per row. May be repeated.",
    "--features TABLE...": "Read features as rows of node, feature and value. May be repeated.",
    "--database URL": "Read tables from this database; --nodes and --edges are then queries: sqlite:///…, "
    "duckdb:///…, postgresql://…",
    "--delimiter TEXT": "Separate cells by this text, or tab. Default: detected from the file.",
    "--edge-delimiter TEXT": "Separate cells of --edges by this text. Default: as in --delimiter.",
    "--encoding NAME": "Decode text as this, such as latin-1. Default: detected from the file.",
    "--decimal SIGN": "Use this decimal sign, . or a comma. Default: detected for each column.",
    "--memory SIZE": "Use at most this memory to read tables, such as 8GB. Default: half of what is free.",
}
"""Options about tables, of every command that reads a user's graph."""
COLUMNS = {
    "--id COLUMN": "Take node ids from this column. Default: the first.",
    "--label COLUMN": "Take classes from this column; an empty cell means unknown. Default: those of a "
    "graph file.",
    "--classes N|each": "Cut a numeric label into N classes of equal size, or make each value a class. "
    "Default: refuse many different numbers.",
    "--merge-classes": "Merge labels that differ by case, spaces or one letter. Default: note them.",
    "--split COLUMN": "Take train, validation or test from this column. Default: a random split.",
    "--source COLUMN": "Take the first node of an edge from this column. Default: source, else the first.",
    "--target COLUMN": "Take the second node of an edge from this column. Default: target, else the second.",
    "--weight COLUMN": "Take edge weights from this column. Default: every edge counts 1.",
    "--on-unknown-node ACTION": "Handle edges with unknown endpoints: error stops, drop leaves them out. "
    "Default: error.",
    "--edge-columns COLUMN...": "Make features of this column of edges: counts, sums, means. May be "
    "repeated; auto: all. Default: none.",
    "--categorical COLUMN...": "Treat numbers in this column as categories. May be repeated.",
    "--ignore COLUMN...": "Leave out this column. May be repeated.",
    "--keep COLUMN...": "Keep this column of many different texts. May be repeated.",
}
"""Options about columns, of every command that reads labeled tables."""
SHARED = {
    **FILES,
    **COLUMNS,
    "--feature-scaling KIND=auto": "Scale features by rows (words, counts), columns (ages, incomes), none "
    "or auto.",
    "--spreadsheet-safe": "Escape text in .csv files that a spreadsheet would run as a formula.",
    "--dataset NAMES": "Use only these graphs, such as cora,citeseer. Default: all.",
    "--runs N": "Train every setting N times. Default: as in the paper (5).",
    "--epochs N": "Train for N epochs. Default: as in the paper (500 for SGC, else 1000).",
    "--depth NUMBERS": "Use these numbers of layers, such as 2,4. Default: as in the paper.",
    "--missing NUMBERS": "Use only these percentages of missing vectors, such as 0,100. Default: all.",
    "--root FOLDER": "Look for raw files here. Default: $PAIRNORM_DATA, else your cache folder.",
    "--device DEVICE=auto": "Compute on auto, cpu or cuda.",
    "--workers N": "Use N processes on a CPU. Default: one per core.",
    "--backend NAME=here": "Train here, or on ray: the cluster at $RAY_ADDRESS.",
    "--time-limit TIME": "Start no training after this time: 90s, 5m, 1h. Default: no limit.",
    "--quiet": "Print only notes and errors.",
    "--json": "Print a summary as JSON to standard output, and messages to standard error.",
}
"""Options of several commands."""
TABLE_ARGUMENTS = {
    "strict",
    *(one.split()[0][2:].replace("-", "_") for one in (*FILES, *COLUMNS)),
} - {"nodes", "edges", "memory"}


def shared(names: str) -> dict[str, str]:
    """Return the options of several commands that have these names, in this order."""
    by_name = {signature.split()[0][2:]: signature for signature in SHARED}
    return {by_name[name]: SHARED[by_name[name]] for name in names.split()}


@dataclass(frozen=True)
class Command:
    """A command: a function of its options, whose docstring is the help, and how it is called.

    Args:
        run: the function.
        usage: the name of the command and what it needs.
        example: a command line.
        options: by title of their group: signature and help of each option, see ``add_option``.
        essential: names of the options that ``--help`` shows. Default: all.
        required: options that must be given; ``nodes|graph`` stands for one of the two.
        old_names: former spellings of options, besides ``OLD_NAMES``.
    """

    run: Callable[[Namespace], Result]
    usage: str
    example: str
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    essential: str = ""
    required: tuple[str, ...] = ()
    old_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The word that calls the command."""
        return self.usage.split()[0]

    @property
    def help(self) -> str:
        """The help above the options."""
        return inspect.cleandoc(self.run.__doc__ or "")


def command(usage: str, example: str, **settings: Any) -> Callable[[Callable[[Namespace], Result]], Command]:
    """Make a ``Command`` of the function that follows."""
    return lambda run: Command(run, usage, example, **settings)


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
        essential = "" if "--help-all" in rest else parser.command.essential
        options = [one for one in parser._actions if one.option_strings and one.help != SUPPRESS]
        hidden = [one for one in options if essential and one.option_strings[0][2:] not in essential.split()]
        for option in hidden:
            option.help = SUPPRESS
        if hidden:
            parser.epilog += f"\n\n{len(hidden)} more options: {parser.prog} --help-all"
        parser.print_help()
        parser.exit()


class CommandParser(Parser):
    """The parser of one command: options and arguments in any order, and any text as an option's value."""

    def __init__(self, command: Command, prog: str) -> None:
        super().__init__(
            prog=prog,
            usage=f"pairnorm {command.usage} [options]",
            description=command.help,
            epilog=f"Example:\n  {command.example}",
        )
        self.command = command
        self.set_defaults(handler=command.run)
        self.add_argument("-h", "--help", "--help-all", action=_ShowHelp, nargs=0, help=SUPPRESS)
        for title, options in command.options.items():
            group = self.add_argument_group(title)
            for signature, help in options.items():
                add_option(group, signature, help)

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
            action = self._option_string_actions[name]
            if action.nargs == 0 or (not equals and (not words or words[0] in self._option_string_actions)):
                options.append(name + equals + value)
                continue
            value = value if equals else words.pop(0)
            options.append(f"{name}={value}m" if given == "--minutes" else f"{name}={value}")
            if action.nargs == 1 and name not in ONE_VALUE_AT_A_TIME and not equals:
                while words and not words[0].startswith("-"):
                    options.append(f"{name}={words.pop(0)}")
        parsed, unknown = super().parse_known_args([*self._merged(options), *arguments], namespace)
        if unknown:
            option = previous.get(unknown[0])
            again = f" {option} takes one value: repeat the option for another." if option else ""
            self.error(f"there is no argument {quoted(unknown[0])}.{again}")
        for names in (alternatives.split("|") for alternatives in self.command.required):
            if all(getattr(parsed, name) is None for name in names):
                self.error(f"{' or '.join(f'--{name}' for name in names)} is needed.")
        return parsed, []

    def _current_name(self, name: str) -> str:
        """Return the name of an option, also by an old spelling; exit where there is no such option."""
        known = self._option_string_actions
        if name in known:
            return name
        if (new := (OLD_NAMES | dict(self.command.old_names)).get(name, "")) in known:
            console.note(f"{name} is now called {new}; the old name will go in the next release.")
            return new
        advice = [text for names, text in OUT_OF_SCOPE.items() if name.removeprefix("--") in names]
        suggestion = advice[0] if advice else closest(name, sorted(known))
        return self.error(f"there is no option {quoted(name)}. {suggestion}".rstrip())

    def _merged(self, options: Iterable[str]) -> list[str]:
        """Join repeated lists by commas, and refuse other options that are repeated."""
        merged: dict[str, str] = {}
        for number, word in enumerate(options):
            name, equals, value = word.partition("=")
            action = self._option_string_actions[name]
            if action.nargs is not None or not equals:
                merged[f"{number} {word}"] = word
            elif name not in merged:
                merged[name] = word
            elif action.metavar in LISTS:
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
