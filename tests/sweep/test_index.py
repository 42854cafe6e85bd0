from dataclasses import replace
from math import inf, isnan, nan

import pytest

from helpers import make_trial
from pairnorm.base.errors import PairNormError
from pairnorm.paper.experiments import reported
from pairnorm.sweep.grid import Experiment, SelectionRule, Summary, TableCell
from pairnorm.sweep.index import ResultIndex
from pairnorm.train import Spec, Store, Trial


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        (TableCell("cora", "SGC", 100), (0.423, 15)),
        (TableCell("coauthor-cs", "SGC-PN", 80), (0.88, 8)),
        (TableCell("pubmed", "GCN-PN", 0), (0.78, 30)),
        (TableCell("citeseer", "GAT-t2", 0), (0.692, 2)),
    ],
)
def test_reported_numbers_equal_the_paper(cell, numbers):
    assert reported()[cell] == numbers


def test_reported_numbers_are_complete():
    assert len(reported()) == 48 + 48 + 48
    assert all(0.2 < result.accuracy < 1 and 1 <= result.layers <= 60 for result in reported().values())


CELL = TableCell("cora", "SGC-PN", 0)
EXPERIMENT = Experiment(
    "tiny",
    "An example",
    {"SGC-PN": {"model": "SGC", "norm": "PN", "depth": (2, 4, 8), "scale": (1.0, 10.0)}},
    missing={0: 2},
    datasets=("cora",),
)


def spec(depth: int, scale: float = 1.0, **more: float) -> Spec:
    return Spec("cora", "SGC", depth, norm="PN", scale=scale, **more)  # type: ignore[arg-type]


def all_candidates(**validation: float) -> dict[Spec, list[Trial]]:
    """Return two runs of every candidate, with accuracy 0.1 except those named as in ``d4s10=0.7``."""

    def trials(one: Spec) -> list[Trial]:
        accuracy = validation.get(f"d{one.depth}s{one.scale:.0f}", 0.1)
        return [make_trial(seed, accuracy, one.depth / 100) for seed in (0, 1)]

    return {one: trials(one) for one in EXPERIMENT.candidates(CELL)}


def test_validation_selects_depth_and_scale():
    chosen = ResultIndex(all_candidates(d4s10=0.7, d8s1=0.6)).chosen(EXPERIMENT, CELL)
    assert chosen is not None
    assert chosen.best.spec == spec(4, 10.0)
    assert (chosen.accuracy, chosen.layers, chosen.complete) == (0.04, 4, True)


def test_ties_select_the_shallower_candidate():
    chosen = ResultIndex(all_candidates(d8s1=0.7, d2s10=0.7, d4s1=0.7)).chosen(EXPERIMENT, CELL)
    assert chosen is not None
    assert chosen.best.spec == spec(2, 10.0)


def test_equal_correct_counts_are_a_tie():
    cells = all_candidates()
    # As float32 gives them: 391 + 391 and 390 + 392 of 500.
    cells[spec(2)] = [make_trial(0, 0.78200000524), make_trial(1, 0.78200000524)]
    cells[spec(8)] = [make_trial(0, 0.77999997138), make_trial(1, 0.78400003911)]
    chosen = ResultIndex(cells).chosen(EXPERIMENT, CELL)
    assert chosen is not None
    assert chosen.layers == 2


def test_nan_is_never_selected():
    chosen = ResultIndex(all_candidates(d2s1=nan, d8s1=0.2)).chosen(EXPERIMENT, CELL)
    assert chosen is not None
    assert chosen.layers == 8


def test_incomplete_candidate_is_not_selected():
    cells = all_candidates(d4s1=0.9, d8s1=0.8)
    cells[spec(4)] = cells[spec(4)][:1]
    chosen = ResultIndex(cells).chosen(EXPERIMENT, CELL)
    assert chosen is not None
    assert (chosen.layers, chosen.complete) == (8, False)


def test_empty_index_selects_nothing():
    assert ResultIndex({}).chosen(EXPERIMENT, CELL) is None
    assert ResultIndex({}).by_depth(EXPERIMENT, CELL, one_scale=True) == []


def test_mean_and_sample_deviation_over_runs():
    summary = Summary(
        spec(2),
        (
            make_trial(0, 0.5, 0.7, measures={"row_diff": 1.0}),
            make_trial(1, 0.7, 0.9, measures={"row_diff": 3.0}),
        ),
    )
    assert summary.mean("test_accuracy") == pytest.approx(0.8)
    assert summary.std("test_accuracy") == pytest.approx(0.02**0.5)
    assert summary.mean("row_diff") == 2.0
    assert isnan(Summary(spec(2), (make_trial(0, 0.5),)).std("test_accuracy"))


@pytest.mark.parametrize("values", [(inf, 0.5), (inf, -inf), (1.7e308, 1.7e308), (nan, 0.5)])
def test_non_finite_or_overflowing_runs_have_no_mean(values):
    summary = Summary(spec(2), tuple(make_trial(seed, 0.5, value) for seed, value in enumerate(values)))
    assert isnan(summary.mean("test_accuracy"))
    assert values[0] == 1.7e308 or isnan(summary.std("test_accuracy"))


def test_by_depth_selects_scale_per_depth_or_one_scale():
    results = ResultIndex(all_candidates(d2s1=0.9, d4s10=0.8, d8s10=0.8))
    assert [result.spec.scale for result in results.by_depth(EXPERIMENT, CELL)] == [1.0, 10.0, 10.0]
    # scale 10: 0.1 + 0.8 + 0.8 beats 0.9 + 0.1 + 0.1
    assert [result.spec.scale for result in results.by_depth(EXPERIMENT, CELL, one_scale=True)] == [10.0] * 3
    assert [result.spec.depth for result in results.by_depth(EXPERIMENT, CELL)] == [2, 4, 8]


class TestSearch:
    experiment = replace(
        EXPERIMENT,
        methods={"SGC-PN": {"model": "SGC", "norm": "PN", "depth": (2, 4), "dropout": (0.0, 0.6)}},
        search_runs=1,
        searched=("dropout",),
    )

    def cells(self) -> dict[Spec, list[Trial]]:
        values = {(2, 0.0): 0.5, (4, 0.0): 0.8, (2, 0.6): 0.7, (4, 0.6): 0.7}
        return {
            result: [make_trial(0, values[result.depth, result.dropout])]
            for result in self.experiment.candidates(CELL)
        }

    def test_finalists_have_the_settings_of_the_best_candidate(self):
        index = ResultIndex(self.cells())
        assert set(index.pending(self.experiment)) == {(spec(depth, dropout=0.0), 1) for depth in (2, 4)}
        assert index.count_pending([self.experiment]) == 2

    def test_finalists_wait_for_the_whole_search(self):
        cells = self.cells()
        cells[spec(4, dropout=0.0)].append(make_trial(1, 0.8))
        assert ResultIndex(cells).chosen(self.experiment, CELL) is not None
        cells.pop(spec(2, dropout=0.6))
        index = ResultIndex(cells)
        assert index.pending(self.experiment) == [(spec(2, dropout=0.6), 0)]
        assert index.count_pending([self.experiment]) == 1 + 2  # and one more run of two finalists
        assert index.chosen(self.experiment, CELL) is None  # no winner yet

    def test_best_finalist_over_all_runs_is_chosen(self):
        cells = self.cells()
        assert ResultIndex(cells).chosen(self.experiment, CELL) is None
        cells[spec(2, dropout=0.0)] = [make_trial(0, 0.5), make_trial(1, 0.9)]
        cells[spec(4, dropout=0.0)] = [make_trial(0, 0.8), make_trial(1, 0.2)]
        cells[spec(4, dropout=0.6)] = [
            make_trial(0, 0.7),
            make_trial(1, 1.0),
        ]  # better, but not what was searched out
        chosen = ResultIndex(cells).chosen(self.experiment, CELL)
        assert chosen is not None
        assert (chosen.best.spec, chosen.complete) == (spec(2, dropout=0.0), True)


def test_store_and_export_select_the_same(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        for one, trials in all_candidates(d4s1=0.6).items():
            store.add(one, trials, seconds=1.0)
        store.export(tmp_path / "export.csv")
    names = ("store.sqlite", "export.csv")
    stored, exported = (ResultIndex.read(tmp_path / name).chosen(EXPERIMENT, CELL) for name in names)
    assert stored is not None
    assert stored == exported


@pytest.mark.parametrize("name", ["none.sqlite", "none.csv"])
def test_missing_store_raises(tmp_path, name):
    with pytest.raises(PairNormError, match="there is no"):
        ResultIndex.read(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_fingerprints_are_ignored_on_request():
    named = spec(2)
    trials = {named.replace(dataset="cora@0123abcd"): [make_trial(0, 0.5)]}
    assert (named, 0) not in ResultIndex(trials)
    assert (named, 0) in ResultIndex(trials, ignore_fingerprints=True)


def test_runs_can_have_different_splits():
    experiment = replace(EXPERIMENT, settings={"split": "per-class-20@{seed}"})
    by_seed = [experiment.candidates(CELL, seed) for seed in (0, 1)]
    assert [{one.split for one in specs} for specs in by_seed] == [{"per-class-20"}, {"per-class-20@1"}]
    cells = {one: [make_trial(seed, one.depth / 10)] for seed in (0, 1) for one in by_seed[seed]}
    chosen = ResultIndex(cells).chosen(experiment, CELL)
    assert chosen is not None
    assert (chosen.layers, len(chosen.best.trials), chosen.complete) == (8, 2, True)
    assert (by_seed[0][0], 1) not in set(experiment.requested())


def test_loss_breaks_ties_if_enabled():
    equal = [Summary(spec(depth), (replace(make_trial(0, 0.5), validation_loss=loss),))
             for depth, loss in ((2, 1.5), (4, 1.2), (8, nan))]  # fmt: skip
    assert SelectionRule().best(equal) == 0
    assert SelectionRule(loss_breaks_ties=True).best(equal) == 1


def test_no_shared_settings_give_one_finalist():
    rule = SelectionRule(search_runs=1)
    assert rule.finalists(EXPERIMENT.candidates(CELL), 3) == [3]
