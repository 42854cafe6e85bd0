"""Declare commands and their options, parse command lines, and use the values: lists, conflicts, graphs."""

import argparse
import inspect
import sys
import warnings
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pairnorm.base.errors import PairNormError, did_you_mean, one_of, quoted
from pairnorm.base.files import check_path
from pairnorm.commands import console

if TYPE_CHECKING:
    from pairnorm.classify.evaluation import Scores
    from pairnorm.data import Graph
    from pairnorm.data.encoder import Encoder

Number = TypeVar("Number", int, float)
Result = dict[str, Any] | None
"""What a command returns: a summary for ``--json``, or nothing."""
MAX_MESSAGE_LENGTH = 400
OLD_NAMES = {
    "--budget": "--time-limit",
    "--depths": "--depth",
    "--fill": "--impute",
    "--minutes": "--time-limit",
    "--model": "--run",
    "--on": "--backend",
    "--remedy": "--method",
    "--scaling": "--feature-scaling",
    "--time": "--time-column",
    "--unknown-edges": "--on-unknown-node",
}
"""Former spellings of options, by command that has the new one and not the old one."""
OPTION_NAMES = {old[2:].replace("-", "_"): new[2:].replace("-", "_") for old, new in OLD_NAMES.items()} | {
    "time_limit": "time_limit",
    "model": "model",
}
"""Options by the argument in Python that they set, where the two are spelled differently."""
OUT_OF_SCOPE = {
    ("task", "regression", "regress"): "pairnorm predicts classes. To predict a number, cut it into classes "
    "with --classes 5, or use graph features from `pairnorm.impute` in a regression of your own.",
    (
        "multilabel",
        "multi-label",
        "labels",
    ): "--label takes one column. With several labels per node, run "
    "fit once per label, with a column of yes and no.",
    ("link", "links", "link-prediction", "predict-edges"): "pairnorm labels nodes and does not predict "
    "edges. For link prediction, use torch_geometric; PairNorm works in its models.",
    ("node-type", "edge-type", "edge-types", "node-types", "hetero"): "Nodes and edges have one type. Pass "
    "the type as a feature column, or run fit on the edges of one type.",
}
LISTS = ("NAMES", "NUMBERS")
"""Metavars of options that take several values, separated by commas."""
NOT_GIVEN = (None, False, "auto", "here")
"""Values of options that a user did not set."""
TYPES: dict[str, Callable[[str], Any]] = {
    "FILE": Path,
    "FOLDER": Path,
    "N": int,
    "SHARE": float,
    "N|each": lambda text: int(text) if text.isdecimal() else text,
}
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
    "graph file, else none.",
    "--classes N|each": "Cut a numeric label into N classes of equal size, or make each value a class. "
    "Default: refuse many different numbers.",
    "--merge-classes": "Merge labels that differ by case, spaces or one letter. Default: note them.",
    "--unknown-label WORD...": "Take this label as unknown, such as '?'. May be repeated. Default: only "
    "empty cells.",
    "--split COLUMN": "Take train, validation or test from this column. Default: a random split.",
    "--source COLUMN": "Take the first node of an edge from this column. Default: source, else the first.",
    "--target COLUMN": "Take the second node of an edge from this column. Default: target, else the second.",
    "--weight COLUMN": "Take edge weights from this column. Default: every edge counts 1.",
    "--on-unknown-node ACTION": "Handle edges with unknown endpoints: error stops, drop leaves them out, add "
    "adds unlabeled nodes. Default: error.",
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
    "--runs N": "Take N runs of every setting. Default: as in the paper (5).",
    "--epochs N": "Take N epochs. Default: as in the paper (500 for SGC, else 1000).",
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
    *(signature.split()[0][2:].replace("-", "_") for signature in (*FILES, *COLUMNS)),
} - {"nodes", "edges", "memory"}


def shared(names: str) -> dict[str, str]:
    """Return the named options of ``SHARED``, in the order of the names."""
    by_name = {signature.split()[0][2:]: signature for signature in SHARED}
    return {by_name[name]: SHARED[by_name[name]] for name in names.split()}


def match_name(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed name that equals a name except for case, spaces and hyphens, else the name.

    >>> match_name("Logistic-Regression", ["SGC", "logistic regression"])
    'logistic regression'
    """

    def key(name: str) -> str:
        return name.lower().replace(" ", "").replace("-", "").replace("_", "")

    return next((choice for choice in allowed if key(choice) == key(name)), name)


class Options(Namespace):
    """The options of a command line, and what commands do with them: parse lists, refuse conflicts, read."""

    @property
    def columns(self) -> dict[str, Any]:
        """The options about tables and columns, by the names of the Python arguments."""
        arguments = {name: value for name, value in vars(self).items() if name in TABLE_ARGUMENTS and value}
        if "on_unknown_node" in arguments:
            arguments["unknown_edges"] = arguments.pop("on_unknown_node")
        return arguments

    @property
    def tables(self) -> list[str]:
        """The files or queries of nodes, edges and features."""
        return [each for name in ("nodes", "edges", "features") for each in getattr(self, name, None) or ()]

    @property
    def files(self) -> list[Path]:
        """The files that the options name, none where they are queries of a database."""
        from pairnorm.data.files import STDIN, find_files

        if getattr(self, "database", None):
            return []
        return [path for path in find_files(self.tables) if path != STDIN]

    def names(self, option: str, allowed: Sequence[str] = (), is_open: bool = False) -> list[str] | None:
        """Parse ``cora,citeseer``; returns None where it is not given, ``all`` or ``auto``.

        Names that are not ``allowed`` are an error, unless ``is_open``.

        >>> Options(dataset="Cora, pubmed").names("dataset", ("cora", "pubmed"))
        ['cora', 'pubmed']
        """
        text = getattr(self, option)
        if text is None or text.strip().lower() in ("all", "auto"):
            return None
        names = [match_name(name.strip(), allowed) for name in text.split(",")]
        return [one_of(option, name, allowed) for name in names] if allowed and not is_open else names

    def numbers(self, option: str, kind: type[Number] = int) -> list[Number] | None:  # type: ignore[assignment]
        """Parse ``2,4,8`` or ``0%,100%``; returns None where it is not given, ``all`` or ``auto``.

        >>> Options(missing="50, 99.5%").numbers("missing", float)
        [50.0, 99.5]
        """
        words = self.names(option)
        try:
            return None if words is None else [kind(word.removesuffix("%")) for word in words]
        except ValueError:
            text, kinds = getattr(self, option), "whole numbers" if kind is int else "numbers"
            problem, expected = f"{option} is {quoted(text)}", f"{kinds} with commas, such as 2,4"
            raise PairNormError(problem, code="not-a-number", value=text, expected=expected) from None

    def refuse(self, names: Iterable[str], why: str, hint: str, **more: Any) -> None:
        """Raise an error for given options without effect; ``why`` continues a sentence after the option."""
        for name in names:
            if getattr(self, name) not in NOT_GIVEN:
                problem = f"--{name.replace('_', '-')} {why}"
                raise PairNormError(problem, code="conflicting-options", hint=hint, **more)

    def read_graph(self, encoder: "Encoder | None" = None) -> "Graph":
        """Read the graph, with columns as in an ``encoder`` if there is one, and print what is in it."""
        from pairnorm.data import Graph, GraphWarning

        if sys.stdin is None and "-" in map(str, self.tables):
            raise PairNormError("standard input is closed", code="unreadable-file", hint="Name a file.")
        memory = getattr(self, "memory", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphWarning)  # the description has the same notes
            graph = Graph.from_files(self.nodes, self.edges, encoder=encoder, memory=memory, **self.columns)
        console.show(f"[bold]Graph {console.safe(repr(graph.name))}[/]")
        if len(files := self.files) > 2:
            console.facts([("files", ", ".join(map(str, files)))])
        split = any(mask.any() for mask in graph.split)
        console.facts((fact, text) for fact, text in graph.describe() if fact != "split" or split)
        if console.is_quiet():
            for note in graph.notes:
                console.note(note)
        return graph

    def check_classes(self, graph: "Graph") -> None:
        """Raise an error for a graph without classes if no label column was named."""
        if self.label is None and not graph.num_classes:
            problem, hint = f"{graph.name}: no node has a class", "Name the column that holds them: {label}"
            raise PairNormError(problem, code="no-labels", hint=hint, label=...)


@dataclass(frozen=True)
class Command:
    """A command: the function that runs it, whose docstring is the help, and its options.

    Args:
        run: the function.
        usage: the name of the command and what it needs.
        example: a command line.
        options: by title of their group: signature and help of each option, see ``CommandParser.add_option``.
        essential: names of the options that ``--help`` shows. Default: all.
        required: options that must be given; ``nodes|graph`` stands for one of the two.
    """

    run: Callable[[Options], Result]
    usage: str
    example: str
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    essential: str = ""
    required: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The word that calls the command."""
        return self.usage.split()[0]

    @property
    def help(self) -> str:
        """The help above the options."""
        return inspect.cleandoc(self.run.__doc__ or "")


def command(usage: str, example: str, **settings: Any) -> Callable[[Callable[[Options], Result]], Command]:
    """Decorate a function to make it a ``Command``."""
    return lambda run: Command(run, usage, example, **settings)


class Parser(argparse.ArgumentParser):
    """A parser that shows a short usage and the error where a command line is wrong."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26),
            allow_abbrev=False,
            add_help=False,
            **settings,
        )

    def error(self, message: str) -> NoReturn:
        """Explain what is wrong with the command line, and exit with code 2."""
        console.show(f"Usage: {self.usage}\nTry '{self.prog} --help'.", error=True)
        short = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}…"
        console.complain(short)
        raise SystemExit(2)


class _ShowHelp(argparse.Action):
    """Print the help: the essential options, or all of them for ``--help-all``."""

    def __call__(self, parser: Any, *args: Any) -> None:
        essential = "" if "--help-all" in args else parser.command.essential
        options = [action for action in parser._actions if action.option_strings and action.help != SUPPRESS]
        hidden = [
            action
            for action in options
            if essential and action.option_strings[0][2:] not in essential.split()
        ]
        for option in hidden:
            option.help = SUPPRESS
        if hidden:
            parser.epilog += f"\n\n{len(hidden)} more options: {parser.prog} --help-all"
        parser.print_help()
        parser.exit()


class CommandParser(Parser):
    """The parser of one command: options and arguments in any order."""

    def __init__(self, command: Command) -> None:
        super().__init__(
            prog=f"pairnorm {command.name}",
            usage=f"pairnorm {command.usage} [options]",
            description=command.help,
            epilog=f"Example:\n  {command.example}",
        )
        self.command = command
        self.add_argument("-h", "--help", "--help-all", action=_ShowHelp, nargs=0, help=SUPPRESS)
        self._single: dict[str, Any] = {}  # defaults of the options that take one value
        for title, options in command.options.items():
            group = self.add_argument_group(title)
            for signature, help in options.items():
                self.add_option(group, signature, help)

    def add_option(self, group: argparse._ArgumentGroup, signature: str, help: str) -> None:
        """Add an option; its signature and help are those that ``--help`` shows.

        Args:
            group: of options.
            signature: such as ``--depth N=3``: an option, the kind of its value, the default. ``--quiet`` is
                a flag, ``--nodes TABLE...`` takes several values, and ``WHAT...`` stands for arguments.
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
            group.add_argument(name, action="extend", nargs="+", metavar=metavar, help=help)
        else:
            text = f"{help} Default: {default}." if default else help
            added = group.add_argument(name, action="append", metavar=metavar, type=convert, help=text)
            self._single[added.dest] = convert(default) if default else None

    def parse(self, words: Sequence[str]) -> Options:
        """Parse the arguments that follow the command's name, and check that required ones are given."""
        words = list(self._with_current_names(words))
        parsed, unknown = self.parse_known_intermixed_args(words, Options())
        if unknown:
            is_option = unknown[0].startswith("-")
            self.error(
                self._unknown_option(unknown[0])
                if is_option
                else f"there is no argument {quoted(unknown[0])}."
            )
        for name, default in self._single.items():
            setattr(
                parsed, name, self._one_value(f"--{name.replace('_', '-')}", getattr(parsed, name), default)
            )
        for names in (alternatives.split("|") for alternatives in self.command.required):
            if all(getattr(parsed, name) is None for name in names):
                self.error(f"{' or '.join(f'--{name}' for name in names)} is needed.")
        return parsed

    def _one_value(self, option: str, values: Sequence[Any] | None, default: Any) -> Any:
        """Return the value of an option; repeated lists are joined by commas, other values must agree."""
        different = list(dict.fromkeys(values or ()))
        if len(different) < 2:
            return different[0] if different else default
        if self._option_string_actions[option].metavar not in LISTS:
            self.error(
                f"{option} takes one value, but has {' and '.join(quoted(str(v)) for v in different)}."
            )
        return ",".join(different)

    def _with_current_names(self, words: Iterable[str]) -> Iterator[str]:
        """Replace old names of options, and print a note; the unit of ``--minutes`` is added to its value."""
        unit = ""
        for word in words:
            name, equals, value = word.partition("=")
            new = OLD_NAMES.get(name, "")
            if name in self._option_string_actions or new not in self._option_string_actions:
                yield word + unit
                unit = ""
                continue
            console.note(f"{name} is now called {new}; the old name will go in the next release.")
            unit = "m" if name == "--minutes" else ""
            yield f"{new}={value}{unit}" if equals else new
            unit = "" if equals else unit

    def _unknown_option(self, word: str) -> str:
        name = word.partition("=")[0]
        advice = [text for names, text in OUT_OF_SCOPE.items() if name.removeprefix("--") in names]
        suggestion = advice[0] if advice else did_you_mean(name, sorted(self._option_string_actions))
        return f"there is no option {quoted(name)}. {suggestion}".rstrip()


def refuse_inputs(out: Path, *inputs: Path | None) -> None:
    """Raise an error if an output would overwrite an input, also through links."""
    check_path(out)  # a database is named by text, so the parser does not check this path
    for path in (path for path in inputs if path is not None and path.exists() and out.exists()):
        if out.samefile(path.parent if out.is_dir() else path):
            problem = f"{out}: writing there would replace {path}, which is read"
            hint = "Choose another path: {out}"
            raise PairNormError(problem, code="would-overwrite", value=str(out), hint=hint, out=...)


def interval(scores: "Scores") -> str:
    """Format the interval of an accuracy, in brackets."""
    low, high = scores.interval
    return f"(95% interval {low:.1%} to {high:.1%})"
