import argparse
import re
import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from pairnorm.base.errors import PairNormError
from pairnorm.cli import build_parser
from pairnorm.commands.options import (
    OLD_NAMES,
    Command,
    CommandParser,
    Options,
    refuse_inputs,
    shared,
)


def run(options: argparse.Namespace) -> None:
    """Do it.

    And more.
    """


def parser_of(options: Mapping[str, str], **settings: Any) -> CommandParser:
    """Return the parser of a command ``do`` with the given options."""
    return CommandParser(Command(run, "do WHAT...", "pairnorm do a", {"Columns": options}, **settings))


WHAT = {"WHAT...": "Name it."}
DEPTH = {**shared("ignore id"), "--depth N=3": "Use N layers."}


@pytest.fixture
def parser() -> CommandParser:
    return parser_of(DEPTH)


def test_help_has_docstring_options_and_example(parser):
    words = re.sub(r"\s+", " ", parser.format_help())
    assert "pairnorm do WHAT... [options] Do it. And more." in words
    assert "Columns: --ignore COLUMN [COLUMN ...] Leave out this column. May be repeated." in words
    assert "--depth N Use N layers. Default: 3." in words
    assert words.endswith("Example: pairnorm do a ")


def test_options_and_arguments_are_accepted_in_any_order():
    parser = parser_of(WHAT | DEPTH)
    result = parser.parse(["a", "--depth=2", "b", "--ignore", "x", "--ignore", "y", "--id", "z", "c"])
    assert result.what == ["a", "b", "c"]
    assert result.columns == {"ignore": ["x", "y"], "id": "z"}
    assert result.depth == 2
    assert parser.parse(["a"]).depth == 3


@pytest.mark.parametrize("value", ["-1", "-", "-x y", "", "=a", "a=b"])
def test_option_value_can_be_any_text(parser, value):
    assert parser.parse(["--ignore", value, "--id", "key"]).ignore == [value]
    assert parser.parse([f"--ignore={value}"]).ignore == [value]


def test_value_like_an_option_needs_an_equals_sign(parser):
    assert parser.parse(["--ignore=-age", "--ignore=--age"]).ignore == ["-age", "--age"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ignor", "x"], "there is no option '--ignor'. Did you mean '--ignore'?"),
        (["--id"], "argument --id: expected one argument"),
        (["--id", "--ignore", "x"], "argument --id: expected one argument"),
        (["--depth", "two"], "argument --depth: invalid int value: 'two'"),
    ],
)
def test_usage_error_prints_usage_and_reason(parser, capsys, words, message):
    with pytest.raises(SystemExit, match="2"):
        parser.parse(words)
    assert capsys.readouterr().err.splitlines() == [
        "Usage: pairnorm do WHAT... [options]",
        "Try 'pairnorm do --help'.",
        f"Error: {message}",
    ]


def test_output_equal_to_input_raises(tmp_path, raises):
    nodes, other = tmp_path / "nodes.csv", tmp_path / "other.csv"
    nodes.touch()
    (tmp_path / "link.csv").symlink_to(nodes)
    (tmp_path / "hard.csv").hardlink_to(nodes)
    for out in (nodes, tmp_path / "link.csv", tmp_path / "hard.csv", tmp_path):
        with raises("would-overwrite", value=str(out)):
            refuse_inputs(out, None, nodes)
    refuse_inputs(other, None, nodes)
    other.touch()
    refuse_inputs(other, nodes, tmp_path / "absent.csv")


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_hinted_option_works_in_a_shell(tmp_path, delimiter):
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text(f"id{delimiter}age\na{delimiter}31\nb{delimiter}25\n")
    edges.write_text(f"source{delimiter}target\na{delimiter}b\n")
    options = Options(nodes=[nodes], edges=[edges], delimiter=":")
    with pytest.raises(PairNormError) as caught:
        options.read_graph()
    hint = re.search(r"Pass (--delimiter .*)\.$", caught.value.typed())
    assert hint
    _, options.delimiter = shlex.split(hint[1])
    assert options.read_graph().features.tolist() == [[31], [25]]


def test_table_options_accept_several_values():
    parser = parser_of(shared("nodes edges id"), required=("nodes",))
    result = parser.parse(["--nodes", "a", "--edges", "b", "c", "--id", "x", "--edges", "d"])
    assert (result.nodes, result.edges) == (["a"], ["b", "c", "d"])
    assert parser.parse(["--nodes", "-", "--edges=e"]).nodes == ["-"]
    parsed = parser_of(shared("edge-columns")).parse(["--edge-columns", "amount", "day"])
    assert parsed.edge_columns == ["amount", "day"]


def test_comma_separated_options_can_be_repeated():
    """``--dataset cora --dataset citeseer`` selects both; dropping the first would go unnoticed."""
    parser = parser_of({**shared("dataset device"), "--missing NUMBERS=0": "Percent."})
    words = "--missing 0 --dataset cora,pubmed --device cpu --missing=50 --dataset=citeseer"
    result = parser.parse(words.split())
    assert (result.dataset, result.missing, result.device) == ("cora,pubmed,citeseer", "0,50", "cpu")
    assert parser.parse(["--missing", "90"]).missing == "90"


def test_several_edge_files_are_printed(tmp_path, capsys):
    (tmp_path / "n.csv").write_text("id,age\na,31\nb,25\nc,1\n")
    edges = [tmp_path / "e1.csv", tmp_path / "e2.csv"]
    for path, pair in zip(edges, ("a,b", "b,c"), strict=True):
        path.write_text(f"source,target\n{pair}\n")
    graph = Options(nodes=[tmp_path / "n.csv"], edges=edges).read_graph()
    assert graph.num_edges == 2
    message = re.sub(r"\s+", "", capsys.readouterr().out)
    assert all(str(path) in message for path in edges)


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("each", "each")])
def test_classes_option_is_a_number_or_each(text, value):
    assert parser_of(shared("classes")).parse(["--classes", text]).columns == {"classes": value}


def test_names_and_numbers_are_parsed(raises):
    assert Options(dataset=None).names("dataset") is Options(depth="all").numbers("depth") is None
    assert Options(missing="0%, 100%").numbers("missing") == [0, 100]
    assert Options(missing="99.5").numbers("missing", float) == [99.5]
    with raises("not-a-number", value="2;4"):
        Options(depth="2;4").numbers("depth")
    with raises("unknown-choice", value="corra"):
        Options(dataset="cora,corra").names("dataset", ("cora", "pubmed"))


def test_no_option_has_the_name_of_a_method():
    for parser in build_parser()[1].values():
        assert not {action.dest for action in parser._actions} & {*vars(Options)}


@pytest.mark.parametrize("values", [["2", "2"], ["2", "3"], ["2", "3", "4"]])
def test_different_values_of_one_option_are_refused(values, capsys):
    words = [word for value in values for word in ("--depth", value)]
    parser = parser_of(DEPTH)
    if len(set(values)) == 1:
        assert parser.parse(words).depth == 2
        return
    with pytest.raises(SystemExit):
        parser.parse(words)
    assert f"--depth takes one value, but has {' and '.join(map(repr, values))}." in capsys.readouterr().err


def test_unknown_argument_is_a_usage_error(capsys):
    parser = parser_of(shared("ignore id"))
    assert parser.parse(["--ignore", "a", "b"]).ignore == ["a", "b"]
    with pytest.raises(SystemExit, match="2"):
        parser.parse(["--id", "a", "b"])
    assert capsys.readouterr().err.endswith("Error: there is no argument 'b'.\n")


def test_repeated_single_value_option_is_a_usage_error(capsys):
    """``--label winner --label state`` would silently make a feature of ``winner``."""
    parser = parser_of(shared("label"))
    with pytest.raises(SystemExit, match="2"):
        parser.parse(["--label", "winner", "--label", "state"])
    assert "--label takes one value, but has 'winner' and 'state'." in capsys.readouterr().err


@pytest.mark.parametrize("old", OLD_NAMES)
def test_old_option_names_are_accepted_with_a_note(old, capsys):
    new = OLD_NAMES[old]
    parsed = parser_of({f"{new} TEXT": "Do it."}).parse([old, "7"])
    assert getattr(parsed, new[2:].replace("-", "_")) == ("7m" if old == "--minutes" else "7")
    assert f"{old} is now called {new}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--task", "--multilabel", "--link-prediction", "--edge-type"])
def test_out_of_scope_option_is_explained(parser, name, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse([name, "x"])
    error = capsys.readouterr().err
    assert "Did you mean" not in error
    assert len(error) > 150


def test_help_shows_essential_options_and_help_all_shows_all(capsys):
    shown = {}
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            parser_of(shared("id label"), essential="id").parse([word])
        shown[word] = capsys.readouterr().out
    assert "--id" in shown["--help"]
    assert "--label" not in shown["--help"]
    assert "1 more options: pairnorm do --help-all" in shown["--help"]
    assert "--label" in shown["--help-all"]
