import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.measure import apd, apsd, col_diff, dirichlet_energy, row_diff, tpsd
from pairnorm.measure import record as record_module
from pairnorm.measure.record import Measures


def test_each_name_is_its_measure(adjacency):
    x = torch.randn(40, 2, 3)
    pairs = {"connected": torch.tensor([[0, 1], [2, 3]]), "mine": torch.tensor([[4], [9]])}
    names = ["row_diff", "col_diff", "apd", "apsd", "tpsd", "dirichlet_energy"]
    values = Measures(names, sample=10, seed=0)(x, pairs, adjacency)
    expected = {
        "row_diff": row_diff(x),
        "col_diff": col_diff(x),
        "apd_connected": apd(x, pairs["connected"]),
        "apd_mine": apd(x, pairs["mine"]),
        "apsd_connected": apsd(x, pairs["connected"]),
        "apsd_mine": apsd(x, pairs["mine"]),
        "apsd_random": tpsd(x) / 40**2,
        "tpsd": tpsd(x),
        "dirichlet_energy": dirichlet_energy(x, adjacency),
    }
    assert list(values) == list(expected)
    torch.testing.assert_close(values, expected)


def test_large_states_are_sampled_with_an_error(monkeypatch):
    monkeypatch.setattr(record_module, "EXACT_WORK", 60**2 * 20)
    take = Measures(["row_diff", "col_diff"], sample=500, seed=0)
    within = take(torch.randn(60, 20), {}, None)
    assert list(within) == ["row_diff", "col_diff"]
    x = torch.randn(61, 20)
    tall = take(x, {}, None)
    assert list(tall) == ["row_diff", "row_diff_standard_error", "col_diff"]
    assert 0 < (tall["row_diff"] - row_diff(x)).abs() < 4 * tall["row_diff_standard_error"]
    wide = take(x.T, {}, None)
    assert list(wide) == ["row_diff", "col_diff", "col_diff_standard_error"]
    assert 0 < (wide["col_diff"] - col_diff(x.T)).abs() < 4 * wide["col_diff_standard_error"]


@pytest.mark.parametrize("measures", ["row_diff", [], {}])
def test_no_list_of_names_is_an_error(measures):
    with pytest.raises(PairNormError, match=r"expected a list of names such as \['row_diff'\]"):
        Measures(measures, sample=10, seed=0)


def test_unknown_names_are_corrected():
    with pytest.raises(PairNormError, match=r"'rowdiff'.*Did you mean 'row_diff'"):
        Measures(["rowdiff"], sample=10, seed=0)


def test_a_sample_of_one_is_an_error():
    with pytest.raises(PairNormError, match="sample is 1; expected"):
        Measures(["tpsd"], sample=1, seed=0)


def test_energy_without_a_graph_says_how_to_give_one():
    with pytest.raises(PairNormError, match=r"dirichlet_energy needs a graph.*adjacency="):
        Measures(["dirichlet_energy"], sample=10, seed=0)(torch.randn(3, 2), {}, None)


def test_own_measures_give_one_value_per_trial():
    x = torch.randn(5, 2, 3)
    own = Measures({"largest": lambda states: states.amax((0, -1))}, sample=10, seed=0)
    torch.testing.assert_close(own(x, {}, None)["largest"], x.amax((0, 2)))
    with pytest.raises(
        PairNormError, match=r"measure 'sum' gave shape \[\]; expected one value per trial: \[2\]"
    ):
        Measures({"sum": torch.sum}, sample=10, seed=0)(x, {}, None)
