from dataclasses import replace

import pytest
import torch

from pairnorm.classify import ClassifierWarning
from pairnorm.classify.candidates import GNNFamily, PreparedGraph, Task
from pairnorm.train import Spec

CPU = torch.device("cpu")


def nothing(_: object) -> None:
    pass


@pytest.mark.parametrize("model", ["GCN", "GAT"])
@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_gnn_is_evaluated_on_scaled_features(small, task, model, layout):
    if layout == "dense":
        task = Task(small, PreparedGraph(small, 100 * task.features.to_dense(), CPU), "rw")
    spec = Spec("own", model, 2, norm="PN-SI", epochs=30)
    ((candidate, _, _, fit),) = GNNFamily([spec], [0, 1]).fit(task, nothing)
    logits = fit(task).logits(PreparedGraph(small, task.features, CPU))
    right = (logits.argmax(-1) == small.labels[:, None])[small.validation].double().mean()
    assert candidate.validation_accuracy == pytest.approx(float(right), abs=1e-6)
    assert candidate.name == f"{model}-PN-SI, depth 2, scale 1"


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_gnn_is_trained_on_scaled_features(small, model):
    """Divided by their sum, which large noise columns dominate, these features would be uninformative."""
    generator = torch.Generator().manual_seed(0)
    noise = 1e4 * torch.rand(small.num_nodes, 20, generator=generator)
    classes = torch.nn.functional.one_hot(small.labels).float()
    graph = small.replace(features=torch.cat([classes, noise], 1))
    scaled = Task(graph, PreparedGraph(graph, torch.cat([classes, 0 * noise], 1), CPU), "rw")
    ((candidate, *_),) = GNNFamily([Spec("own", model, 2, epochs=60)], [0, 1]).fit(scaled, nothing)
    assert candidate.validation_accuracy > 0.95


@pytest.mark.parametrize(("required", "trained"), [(True, [2]), (False, [])])
def test_expired_time_limit_trains_at_most_one_network_and_warns(task, required, trained):
    specs, messages = [Spec("own", "GCN", depth, epochs=5) for depth in (2, 3)], []
    task = replace(task, time_limit=0.0)
    family = GNNFamily(specs, [0], required=required, cross_fit=True)
    with pytest.warns(
        ClassifierWarning, match=rf"time limit of 0 s was reached when {2 - len(trained)} of 2 networks"
    ):
        result = [candidate.depth for candidate, *_ in family.fit(task, messages.append)]
    assert result == trained
    assert len(messages) == family.steps == 2


def test_fold_is_predicted_by_networks_without_its_labels(task):
    selection_nodes = task.graph.train | task.graph.validation
    folded = replace(
        task, fold_masks=[selection_nodes & (torch.arange(300) % 3 == number) for number in range(3)]
    )
    family = GNNFamily([Spec("own", "GCN", 2, epochs=10)], range(3), cross_fit=True)
    (result,) = family.fit(folded, nothing)
    start = 0
    for fold in folded.folds:
        logits = result.fit(fold).logits(fold.prepared)
        held_out = logits[fold.graph.validation].softmax(-1).mean(1)
        torch.testing.assert_close(held_out, result.probabilities[start : start + len(held_out)])
        start += len(held_out)
    assert result.fit(folded.with_all_folds).logits(task.prepared).shape[1] == 3
