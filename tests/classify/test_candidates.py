import pytest
import torch

from pairnorm.classify import Scaling
from pairnorm.classify import candidates as module
from pairnorm.classify.candidates import (
    Candidate,
    Task,
    check_size,
    compute_logits,
    gnn_candidate,
    sgc_candidates,
)
from pairnorm.data import Graph
from pairnorm.errors import PairNormError
from pairnorm.train import Spec

CPU = torch.device("cpu")
SCALES = (1.0, 10.0)


def task(graph: Graph, adjacency: str = "rw") -> Task:
    return Task(graph, Scaling.of(graph)(graph), adjacency, CPU)


def nothing(_: object) -> None:
    pass


def accuracy(network: torch.nn.Module, on: Task) -> float:
    """Of the validation nodes, from the network alone."""
    predicted = compute_logits(network, on.graph, on.features, CPU)[:, 0].argmax(1)
    return float((predicted == on.graph.labels)[on.graph.validation].double().mean())


@pytest.mark.parametrize("norm", ["none", "PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("adjacency", ["rw", "sym"])
def test_a_candidates_network_is_as_good_as_it_says(small: Graph, norm: str, adjacency: str) -> None:
    on = task(small, adjacency)
    found = list(sgc_candidates(on, norm, (1, 4), SCALES, nothing))
    tried = {(candidate.depth, candidate.scale) for candidate, _ in found}
    assert tried == {(depth, scale) for depth in (1, 4) for scale in SCALES}
    for candidate, build in found:
        network = build()
        assert network.depth == candidate.depth
        assert accuracy(network, on) == pytest.approx(candidate.validation_accuracy, abs=1e-6)


def test_missing_vectors_change_the_coordinates_but_not_the_answer(blanked_cora: Graph, monkeypatch) -> None:
    on = task(blanked_cora)
    ((reduced, build),) = sgc_candidates(on, "PN", (5,), (10.0,), nothing)
    monkeypatch.setattr(module, "span", lambda features: (None, features))
    ((full, build_full),) = sgc_candidates(on, "PN", (5,), (10.0,), nothing)
    assert reduced.validation_accuracy == pytest.approx(full.validation_accuracy, abs=0.005)
    difference = compute_logits(build(), blanked_cora, on.features, CPU) - compute_logits(
        build_full(), blanked_cora, on.features, CPU
    )
    assert difference.abs().max() < 0.01


def test_depth_pays_with_pair_norm_where_vectors_are_missing(blanked_cora: Graph) -> None:
    best = {}
    for norm in ("none", "PN"):
        found = [
            candidate
            for candidate, _ in sgc_candidates(task(blanked_cora), norm, (2, 30), (30.0, 100.0), nothing)
        ]
        for depth in (2, 30):
            best[norm, depth] = max(one.validation_accuracy for one in found if one.depth == depth)
    assert best["PN", 30] > best["PN", 2] + 0.1
    assert best["PN", 30] > best["none", 30] + 0.1


@pytest.mark.parametrize("model", ["GCN", "GAT"])
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_a_gnn_is_judged_on_scaled_features(small: Graph, model: str, layout: str) -> None:
    on = task(small)
    if layout == "dense":
        on = Task(small, 100 * on.features.to_dense(), "rw", CPU)
    spec = Spec("own", model, 2, norm="PN-SI", epochs=30)
    ((candidate, build),) = gnn_candidate(on, spec, [0, 1], nothing)
    network = build()
    logits = network(on.features, network.propagation(small.adjacency))
    right = (logits.argmax(-1) == small.labels[:, None])[small.validation].double().mean()
    assert candidate.validation_accuracy == pytest.approx(float(right), abs=1e-6)
    assert candidate.name == f"{model}-PN-SI, depth 2, scale 1"


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_a_gnn_is_trained_on_scaled_features(small: Graph, model: str) -> None:
    """Divided by their sum, which large columns of noise decide, these features would tell nothing."""
    generator = torch.Generator().manual_seed(0)
    noise = 1e4 * torch.rand(small.num_nodes, 20, generator=generator)
    classes = torch.nn.functional.one_hot(small.labels).float()
    graph = small.replace(features=torch.cat([classes, noise], 1))
    scaled = Task(graph, torch.cat([classes, 0 * noise], 1), "rw", CPU)
    ((candidate, _),) = gnn_candidate(scaled, Spec("own", model, 2, epochs=60), [0, 1], nothing)
    assert candidate.validation_accuracy > 0.95


def test_accuracy_decides_then_pair_norm_then_loss() -> None:
    best = Candidate("SGC", "none", 2, 1.0, 0.9, 0.1)
    assert Candidate("SGC", "PN", 2, 1.0, 0.9, 0.5).rank > best.rank
    assert Candidate("SGC", "none", 2, 1.0, 0.9, 0.05).rank > best.rank
    assert Candidate("SGC", "PN", 2, 1.0, 0.8, 0.01).rank < best.rank


def test_features_too_large_to_propagate_are_refused(small: Graph, monkeypatch) -> None:
    monkeypatch.setattr(module, "LARGEST_STATE", 1000)
    with pytest.raises(PairNormError, match=r"500 features of 300 nodes.*Keep fewer columns"):
        check_size(small)
