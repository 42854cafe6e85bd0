import json
from dataclasses import replace

import pytest
import torch

from pairnorm.classify.candidates import KINDS, HopNetworks, PreparedGraph, ResidualGCNs, Task
from pairnorm.classify.candidates import residual as module
from pairnorm.classify.candidates.networks import HopNetwork, hop_features
from pairnorm.classify.candidates.task import CandidateResult, SavedState
from pairnorm.data import Graph

CPU = torch.device("cpu")
families = pytest.mark.parametrize("family", [ResidualGCNs, HopNetworks])


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_EPOCHS", 20)
    monkeypatch.setattr(module, "MAX_EPOCHS", 60)


@pytest.fixture(scope="module")
def parity() -> Task:
    """The class of a node is the parity of the ones among its neighbors, which no average of labels gives."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(2, (600, 1), generator=generator)
    ring = torch.arange(600)
    edges = torch.stack([ring, (ring + 1) % 600])
    labels = (bits.roll(1) ^ bits.roll(-1)).squeeze(1)
    graph = Graph.from_edges(edges, bits.float(), labels).with_split("per-class-150")
    return Task(graph, PreparedGraph(graph, graph.features - 0.5, CPU))


def folded(task: Task) -> Task:
    selection_nodes = task.graph.train | task.graph.validation
    part = torch.arange(task.graph.num_nodes) % 5
    return replace(task, fold_masks=[selection_nodes & (part == number) for number in range(5)])


def first(task: Task, family: type[ResidualGCNs] = ResidualGCNs, **settings: object) -> CandidateResult:
    return next(family(**settings).fit(task, lambda done: None))  # type: ignore[arg-type]


@families
def test_networks_learn_parity_of_neighbors(parity, family):
    steps: list[str] = []
    networks = family(((3, 16),))
    *_, result = networks.fit(parity, steps.append)
    assert len(steps) == networks.steps == 2
    assert result.candidate.validation_accuracy > 0.95
    assert result.candidate.name == f"{family.name}, depth 3"


def test_hop_networks_transform_each_hop_by_itself(task):
    """Against the formula, written for one model at a time."""
    features, hops, classes = task.features.to_dense(), 3, 2
    known = torch.nn.functional.one_hot(task.graph.labels, classes).float() * task.graph.train[:, None]
    model = HopNetwork(4 * 500 + 2, classes, hops, hidden_channels=8, num_models=2, adjacency="rw")
    inputs = hop_features(task.prepared, hops, "rw")
    model(torch.cat([inputs, known], 1), task.prepared.adjacency("rw"))  # sets the running statistics
    logits = model.eval()(torch.cat([inputs, known], 1), task.prepared.adjacency("rw"))
    loops = task.graph.adjacency.to_dense() + torch.eye(300)
    walk = loops / loops.sum(1, keepdim=True)

    def normalize(x: torch.Tensor, norm: torch.nn.Module, number: int) -> torch.Tensor:
        mean, variance, weight, bias = (
            getattr(norm, name)[number] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias)

    for number in range(2):
        hop, outputs = torch.cat([features, known], 1), []
        for linear in model.maps:
            outputs.append(hop @ linear.weight[number])
            hop = walk @ hop
        h = normalize(torch.cat(outputs, 1), model.norms[0], number).relu()
        h = normalize(h @ model.hidden.weight[number] + model.hidden.bias[number], model.norms[1], number)
        expected = h.relu() @ model.readout.weight[number] + model.readout.bias[number]
        torch.testing.assert_close(logits[:, number], expected)


def test_hop_features_are_imputed_and_propagated_once(task):
    missing = torch.arange(300) % 2 == 0
    prepared = task.prepared.masked(missing)
    hops = hop_features(prepared, 2, "rw")
    assert hop_features(prepared, 2, "rw") is hops
    own, once, twice = hops.split(500, 1)
    torch.testing.assert_close(own, prepared.imputed("fp", prepared.dense))
    assert own[missing].any(1).float().mean() > 0.9
    torch.testing.assert_close(once, prepared.adjacency("rw") @ own)
    torch.testing.assert_close(twice, prepared.adjacency("rw") @ once)


@families
@pytest.mark.parametrize("wide", [False, True])
def test_fitted_and_restored_networks_predict_as_evaluated(task, monkeypatch, wide, family):
    monkeypatch.setattr(module, "MAX_FEATURES", 1000 if wide else 16)
    result = first(task, family)
    fitted, validation = result.fit(task), task.graph.validation
    logits = fitted.logits(task.prepared)
    assert logits.shape == (300, module.NUM_NETWORKS, 2)
    torch.testing.assert_close(logits.softmax(-1).mean(1)[validation], result.probabilities)
    settings, tensors = fitted.state()
    saved = SavedState(result.candidate, json.loads(json.dumps(settings)), tensors, 500, 2)
    assert torch.equal(KINDS[family.name].restore(saved).logits(task.prepared), logits)
    for wrong in ({"classes": 3}, {"features": 499}, {"candidate": replace(result.candidate, depth=3)}):
        with pytest.raises((ValueError, LookupError, RuntimeError)):
            KINDS[family.name].restore(saved._replace(**wrong))


@families
def test_held_out_labels_do_not_change_fold_predictions(parity, family):
    task = folded(parity)
    held_out = task.fold_masks[0]
    graph = task.graph.replace(labels=task.graph.labels.where(~held_out, 1 - task.graph.labels))
    other = replace(task, graph=graph)
    results = [first(one, family, settings=((3, 16),)) for one in (task, other)]
    count = int(held_out.sum())
    assert torch.equal(results[0].probabilities[:count], results[1].probabilities[:count])
    fitted = [result.fit(one.folds[0]) for result, one in zip(results, (task, other), strict=True)]
    assert torch.equal(*(one.logits(task.prepared)[held_out] for one in fitted))
    assert fitted[0].logits(task.prepared).shape[1] == 1
    assert results[0].fit(task.with_all_folds).logits(task.prepared).shape[1] == module.NUM_NETWORKS


@families
def test_task_with_other_training_labels_trains_a_new_network(parity, family):
    result = first(parity, family, settings=((3, 16),))
    fewer = parity.graph.replace(train=parity.graph.train & (torch.arange(600) % 2 == 0))
    assert result.fit(replace(parity, graph=fewer)).logits(parity.prepared).shape[1] == 1


@families
def test_masked_features_do_not_change_predictions(task, monkeypatch, family):
    feature_mask = torch.arange(300) % 2 == 0
    masked = folded(replace(task, feature_mask=feature_mask))
    held_out = masked.fold_masks[0]
    features = torch.where((feature_mask & held_out)[:, None], 7.0, task.features.to_dense())
    other = replace(masked, prepared=PreparedGraph(task.graph, features, CPU))
    dense = replace(masked, prepared=PreparedGraph(task.graph, task.features.to_dense(), CPU))
    count = int(held_out.sum())
    monkeypatch.setattr(module, "MAX_FEATURES", 1000)  # principal axes depend on the features of all nodes
    one, two = (first(one, family, settings=((2, 8),)).probabilities[:count] for one in (dense, other))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("limit", "epochs"), [(1000.0, 20), (100.0, module.MIN_EPOCHS)])
def test_first_step_is_shortened_by_the_time_limit(parity, monkeypatch, limit, epochs):
    """The clock advances by a second whenever it is read, twice in an epoch."""
    clock, steps = [0.0], list[str]()

    def read_clock() -> float:
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr("pairnorm.classify.candidates.residual.time.perf_counter", read_clock)
    results = ResidualGCNs(((3, 16),)).fit(replace(parity, started=0.0, time_limit=limit), steps.append)
    next(results)
    next(results)
    assert steps == [f"residual GCN, depth 3, {epochs} epochs"]
