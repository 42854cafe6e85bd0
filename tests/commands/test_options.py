import re
import shlex
from pathlib import Path

import pytest

from pairnorm.commands.options import read_graph, typed
from pairnorm.errors import PairNormError


@pytest.mark.parametrize(
    ("python", "command_line"),
    [
        ("Pass ignore=['age'], or fit again.", "Pass --ignore age, or fit again."),
        ("Pass delimiter=';'.", "Pass --delimiter ';'."),
        ("or pass categorical=['zip code'].", "or pass --categorical 'zip code'."),
        ("Pass edges=...", "Pass --edges FILE"),
        ("choose model='SGC'.", "choose --model SGC."),
        ("graph.npz: weight='amount' does not apply.", "graph.npz: --weight amount does not apply."),
        ("nothing to change", "nothing to change"),
    ],
)
def test_remedies_are_told_as_they_are_typed(python: str, command_line: str) -> None:
    with pytest.raises(PairNormError) as caught, typed():
        raise PairNormError(python)
    assert str(caught.value) == command_line


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_a_remedy_works_when_it_is_typed_into_a_shell(tmp_path: Path, delimiter: str) -> None:
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text(f"id{delimiter}age\na{delimiter}31\nb{delimiter}25\n")
    edges.write_text(f"source{delimiter}target\na{delimiter}b\n")
    with pytest.raises(PairNormError) as caught:
        read_graph(nodes, edges, {})
    remedy = re.search(r"Pass (--delimiter .*)\.$", str(caught.value))
    assert remedy
    _, typed_in = shlex.split(remedy[1])
    assert read_graph(nodes, edges, {"delimiter": typed_in}).features.tolist() == [[31], [25]]
