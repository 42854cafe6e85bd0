import csv
from itertools import combinations, product

import pytest

from helpers import make_trial
from pairnorm.compare import depth
from pairnorm.compare.depth import (
    COLUMNS,
    DATASETS,
    LONG_RANGE,
    MODELS,
    DepthCell,
    DepthComparison,
    DepthTable,
)
from pairnorm.train import METHODS, Spec, Store
from pairnorm.train.schedule import Running

TINY = DepthComparison(
    ["cora"], ["GCN"], ["none", "DropEdge"], depths=[2, 3], missing=[100], runs=2, epochs=2
)


def test_methods_have_equally_many_candidates():
    whole = DepthComparison()
    for cell in whole.cells():
        candidates = whole.candidates(cell)
        assert len(set(candidates)) == 4, cell
        for spec in candidates:
            assert (spec.dataset, spec.model, spec.depth) == (cell.dataset, cell.model, cell.depth)
            assert spec.missing_rate == cell.missing_percent / 100
            assert spec.epochs == 500
    assert {cell.method for cell in whole.cells() if cell.model == "GCN"} == {*METHODS} - {"ContraNorm"}


def test_batches_are_whole_graphs():
    batches = [batch.work[0][1] for batch in DepthComparison().batches(Running("cpu"))]
    assert [(cells[0].dataset, cells[0].model) for cells in batches] == [*product(DATASETS, MODELS)]
    for cells in batches:
        assert {cell.missing_percent for cell in cells} == (
            {0} if cells[0].dataset in LONG_RANGE else {0, 100}
        )


def test_quadratic_method_is_trained_only_if_named():
    """Bug: ContraNorm stood among the methods of two graphs, whose tables never had it."""
    [cell] = DepthComparison(["pubmed"], ["GCN"], ["ContraNorm"], depths=[2], missing=[0]).cells()
    assert cell.method == "ContraNorm"


def test_default_depths_are_limited_by_cost():
    deepest = {(cell.dataset, cell.model): cell.depth for cell in DepthComparison().cells()}
    assert [deepest["cora", model] for model in ("GCN", "SGC", "GAT")] == [64, 64, 32]
    assert [deepest["pubmed", model] for model in ("GCN", "SGC", "GAT")] == [32, 64, 16]
    assert {depth for (dataset, _), depth in deepest.items() if dataset in LONG_RANGE} == {32}
    calls = DepthComparison(["pubmed"], ["GCN"], ["PN"], depths=[64]).cells()
    assert {cell.depth for cell in calls} == {64}


def test_long_range_graphs_have_their_own_settings():
    specs = DepthComparison(LONG_RANGE, ["GCN", "SGC"], ["none", "PN"]).specs()
    assert {(spec.scaling, spec.weight_decay, spec.missing_rate) for spec in specs} == {("none", 0.0, 0.0)}
    assert {spec.dataset for spec in specs if spec.metric == "auc"} == {"minesweeper"}
    assert {spec.dropout for spec in specs if spec.model == "SGC"} == {0.0}


def test_best_candidate_by_validation_gets_all_runs(tmp_path):
    cell = DepthCell("cora", "GCN", "none", 100, 2)
    candidates = TINY.candidates(cell)
    with Store(tmp_path / "s.sqlite") as store:
        assert TINY.count_pending(store) == 4 * (4 + 1)
        for spec, validation in zip(candidates[:3], (0.5, 0.7, 0.7), strict=True):
            loss = 1.0 if spec is candidates[2] else 2.0
            store.add(spec, [make_trial(0, validation, 0.6, validation_loss=loss)], seconds=8)
        assert DepthTable(TINY, store.results()).index.chosen(TINY, cell) is None
        store.add(candidates[3], [make_trial(0, float("nan"))], seconds=1)
        table = DepthTable(TINY, store.results())
        # Of equals, the one with the lower loss.
        assert table.index.pending(TINY, [cell]) == [(candidates[2], 1)]
        assert table.is_pending(cell)
        assert table.rows == []
        measures = dict.fromkeys(depth.MEASURES, 3.0)
        store.add(candidates[2], [make_trial(1, 0.1, 0.8, measures=measures)], seconds=4)
        (row,) = DepthTable(TINY, store.results()).rows
    assert row["accuracy"] == pytest.approx(0.7)
    assert row["accuracy_std"] == pytest.approx(0.2 / 2**0.5)
    assert row["learning_rate"] == candidates[2].learning_rate
    assert row["seconds_per_epoch"] == pytest.approx((8 + 4) / 2 / TINY.epochs)
    assert row["effective_rank"] != row["effective_rank"]  # one of the runs had none


def test_comparison_stops_and_resumes(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        stopped = TINY.reproduce(store, Running("cpu", workers=1, minutes=0))
        assert (stopped.trained, stopped.pending) == (0, 20)
        done = TINY.reproduce(store, Running("cpu", workers=1))
        assert (done.trained, done.pending) == (20, 0)
        assert TINY.reproduce(store, Running("cpu", workers=1)).trained == 0
        rows = list(csv.DictReader(DepthTable(TINY, store.results()).csv().splitlines()))
    assert tuple(rows[0]) == tuple("remedy" if name == "method" else name for name in COLUMNS)
    assert [(row["remedy"], row["depth"]) for row in rows] == [
        ("none", "2"), ("none", "3"), ("DropEdge", "2"), ("DropEdge", "3")
    ]  # fmt: skip
    assert all(float(row["gradient_first"]) > 0 and float(row["parameters"]) > 1000 for row in rows)


def test_strength_column_reads_fields_of_each_method(tmp_path):
    comparison = DepthComparison(["cora"], ["GCN"], ["Skip", "PN", "GCNII"], depths=[4], missing=[0], runs=1)
    with Store(tmp_path / "s.sqlite") as store:
        for cell in comparison.cells():
            for number, spec in enumerate(comparison.candidates(cell)):
                store.add(spec, [make_trial(0, number / 10)], seconds=1)
        strengths = {row["method"]: row["strength"] for row in DepthTable(comparison, store.results()).rows}
    assert strengths == {"Skip": 1, "PN": 1.0, "GCNII": 0.1}


def test_invalid_choice_raises(raises):
    with raises("unknown-choice", value="GIN"):
        DepthComparison(models=["GIN"])
    with raises("unknown-choice", value="PairNorm"):
        DepthComparison(methods=["PairNorm"])
    with raises("not-a-whole-number", value=101):
        DepthComparison(missing=[101])


def test_grid_contains_the_documented_candidate():
    cell = DepthCell("pubmed", "SGC", "PN", 100, 8)
    assert Spec("pubmed", "SGC", 8, norm="PN", scale=10, missing_rate=1, epochs=500, learning_rate=0.1,
                scaling="none") in DepthComparison().candidates(cell)  # fmt: skip


@pytest.mark.parametrize("method", ["GCNII", "PN-SI", "Skip", "BatchNorm", "none"])
def test_half_fraction_contains_all_pairs_of_values(method):
    """A half of 2 x 2 x 2: of two settings all four pairs are there."""
    comparison = DepthComparison(["cora"], ["GCN"], [method], depths=[4], missing=[0])
    specs = comparison.candidates(DepthCell("cora", "GCN", method, 0, 4))
    assert len({*specs}) == 4
    columns = [
        [spec.learning_rate for spec in specs],
        [spec.dropout for spec in specs],
        [(spec.strength, spec.scale, spec.skip) for spec in specs],
    ]
    tuned = [column for column in columns if len({*column}) > 1]
    assert len(tuned) == (2 if method in ("BatchNorm", "none") else 3)
    for one, other in combinations(tuned, 2):
        assert len({*zip(one, other, strict=True)}) == 4
