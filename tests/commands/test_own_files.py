import pytest

from pairnorm.commands.own_files import typed
from pairnorm.errors import PairNormError


@pytest.mark.parametrize(
    ("python", "command_line"),
    [
        ("Pass ignore=['age'], or fit again.", "Pass --ignore age, or fit again."),
        ("Pass delimiter=';'.", "Pass --delimiter ';'."),
        ("or pass categorical=['zip code'].", "or pass --categorical zip code."),
        ("Pass edges=...", "Pass --edges FILE"),
        ("choose model='SGC'.", "choose --model 'SGC'."),
        ("graph.npz: weight='amount' does not apply.", "graph.npz: --weight 'amount' does not apply."),
        ("nothing to change", "nothing to change"),
    ],
)
def test_remedies_are_told_as_they_are_typed(python: str, command_line: str) -> None:
    with pytest.raises(PairNormError) as caught, typed():
        raise PairNormError(python)
    assert str(caught.value) == command_line
