from dataclasses import replace
from itertools import product

import pytest

from pairnorm.paper.experiments import (
    ABLATION,
    BARS,
    DATASETS,
    EXPERIMENTS,
    FIGURE1,
    FIGURE3,
    FIGURE4,
    NAMES,
    TABLE1,
    TABLE2,
    TABLE3,
    TUNED,
    Selection,
    reported,
)
from pairnorm.sweep.grid import Experiment, TableCell
from pairnorm.train import Spec

TINY = Experiment(
    "tiny",
    "An example",
    {"GCN": {"model": "GCN", "depth": (4, 2)}, "SGC": {"model": "SGC", "depth": 3, "dropout": (0.0, 0.6)}},
    missing={0: 2, 100: 1},
    datasets=("cora", "citeseer"),
)


def test_candidates_are_the_product_ordered_by_depth():
    assert TINY.candidates(TableCell("cora", "GCN", 100)) == (
        Spec("cora", "GCN", 2, missing_rate=1.0),
        Spec("cora", "GCN", 4, missing_rate=1.0),
    )
    assert TINY.candidates(TableCell("citeseer", "SGC", 0)) == (
        Spec("citeseer", "SGC", 3, dropout=0.0),
        Spec("citeseer", "SGC", 3),
    )


def test_candidates_are_cached_by_experiment():
    cell = TableCell("cora", "GCN", 100)
    assert replace(TINY).candidates(cell) is TINY.candidates(cell)
    # Name, graphs and rates, which make the hash, are the same here; the settings are not.
    longer = replace(TINY, settings={"epochs": 7})
    assert {spec.epochs for spec in longer.candidates(cell)} == {7}
    assert {spec.epochs for spec in TINY.candidates(cell)} == {1000}


def test_requested_pairs_cover_candidates_cells_and_runs():
    pairs = list(TINY.requested())
    # 2 graphs x 2 methods x 2 candidates x (2 runs at 0% + 1 at 100%)
    assert len(pairs) == len(set(pairs)) == 24
    assert {seed for spec, seed in pairs if spec.missing_rate == 1} == {0}


def test_search_requests_fewer_runs_first():
    search = replace(TINY, missing={0: 5}, search_runs=1, searched=("dropout",))
    assert {seed for _, seed in search.requested()} == {0}


def test_ineffective_values_give_one_candidate():
    plain = Experiment(
        "x", "x", {"GCN": {"model": "GCN", "depth": 2, "scale": (1.0, 10.0)}}, {0: 1}, ("cora",)
    )
    assert len(plain.candidates(TableCell("cora", "GCN", 0))) == 1


def test_selection_narrows_an_experiment():
    small = Selection(datasets=["cora"], runs=3, epochs=9, depths=[8, 6, 8], missing=[100, 20]).narrow(TINY)
    assert small is not None
    assert (small.datasets, small.missing) == (("cora",), {100: 3})
    specs = small.candidates(TableCell("cora", "GCN", 100))
    assert [(spec.depth, spec.epochs) for spec in specs] == [(6, 9), (8, 9)]
    assert Selection().narrow(TINY) == TINY


def test_empty_selection_is_none():
    assert Selection(missing=[20]).narrow(TINY) is None
    assert Selection(datasets=["pubmed"]).narrow(TINY) is None


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"runs": 0}, "not-a-whole-number", 0),
        ({"epochs": -1}, "not-a-whole-number", -1),
        ({"depths": [2, 0]}, "not-a-whole-number", 0),
        ({"datasets": ["corra"]}, "unknown-choice", "corra"),
    ],
)
def test_invalid_selection_value_raises(raises, options, code, value):
    with raises(code, value=value):
        Selection(**options).narrow(TINY)


def pairs(*names: str) -> set[tuple[Spec, int]]:
    return {pair for name in names for pair in EXPERIMENTS[name].requested()}


def test_experiments_have_the_expected_number_of_trials():
    # graphs x missing rates x runs x (depths x (1 + 5 scales)), and x methods x depths
    assert len(pairs("table1")) == 4 * 6 * 5 * 20 * 6
    # less the four methods with a skip at two layers, where it cannot act
    assert len(pairs("table2")) == len(pairs("table3")) == 4 * 2 * 5 * (6 * 10 - 4)
    assert len(pairs("figure1")) == 4 * 5 * 20 * 6
    # 0 and 100% five times, 70, 80 and 90% once
    assert len(pairs("bars")) == 4 * (12 * 10 - 8) * (2 * 5 + 3)
    # the first stage: one run of 3 learning rates x 3 weight decays x 2 dropout rates
    assert len(pairs("tuned")) == 4 * 6 * 18 * 20 * 6
    # 2 graphs x 2 rates x 5 runs x 4 depths x (GCN: 2 + 12, GAT: 1 + 6)
    assert len(pairs("ablation")) == 2 * 2 * 5 * 4 * 21
    # 2 graphs x 2 rates x 2 runs x 2 scalings x (SGC: 6 depths x (1 + 5 scales), GCN: 3 x 3 - 1)
    assert len(pairs("scaling")) == 2 * 2 * 2 * 2 * (36 + 9 - 1)


def test_reported_cells_equal_those_of_the_tables():
    cells = {cell for table in (TABLE1, TABLE2, TABLE3) for cell in table.cells()}
    assert cells == set(reported())
    assert len(cells) == 144


def test_figures_3_and_4_need_only_trials_of_tables():
    assert pairs("figure4") < pairs("table1", "table2", "table3")
    assert pairs("figure3") < pairs("table2", "table3")


def test_bars_add_only_intermediate_missing_rates():
    extra = pairs("bars") - pairs("table2", "table3")
    assert {spec.missing_rate for spec, _ in extra} == {0.7, 0.8, 0.9}
    assert pairs("table2", "table3") < pairs("bars")


def test_tuning_and_ablation_share_trials_with_tables():
    shared = pairs("tuned") & pairs("table1")
    assert len(shared) == 4 * 6 * 20 * 6  # the first run of all of Table 1
    assert {spec.scaling for spec, _ in pairs("scaling") - pairs("table1-rows", "table2")} == {"none"}
    shared = pairs("ablation") & pairs("table2", "table3")
    # plain and PN-SI after the activation, GCN (rw) and GAT, at 4 depths
    assert len(shared) == 2 * 2 * 5 * 4 * 4
    assert {spec.norm for spec, _ in shared} == {"none", "PN-SI"}


def test_measured_trials_belong_to_one_experiment():
    # Measures are taken while training: a trial trained without them for another experiment would lack them.
    measured = [name for name, experiment in EXPERIMENTS.items() if experiment.measures]
    others = [name for name in EXPERIMENTS if name not in measured]
    assert measured == ["figure1"]
    assert not {spec for spec, _ in pairs("figure1")} & {
        spec for spec, _ in pairs(*(name for name in others if name != "case-study"))
    }


@pytest.mark.parametrize("table", [TABLE1, TABLE2, TABLE3, FIGURE3, FIGURE4, BARS])
def test_tables_and_figures_use_the_papers_settings(table):
    specs = {spec for spec, _ in pairs(table.name)}  # type: ignore[attr-defined]
    for name, value in {
        "adjacency": "rw", "order": "after", "dropout": 0.6, "learning_rate": 0.005, "weight_decay": 5e-4,
        "missing_kind": "vectors", "split": "default", "heads": 1,
    }.items():  # fmt: skip
        assert {getattr(spec, name) for spec in specs} == {value}
    for spec in specs:
        if spec.model == "SGC":
            assert spec.norm in ("none", "PN")
            assert spec.epochs == 500
        else:
            assert (spec.hidden, spec.epochs, spec.scale) == ({"GCN": 32, "GAT": 64}[spec.model], 1000, 1.0)
            assert spec.norm in ("none", "PN-SI")


def test_tables_use_the_papers_depths():
    sgc = {spec.depth for spec, _ in pairs("table1")}
    assert sgc == {*range(1, 11), 15, 20, 25, 30, 35, 40, 45, 50, 55, 60}
    assert {spec.depth for spec, _ in pairs("table2", "table3")} == {2, 4, 6, 8, 10, 12, 15, 20, 25, 30}


def test_method_names_match_their_specs():
    for table, model in ((TABLE2, "GCN"), (TABLE3, "GAT")):
        for method in table.methods:
            for spec in table.candidates(TableCell("cora", method, 100)):
                assert spec.model == model
                assert (spec.norm == "PN-SI") == method.endswith("-PN")
                skip = 1 if "-t1" in method else 2 if "-t2" in method else 0
                assert spec.skip == (skip if spec.depth > 2 else 0)


def test_ablation_covers_all_combinations():
    specs = {(spec.adjacency, spec.order, spec.norm) for spec, _ in pairs("ablation") if spec.model == "GCN"}
    expected = set(product(("rw", "sym"), ("after", "before"), ("PN", "PN-SI", "PN-SCS")))
    assert specs == expected | {("rw", "after", "none"), ("sym", "after", "none")}
    for method in ABLATION.methods:
        for spec in ABLATION.candidates(TableCell("cora", method, 0)):
            for word in method.split(" ")[1:]:
                assert word in (spec.adjacency, spec.order, spec.norm)


def test_experiment_names_are_unique_and_listed():
    assert set(EXPERIMENTS) | {"figure2", "paper", "all"} == set(NAMES)
    assert all(name == experiment.name for name, experiment in EXPERIMENTS.items())
    assert TUNED.datasets == FIGURE1.datasets == DATASETS


def test_all_selects_every_experiment():
    assert [result.name for result in Selection(["all"]).experiments()] == list(EXPERIMENTS)
    assert "figure2" in Selection(["all"]).names()
    assert "all" not in Selection(["all"]).names()


def test_paper_selects_tables_figures_and_tuning():
    names = Selection(["paper"]).names()
    assert {"table1", "table2", "table3", "figure1", "figure2", "figure3", "figure4", "bars"} < set(names)
    assert set(Selection(["all"]).names()) - set(names) == {"scaling", "splits", "claims"}
    assert Selection(["claims", "paper", "table1"]).names() == ["claims", *names]  # each once


def test_all_skips_experiments_without_selected_cells():
    names = [result.name for result in Selection(["all"], datasets=["pubmed"], missing=[0]).experiments()]
    assert "ablation" not in names  # Cora and Citeseer only
    assert "figure4" not in names  # 100% only
    assert "table1" in names


def test_figure_2_needs_no_training():
    assert Selection(["figure2"], missing=[0]).experiments() == []


@pytest.mark.parametrize(
    ("selection", "code", "message"),
    [
        (Selection(["tabel1"]), "unknown-choice", "Did you mean 'table1'"),
        (Selection(["table2"], missing=[50]), "out-of-range", "missing is 50; expected one of 0, 100"),
        (Selection(["ablation"], datasets=["pubmed"]), "nothing-selected", "some of cora, citeseer and"),
    ],
)
def test_invalid_selection_raises(raises, selection, code, message):
    with raises(code) as caught:
        selection.experiments()
    assert message in str(caught.value)


def test_selection_options_can_be_pasted():
    selection = Selection(["table1"], ["cora"], runs=1, depths=[2, 4], missing=[0, 100])
    assert selection.options == " --dataset cora --runs 1 --depth 2,4 --missing 0,100"
    assert Selection().options == ""


# The paper's released code gives SGC raw features and divides those of GCN and GAT by their row sums.
RAW, ROWS = "none", "rows"


@pytest.mark.parametrize(
    ("name", "scalings"),
    [
        ("table1", {"SGC": {RAW}}),
        ("table1-rows", {"SGC": {ROWS}}),
        ("table2", {"GCN": {ROWS}}),
        ("table3", {"GAT": {ROWS}}),
        ("figure1", {"SGC": {RAW}}),
        ("figure3", {"GCN": {ROWS}, "GAT": {ROWS}}),
        ("figure4", {"SGC": {RAW}, "GCN": {ROWS}, "GAT": {ROWS}}),
        ("bars", {"GCN": {ROWS}, "GAT": {ROWS}}),
        ("case-study", {"SGC": {RAW}, "GCN": {ROWS}}),
        ("deep-gcn", {"GCN": {RAW, ROWS}}),
        ("sgc-modes", {"SGC": {RAW}}),
        ("tuned", {"SGC": {RAW}}),
        ("ablation", {"GCN": {ROWS}, "GAT": {ROWS}}),
        ("scaling", {"SGC": {RAW, ROWS}, "GCN": {RAW, ROWS}}),
        ("splits", {"SGC": {RAW}, "GCN": {ROWS}, "GAT": {ROWS}}),
        ("claims", {}),
    ],
)
def test_feature_scaling_of_each_experiment(name, scalings):
    result: dict[str, set[str]] = {}
    for spec, _ in EXPERIMENTS[name].requested():
        result.setdefault(spec.model, set()).add(spec.scaling)
    assert result == scalings


def test_feature_scaling_test_covers_every_experiment():
    marks = test_feature_scaling_of_each_experiment.pytestmark  # type: ignore[attr-defined]
    assert [name for name, _ in marks[0].args[1]] == list(EXPERIMENTS)
