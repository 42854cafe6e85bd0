from collections.abc import Iterator
from dataclasses import replace
from math import nan

import pytest
import torch

from helpers import make_trial, run_python
from pairnorm.classify import NodeClassifier
from pairnorm.compare import missing
from pairnorm.compare.baselines import fsd_cap
from pairnorm.compare.missing import (
    FIT,
    FSD_CAP,
    FSD_CAP_RELEASED,
    REFITTED,
    SSNC,
    MissingCell,
    Protocol,
    mask_features,
    reached,
)
from pairnorm.compare.missing_runs import (
    Evaluation,
    MissingResults,
    MissingSweep,
    evaluate,
    pending_evaluations,
    pending_fallbacks,
    read_evaluations,
    with_fallback,
    write_evaluations,
)
from pairnorm.data import Graph, csbm, load, missing_nodes, missing_vectors
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.runner import Outcome
from pairnorm.train import Spec, Store, Trial, train
from pairnorm.train.schedule import Running

SMALL = replace(
    SSNC,
    datasets=("cora",),
    missing=(100,),
    runs=2,
    imputations=("zero", "fp"),
    trained={"SGC": {"model": "SGC", "depth": (1, 3), "epochs": 3, "learning_rate": 0.2}},
    evaluated=("label propagation",),
)
CELL = MissingCell("ssnc-mv", "cora", "fp", "SGC", 100)


def an_evaluation(**changes: object) -> Evaluation:
    row = Evaluation("ssnc-mv", "cora", "", "label propagation", 99.5, 3, 0.7, 0.6, nan, 1.5, "abc", "2026")
    return row._replace(**changes)  # type: ignore[arg-type]


def test_sweep_trains_evaluates_and_resumes(tmp_path):
    path = tmp_path / "missing.sqlite"
    # Two candidates of two cells, the second run of the selected ones, and one evaluation; then both runs of
    # the selected ones with the fallback.
    with Store(path) as store:
        assert MissingSweep([SMALL]).count_pending(store) == 4 + 2 + 1 + 4
        assert MissingSweep([SMALL]).reproduce(store, Running("cpu", workers=1, minutes=0)) == Outcome(0, 11)
        assert not path.exists()
        assert MissingSweep([SMALL]).reproduce(store, Running("cpu", workers=1)) == Outcome(11, 0)
        assert len(store) == 4 + 2
        result = MissingResults.read(store)
    before = path.read_bytes()
    chosen = result.index.chosen(SMALL, CELL)
    assert chosen is not None
    spec = chosen.best.spec
    assert result.index.runs(SMALL, CELL) == train(load("cora"), spec, [0, 1], "cpu")
    methods = [("", "label propagation", [0]), *((one, "SGC", [0, 1]) for one in SMALL.imputations)]
    assert result.evaluated.keys() == {
        (MissingCell("ssnc-mv", name, *method, 100), seed)
        for name in ("cora", "cora-reached")
        for *method, seeds in methods
        for seed in seeds
    }
    # The reached nodes have the labels of the trial: only the fallback differs.
    graph, trials = load("cora"), result.index.runs(SMALL, CELL)
    unreached = graph.test & ~reached(graph)
    for trial in trials:
        whole, part = (
            result.evaluated[CELL._replace(dataset=name), trial.seed].accuracy
            for name in ("cora", "cora-reached")
        )
        own, count = int(unreached.sum()), int(graph.test.sum())
        wrong = [round((trial.test_accuracy * count - right) / (count - own), 6) for right in range(own + 1)]
        assert part in wrong
        right = whole * count - part * (count - own)
        shares = graph.labels[unreached].bincount() / own
        assert any(right / own == pytest.approx(float(share), abs=1e-3) for share in shares)
    with Store(path) as store:
        assert MissingSweep([SMALL]).reproduce(store, Running("cpu", workers=1)) == Outcome(0, 0)
    assert path.read_bytes() == before


def test_fallback_waits_for_the_selected_candidate():
    one = replace(SMALL, imputations=("fp",))
    first, second = one.candidates(CELL, 0)
    searched = {first: [make_trial(0, 0.7)], second: [make_trial(0, 0.8)]}
    assert pending_fallbacks([one], MissingResults({first: [make_trial(0, 0.7)]})) == []
    pairs = [(second, 0), (second, 1)]
    assert pending_fallbacks([one], MissingResults(searched)) == [(one, CELL, pairs)]
    done = Evaluation(*CELL, 0, 0.7, 0.6, nan, 1.5, "abc", "2026")
    assert pending_fallbacks([one], MissingResults(searched, [done])) == [(one, CELL, pairs[1:])]


def test_fallback_uses_shares_of_unreachable_labeled_nodes():
    nodes = torch.arange(60)
    chain, train = torch.stack([nodes[:29], nodes[1:30]]), (nodes < 15) | ((nodes >= 30) & (nodes < 45))
    labels = (nodes >= 30).long()  # all isolated nodes, from 30 on, are of the second class
    graph = Graph.from_edges(chain, torch.eye(60), labels=labels, train=train, missing=~train)
    probabilities = torch.full((60, 2), 0.5)
    filled = with_fallback(graph, probabilities)
    assert torch.equal(
        filled[:45], probabilities[:45]
    )  # a label reaches the chain, and labeled nodes have one
    assert (filled[45:] == filled[45]).all()
    assert filled[45, 1] > 0.75
    assert torch.equal(
        with_fallback(graph.replace(missing=torch.zeros_like(train)), probabilities), probabilities
    )


def test_evaluations_are_ordered_by_run():
    protocols = [replace(SMALL, missing=(80, 40)), replace(SMALL, missing=(20,), evaluated=("fit",))]
    jobs = [
        (cell.missing_percent, seed) for _, cell, seed in pending_evaluations(protocols, MissingResults({}))
    ]
    assert jobs == [(80, 0), (40, 0), (20, 0), (80, 1), (40, 1), (20, 1)]


def test_first_run_selects_and_fingerprints_are_ignored():
    first, second = SMALL.candidates(CELL, 0)
    own = second.replace(dataset="cora@0123456789abcdef")

    def index(**trials: list[Trial]) -> ResultIndex:
        specs = {"first": first, "second": second, "own": own}
        return MissingResults({specs[name]: stored for name, stored in trials.items()}).index

    result = index(first=[make_trial(0, 0.7), make_trial(1, 0.9)], own=[make_trial(0, 0.8, 0.6)])
    assert [trial.test_accuracy for trial in result.runs(SMALL, CELL)] == [0.6]
    assert result.pending(SMALL, [CELL]) == [(second, 1)]
    assert index(first=[make_trial(0, 0.7)], second=[make_trial(0, nan)]).finalists(SMALL, CELL) == [0]
    assert index(first=[make_trial(0, 0.7)], second=[make_trial(0, 0.7)]).finalists(SMALL, CELL) == [0]
    assert index(first=[make_trial(0, 0.7)]).finalists(SMALL, CELL) is None


def test_single_candidate_requests_all_runs():
    alone = replace(SMALL, trained={"SGC": {"model": "SGC", "depth": 2}}, imputations=("zero",), runs=3)
    spec = Spec("cora", "SGC", 2, missing_rate=1)
    assert ResultIndex({}).pending(alone) == [(spec, seed) for seed in range(3)]


def test_evaluations_round_trip_through_the_store(tmp_path, raises):
    rows = [an_evaluation(seed=1, accuracy=0.123456), an_evaluation()]
    with Store(tmp_path / "s.sqlite") as store:
        assert read_evaluations(store) == []
        write_evaluations(store, rows)
        write_evaluations(store, [])
        assert repr(read_evaluations(store)) == repr(rows)
        write_evaluations(store, [rows[0]._replace(missing_percent=percent) for percent in (80, 80.0)])
        assert len(read_evaluations(store)) == len(rows) + 1  # 80 and 80.0 are one key
        store.write_records("missing", {"[1, 2]": ["x"]})
        with raises("file-damaged", value=store.path):
            read_evaluations(store)


@pytest.mark.parametrize("model", ["label propagation", "logistic regression", "Correct & Smooth"])
def test_methods_are_evaluated_on_masked_features(model):
    protocol = replace(SMALL, datasets=("csbm",), missing=(60,), evaluated=(model,))
    [cell] = protocol.evaluated_cells()
    [row] = evaluate(protocol, cell, 1)
    graph = load("csbm")
    graph = mask_features(graph, missing_vectors(graph, 0.6, seed=1))
    assert (row.cell, row.seed) == (cell, 1)
    if model != "Correct & Smooth":
        expected = NodeClassifier(model, simple=True, refit=False, random_state=1, device="cpu").fit(graph)
        assert row.accuracy == pytest.approx(expected.held_out_.accuracy, abs=1e-6)
        assert row.macro_f1 == pytest.approx(expected.held_out_.value("macro-f1"), abs=1e-6)
    else:
        counts = torch.bincount(graph.labels[graph.test])
        assert row.accuracy > float(counts.max() / counts.sum()) + 0.1


@pytest.mark.parametrize("model", [FSD_CAP, FSD_CAP_RELEASED])
def test_released_fsd_cap_uses_validation_labels(model, monkeypatch):
    monkeypatch.setitem(missing.FSD_CAP_GCN, "epochs", 5)
    protocol = replace(SMALL, datasets=("cora-small",), missing=(90,), evaluated=(model,), kind="nodes")
    graph = csbm(200, classes=3, seed=3).with_split("per-class-10-of-100@0")
    graph = graph.replace(features=graph.features.to_dense())
    monkeypatch.setattr(Protocol, "graph", lambda *_: graph)
    [cell] = protocol.evaluated_cells()
    [row] = evaluate(protocol, cell, 1)
    masked = mask_features(graph, missing_nodes(graph, 0.9, seed=1))
    spec = Spec(graph.name, **missing.FSD_CAP_GCN)
    probabilities = fsd_cap(masked, spec, 1, validation_labels=model == FSD_CAP_RELEASED)
    right = (probabilities.argmax(1) == graph.labels)[graph.test].float().mean()
    assert row.cell == cell == MissingCell("ssnc-mv", "cora-small", "fsd-cap", model, 90)
    assert row.accuracy == pytest.approx(float(right), abs=1e-6)


CANDIDATES = ("SGC alone", "label propagation", "boosted trees")
FIT_PROTOCOL = replace(SMALL, datasets=("small",), missing=(90,), evaluated=(*CANDIDATES, FIT), runs=1)


@pytest.fixture(scope="module")
def small() -> Iterator[Graph]:
    """The one graph of a protocol, on which `fit` takes seconds."""
    graph = csbm(200, classes=3, features=60, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "graph", lambda *_: graph)
        yield graph


@pytest.fixture(scope="module")
def rows(small: Graph) -> dict[MissingCell, Evaluation]:
    """What comes of `fit`, and of all that it tries."""
    *_, cell = FIT_PROTOCOL.evaluated_cells()
    return {row.cell: row for row in evaluate(FIT_PROTOCOL, cell, 0)}


def test_candidates_of_fit_equal_separate_evaluations(rows):
    *others, cell = FIT_PROTOCOL.evaluated_cells()
    assert pending_evaluations([FIT_PROTOCOL], MissingResults({})) == [(FIT_PROTOCOL, cell, 0)]
    assert pending_evaluations([FIT_PROTOCOL], MissingResults({}, [rows[cell]])) == [
        (FIT_PROTOCOL, other, 0) for other in others
    ]
    for other in others:
        [alone] = evaluate(FIT_PROTOCOL, other, 0)
        assert rows[other][6:9] == pytest.approx(alone[6:9], abs=2e-6)


def test_refitted_fit_is_a_separate_row(small, rows):
    result = {row.model: row.accuracy for row in rows.values()}
    assert result.keys() == {FIT, REFITTED, *CANDIDATES}
    classifier = NodeClassifier(device="cpu").fit(mask_features(small, missing_vectors(small, 0.9, seed=0)))
    assert result[FIT] == pytest.approx(classifier.held_out_.accuracy, abs=1e-6)
    test = small.test.numpy()
    predicted = classifier.probabilities_.argmax(1)[test]
    assert result[REFITTED] == pytest.approx((predicted == small.labels.numpy()[test]).mean(), abs=1e-6)


def test_sweep_needs_no_optional_library(tmp_path):
    """Bug: a function borrowed from ``classify`` brought pydantic, which the GPU machine has not."""
    blocked = ["typer", "rich", "pandas", "matplotlib", "pyarrow", "pydantic", "sklearn", "torch_geometric"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from pairnorm.cli import main
sys.argv = ["pairnorm", "reproduce", "missing", "--dataset", "cora", "--protocol", "ssnc-mv",
    "--missing", "100", "--model", "SGC", "--runs", "1", "--time-limit", "0",
    "--out", {str(tmp_path / "out")!r}]
sys.exit(main())
"""
    run_python("-c", program)
    assert (tmp_path / "out" / "missing.md").exists()
