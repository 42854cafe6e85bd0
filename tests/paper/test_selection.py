import pytest

from pairnorm.errors import PairNormError
from pairnorm.paper.grids import EXPERIMENTS
from pairnorm.paper.selection import Selection, split_names, split_numbers


def test_all_is_everything() -> None:
    assert [found.name for found in Selection(["all"]).experiments()] == list(EXPERIMENTS)
    assert "figure2" in Selection(["all"]).names()
    assert "all" not in Selection(["all"]).names()


def test_all_leaves_out_what_a_choice_leaves_nothing_of() -> None:
    names = [found.name for found in Selection(["all"], datasets=["pubmed"], missing=[0]).experiments()]
    assert "ablation" not in names  # Cora and Citeseer only
    assert "figure4" not in names  # 100% only
    assert "table1" in names


def test_figure_2_needs_no_training() -> None:
    assert Selection(["figure2"], missing=[0]).experiments() == []


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(["tabel1"]), "Did you mean 'table1'"),
        (Selection(["table2"], missing=[50]), "missing is 50; table2 has 0, 100%"),
        (Selection(["ablation"], datasets=["pubmed"]), "nothing of ablation is left.*cora, citeseer"),
    ],
)
def test_what_cannot_be(selection: Selection, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        selection.experiments()


def test_options_can_be_pasted() -> None:
    selection = Selection(["table1"], ["cora"], runs=1, depths=[2, 4], missing=[0, 100])
    assert selection.options == " --dataset cora --runs 1 --depths 2,4 --missing 0,100"
    assert Selection().options == ""


def test_lists_on_the_command_line() -> None:
    assert split_names(None) is split_names("all") is None
    assert split_numbers("missing", "0%, 100%") == [0, 100]
    with pytest.raises(PairNormError, match=r"depths is '2;4'; expected whole numbers"):
        split_numbers("depths", "2;4")
    with pytest.raises(PairNormError, match="dataset is 'corra'"):
        split_names("cora,corra")
