import gc
import math
import weakref
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pairnorm import measure
from pairnorm.data import Graph, csbm, features_after, given_missing
from pairnorm.nn import pair_norm
from pairnorm.train import Spec, Trial, engine, fit, train
from pairnorm.train.engine import Job, Pair, find_device, plan, train_job
from pairnorm.train.loop import Loop
from pairnorm.train.problem import Problem, aucs
from pairnorm.train.trainers import GNNTrainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NORM = {"norm": "PN-SI", "epochs": 15}
OPTIMIZERS = {"learning_rate": (0.005, 0.2), "weight_decay": (0.0, 5e-2)}
METRICS = [f"{part}_{what}" for part in ("train", "validation", "test") for what in ("loss", "accuracy")]


ROUNDING = 1e-6
"""Absolute error of a loss in float32: it is a difference of numbers of about ten."""


def train_whole(graph: Graph, job: Job, device: torch.device, **options: Any) -> dict[Pair, Trial]:
    """Train a job and return all its trials."""
    parts = train_job(graph, job, device, **options)
    return {pair: trial for part in parts for pair, trial in part.items()}


def agree(left: Trial, right: Trial, tolerance: float = 1e-4) -> bool:
    """Return whether two trials are equal up to rounding."""
    names = [*METRICS, "best_epoch"]
    same = [
        math.isclose(getattr(left, name), getattr(right, name), rel_tol=tolerance, abs_tol=ROUNDING)
        for name in names
    ]
    return left.seed == right.seed and left.diverged == right.diverged and all(same)


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_training_is_reproducible(graph: Graph, model: str) -> None:
    spec = Spec("csbm", model, 3, missing_rate=0.5, **NORM)
    first = train(graph, spec, range(3), "cpu", measures=["row_diff"], curves=True)
    torch.manual_seed(1)  # the state of torch's generator has no effect
    assert train(graph, spec, range(3), "cpu", measures=["row_diff"], curves=True) == first
    assert len({trial.test_loss for trial in first}) == 3


@pytest.mark.parametrize("call", [train, fit])
@pytest.mark.parametrize("seeds", [3, "3"])
def test_single_number_as_seeds_raises(
    raises: Any, graph: Graph, call: Callable[..., Any], seeds: Any
) -> None:
    with raises("wrong-type", "seeds is", value=seeds):
        call(graph, Spec("csbm", "SGC", 2), seeds, "cpu")


@pytest.mark.parametrize("call", [train, fit])
def test_names_instead_of_graph_or_spec_raise(raises: Any, graph: Graph, call: Callable[..., Any]) -> None:
    spec = Spec("csbm", "SGC", 2)
    with raises("wrong-type", "graph is a str", value="str"):
        call("cora", spec, [0], "cpu")
    with raises("wrong-type", "spec is 'SGC'", value="SGC"):
        call(graph, "SGC", [0], "cpu")


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_order_of_seeds_changes_only_order_of_trials(graph: Graph, model: str) -> None:
    spec = Spec("csbm", model, 3, missing_rate=0.5, **NORM)
    ahead, back = train(graph, spec, [1, 2, 3], "cpu"), train(graph, spec, [3, 2, 1, 3], "cpu")
    assert [trial.seed for trial in back] == [3, 2, 1, 3]
    assert all(agree(*pair) for pair in zip(ahead, back[2::-1], strict=True))
    assert back[0] == back[3]
    assert train(graph, spec, [], "cpu") == []


def check_alone(graph: Graph, pairs: Iterable[Pair], **options: Any) -> None:
    """Check that trials of one job equal trials that train separately."""
    pairs = list(pairs)
    options = {"curves": True, "measures": ["row_diff"]} | options
    together = train_whole(graph, Job(tuple(pairs)), CPU, **options)
    assert set(together) == set(pairs)
    for pair in pairs:
        alone = train_whole(graph, Job((pair,)), CPU, **options)[pair]
        assert agree(together[pair], alone)
        assert together[pair].measures == pytest.approx(dict(alone.measures), rel=1e-4)
        for name, curve in (alone.curves or {}).items():
            assert together[pair].curves[name] == pytest.approx(curve, abs=1e-5)
    assert len({trial.test_loss for trial in together.values()}) == len(pairs)


@pytest.mark.parametrize(
    ("settings", "varied"),
    [
        *((Spec("csbm", model, 3, dropout=rate, **NORM), {"missing_rate": (0, 0.5, 1)})
          for model in ("SGC", "GCN", "GAT") for rate in (0.0, 0.6)),
        *((Spec("csbm", "GCN", 2, missing_kind=kind, missing_rate=0.5, **NORM), {"missing_rate": (0.7, 0.2)})
          for kind in ("nodes", "entries")),
        *((Spec("csbm", model, 2, missing_rate=0.5, imputation=name, epochs=8), {"missing_rate": (0.5, 0.8)})
          for model in ("SGC", "GCN") for name in ("mask", "fp")),
        *((Spec("csbm", "SGC", 1, norm=norm, scale=5, dropout=rate, epochs=9), OPTIMIZERS | {"depth": (1, 3)})
          for norm, rate in (("PN", 0.6), ("PN", 0.0), ("PN-SCS", 0.6))),
        (Spec("csbm", "SGC", 1, norm="PN", epochs=5), {"depth": (1, 3), "scale": (0.1, 1, 10)}),
        (Spec("csbm", "GCN", 3, **NORM), OPTIMIZERS),
    ],
    ids=str,
)  # fmt: skip
def test_trial_is_independent_of_its_job(graph: Graph, settings: Spec, varied: dict[str, Any]) -> None:
    specs = [
        settings.replace(**dict(zip(varied, values, strict=True))) for values in product(*varied.values())
    ]
    pairs = [(spec, seed) for spec in specs for seed in (2, 8)]
    check_alone(graph, [*pairs[:-3], *pairs[-2:]])  # one pair of the grid is not requested


def test_best_epoch_is_first_of_the_best_counted_from_one(graph: Graph) -> None:
    for trial in train(graph, Spec("csbm", "GCN", 3, **NORM), range(4), "cpu", curves=True):
        assert trial.curves is not None
        accuracies = list(trial.curves["validation_accuracy"])
        assert trial.best_epoch == accuracies.index(max(accuracies)) + 1
        assert trial.validation_accuracy == pytest.approx(max(accuracies))
        assert set(trial.curves) == {"train_loss", "validation_accuracy"}
        assert len(accuracies) == len(trial.curves["train_loss"]) == 15
    assert train(graph, Spec("csbm", "GCN", 3, **NORM), [0], "cpu")[0].curves is None


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_measures_use_last_hidden_state_of_best_epoch(graph: Graph, model: str) -> None:
    spec = Spec("csbm", model, 3, missing_rate=0.5, **NORM)
    trainer = GNNTrainer(graph, [(spec, seed) for seed in (5, 6)], CPU)
    trainer.fit()
    hidden, _ = trainer.evaluate()
    assert hidden.shape == (graph.num_nodes, 2, spec.hidden)
    torch.testing.assert_close(hidden.norm(dim=-1), torch.ones(graph.num_nodes, 2), rtol=1e-2, atol=1e-2)
    trials = train(graph, spec, [5, 6], "cpu", measures=list(engine.MEASURES))
    for number, trial in enumerate(trials):
        for name, (function, _) in engine.MEASURES.items():
            assert function is getattr(measure, name)
            assert trial.measures[name] == pytest.approx(float(function(hidden[:, number])), rel=1e-4)
        assert trial.measures["row_diff"] == pytest.approx(mean_distance(hidden[:, number]), rel=1e-4)


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.0, 0.5), (1.0, 1.0)])
def test_sgc_measures_differ_by_features_of_trial(graph: Graph, rates: tuple[float, float]) -> None:
    spec = Spec("csbm", "SGC", 2, norm="PN", epochs=1)
    pairs = [
        (spec.replace(scale=scale, missing_rate=rate), seed)
        for seed, rate in enumerate(rates)
        for scale in (0.1, 10.0)
    ]
    check_alone(graph, pairs, measures=list(engine.MEASURES))


def mean_distance(rows: Tensor) -> float:
    return float(torch.cdist(rows.double(), rows.double()).mean())


def test_sgc_measures_use_propagated_features(graph: Graph, features: Callable[..., Tensor]) -> None:
    specs = [
        Spec("csbm", "SGC", depth, norm="PN", scale=scale, epochs=3) for depth in (1, 4) for scale in (1, 10)
    ]
    trials = train_whole(graph, Job(tuple((spec, 2) for spec in specs)), CPU, measures=["row_diff", "tpsd"])
    looped = graph.adjacency.to_dense() + torch.eye(graph.num_nodes)
    for (spec, seed), trial in trials.items():
        h = pair_norm(features(graph, spec, seed), spec.scale)
        for _ in range(spec.depth):
            h = pair_norm(looped @ h / looped.sum(1, keepdim=True), spec.scale)
        assert trial.measures["row_diff"] == pytest.approx(mean_distance(h), rel=1e-3)
        # PairNorm's promise: 2 n² s².
        assert trial.measures["tpsd"] == pytest.approx(2 * graph.num_nodes**2 * spec.scale**2, rel=1e-3)


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_diverged_trial_is_marked_and_others_are_unchanged(
    graph: Graph, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec("csbm", model, 3, **NORM)
    expected = train(graph, spec, [1, 2, 3], "cpu")
    from pairnorm.nn import models
    from pairnorm.train import trainers as sgc

    draw = models.glorot

    def infinite_glorot(shape: Any, generator: torch.Generator | None = None) -> Tensor:
        weight = draw(shape, generator)
        return weight * torch.inf if generator is not None and generator.initial_seed() == 2 else weight

    monkeypatch.setattr(models, "glorot", infinite_glorot)
    monkeypatch.setattr(sgc, "glorot", infinite_glorot)
    job = Job(tuple((spec, seed) for seed in (1, 2, 3)))
    trials = list(train_whole(graph, job, CPU, measures=["row_diff"], curves=True).values())
    assert [trial.diverged for trial in trials] == [False, True, False]
    for before, now in zip(expected, trials, strict=True):
        if not now.diverged:
            assert agree(before, now)
            assert math.isfinite(now.measures["row_diff"])


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_huge_learning_rate_is_marked_as_diverged(graph: Graph, model: str) -> None:
    for epochs in (1, 2, 5):  # also if the last step diverges
        diverging = Spec("csbm", model, 2, learning_rate=1e38, epochs=epochs)
        assert all(trial.diverged for trial in train(graph, diverging, range(2), "cpu"))
    converging = diverging.replace(learning_rate=0.01)
    assert not any(trial.diverged for trial in train(graph, converging, range(2), "cpu"))


@pytest.mark.parametrize("model", ["SGC", "GCN"])
def test_out_of_memory_halves_the_job(graph: Graph, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("csbm", model, 2, **NORM)
    job = Job(tuple((spec, seed) for seed in range(5)))
    whole = train_whole(graph, job, CPU)
    original, sizes = engine._train, []

    def tight(graph: Graph, job: Job, *rest: Any) -> Any:
        sizes.append(len(job.trials))
        if len(job.trials) > 2:
            raise torch.cuda.OutOfMemoryError("simulated")
        return original(graph, job, *rest)

    monkeypatch.setattr(engine, "_train", tight)
    ticks: list[int] = []
    parts = train_whole(graph, job, CPU, tick=ticks.append)
    assert sorted(sizes) == [1, 2, 2, 3, 5]
    assert set(parts) == set(whole)
    assert all(agree(parts[pair], whole[pair]) for pair in whole)
    assert sum(ticks) == job.cost


def test_out_of_memory_trains_only_pending_trials_again(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [Spec("csbm", "SGC", depth, epochs=5) for depth in (1, 2, 3)]
    job = Job(tuple((spec, seed) for spec in specs for seed in range(2)))
    whole, original = train_whole(graph, job, CPU), engine._train

    def tight(graph: Graph, job: Job, *rest: Any) -> Any:
        parts = original(graph, job, *rest)
        yield next(parts)
        if len(job.trials) > 1:
            raise torch.cuda.OutOfMemoryError("simulated")
        yield from parts

    monkeypatch.setattr(engine, "_train", tight)
    parts = list(train_job(graph, job, CPU))
    trials = {pair: trial for part in parts for pair, trial in part.items()}
    assert sum(map(len, parts)) == len(trials) == len(whole)
    assert all(agree(trials[pair], whole[pair]) for pair in whole)


def test_out_of_memory_with_single_trial_raises(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("simulated")

    monkeypatch.setattr(engine, "_train", full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        train_whole(graph, Job(((Spec("csbm", "GCN", 2), 0),)), CPU)


@pytest.mark.parametrize("epochs", [3, 60])
def test_ticks_sum_to_cost_of_job(graph: Graph, epochs: int) -> None:
    specs = [Spec("csbm", "GCN", depth, epochs=epochs) for depth in (2, 5)]
    specs += [
        Spec("csbm", "SGC", depth, norm="PN", scale=s, epochs=epochs) for depth in (1, 3) for s in (1, 5)
    ]
    for job in plan(graph, [(spec, seed) for spec in specs for seed in range(3)], CPU):
        ticks: list[int] = []
        train_whole(graph, job, CPU, tick=ticks.append)
        assert sum(ticks) == job.cost
        assert min(ticks) >= 0


@pytest.mark.parametrize(
    "spec", [Spec("csbm", "SGC", 4, norm="PN", scale=10, epochs=30), Spec("csbm", "GAT", 2, **NORM)]
)
def test_fit_returns_the_evaluated_models(graph: Graph, spec: Spec) -> None:
    model = fit(graph, spec, [3, 5], "cpu")
    problem = Problem.of(graph, [(spec, 3), (spec, 5)], CPU)
    with torch.no_grad():
        metrics = problem.metrics(model(problem.features, problem.adjacency))
    for number, trial in enumerate(train(graph, spec, [3, 5], "cpu")):
        for name in METRICS:
            assert math.isclose(metrics[name][number], getattr(trial, name), rel_tol=1e-4)


@pytest.mark.parametrize("model", ["GCN", "SGC"])
def test_validation_auc_selects_epoch(model: str) -> None:
    graph = csbm(400, classes=2, features=20, signal=0.1)
    spec = Spec("csbm", model, 2, epochs=30, metric="auc")
    (trial,) = train(graph, spec, [0], "cpu", curves=True)
    assert trial.curves is not None
    curve = trial.curves["validation_auc"]
    assert trial.best_epoch == curve.index(max(curve)) + 1
    assert trial.measures["validation_auc"] == pytest.approx(max(curve))
    assert 0.5 < trial.measures["test_auc"] < 1
    model_ = fit(graph, spec, [0], "cpu")
    logits = model_(features_after(graph, given_missing(graph), "rows").dense().squeeze(1), graph.adjacency)
    expected = aucs(logits[graph.test].movedim(0, -1), graph.labels[graph.test])
    assert trial.measures["test_auc"] == pytest.approx(float(expected))


def test_unknown_names_raise(raises: Any, graph: Graph) -> None:
    job = Job(((Spec("csbm", "GCN", 2), 0),))
    with raises("unknown-choice", value="blur"):
        train_whole(graph, job, CPU, measures=["blur"])
    for seed in (-1, 2**64, 0.5):
        with raises("not-a-whole-number", value=seed):
            train(graph, Spec("csbm", "SGC", 2), [seed], CPU)
        with raises("not-a-whole-number", value=seed):
            fit(graph, Spec("csbm", "SGC", 2), [seed], CPU)
    for name in ("gpu", "meta", "cuda:99", "mps" if not torch.backends.mps.is_available() else "xpu"):
        with raises("unknown-device", value=name):
            find_device(name)
    assert find_device("cpu") == CPU
    if torch.cuda.is_available():
        assert find_device().type == "cuda"
    else:
        assert find_device() == CPU
        with raises("unknown-device", value="cuda"):
            find_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestCuda:
    @pytest.mark.parametrize("dropout", [0.0, 0.6])
    @pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
    def test_cuda_equals_cpu(self, graph: Graph, model: str, dropout: float) -> None:
        spec = Spec("csbm", model, 3, missing_rate=0.5, dropout=dropout, **NORM | {"epochs": 30})
        here = train(graph, spec, range(4), "cpu", curves=True)
        there = train(graph, spec, range(4), "cuda", curves=True)
        assert train(graph, spec, range(4), "cuda", curves=True) == there
        num_equal = 0
        for ours, theirs in zip(here, there, strict=True):
            losses = torch.tensor([ours.curves["train_loss"], theirs.curves["train_loss"]])
            assert (losses[0] - losses[1]).abs().max() < 0.1
            num_equal += bool((losses[0] - losses[1]).abs().max() < 1e-4)
        assert num_equal >= 2

    @pytest.mark.parametrize("epochs", [3, 30])
    def test_replays_at_other_depths_equal_separate_runs(self, graph: Graph, epochs: int) -> None:
        specs = [
            Spec("csbm", "SGC", depth, norm="PN", missing_rate=0.5, epochs=epochs) for depth in (1, 2, 6)
        ]
        pairs = [(spec, seed) for spec in specs for seed in range(2)]
        together = train_whole(graph, Job(tuple(pairs)), CUDA, curves=True)
        for spec in specs:
            alone = train_whole(graph, Job(((spec, 0), (spec, 1))), CUDA, curves=True)
            assert alone == {pair: together[pair] for pair in alone}

    @pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
    def test_optimizers_share_captured_epochs(self, graph: Graph, model: str) -> None:
        specs = [
            Spec(
                "csbm",
                model,
                depth,
                norm="PN",
                dropout=0.6,
                learning_rate=rate,
                weight_decay=decay,
                epochs=40,
            )
            for depth in ((1, 4) if model == "SGC" else (2,))
            for rate in (0.005, 0.05)
            for decay in (0.0, 5e-2)
        ]
        pairs = [(spec, seed) for spec in specs for seed in range(2)]
        (job,) = plan(graph, pairs, CUDA)
        together = train_whole(graph, job, CUDA, curves=True)
        for pair in pairs:
            alone = train_whole(graph, Job((pair,)), CUDA, curves=True)[pair]
            assert together[pair].curves["train_loss"] == pytest.approx(alone.curves["train_loss"], abs=1e-3)

    @pytest.mark.parametrize("epochs", [1, 3, 4, 60])
    def test_captured_epochs_are_recorded_and_counted(self, graph: Graph, epochs: int) -> None:
        job = Job(tuple((Spec("csbm", "GCN", 2, epochs=epochs), seed) for seed in range(3)))
        ticks: list[int] = []
        trials = train_whole(graph, job, CUDA, curves=True, tick=ticks.append)
        assert sum(ticks) == job.cost
        assert all(len(trial.curves["train_loss"]) == epochs for trial in trials.values())


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_finished_job_leaves_no_garbage(graph: Graph, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured epoch holds on the device goes with it, and not amid another job's capture."""
    loops: list[weakref.ref[Loop]] = []
    begin = Loop.__init__

    def init(loop: Loop, *arguments: Any, **options: Any) -> None:
        begin(loop, *arguments, **options)
        loops.append(weakref.ref(loop))

    spec = Spec("csbm", model, 3, norm="PN-SI", epochs=2)
    train(graph, spec, [0], "cpu")  # the first time, kernels are compiled, and that leaves something
    monkeypatch.setattr(Loop, "__init__", init)
    gc.disable()
    try:
        train(graph, spec, [0], "cpu")
        assert [loop() for loop in loops] == [None]
    finally:
        gc.enable()
