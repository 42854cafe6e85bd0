from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.train import Spec, build, train
from pairnorm.train.gnn import GNNRun

CPU = torch.device("cpu")


def spec_of(model: str, depth: int, **options: Any) -> Spec:
    return Spec("csbm", model, depth, **{"epochs": 50, "dropout": 0, "hidden": 16} | options)


def farthest(left: Any, right: Any) -> float:
    return float((torch.as_tensor(left) - torch.as_tensor(right)).abs().max())


@pytest.mark.parametrize(
    "spec",
    [
        spec_of("GCN", 1),
        spec_of("GCN", 2),
        spec_of("GCN", 4, skip=1),
        spec_of("GCN", 3, adjacency="sym", weight_decay=0, learning_rate=0.02),
        spec_of("GCN", 5, norm="PN", scale=5, skip=2),
        spec_of("GCN", 5, norm="PN-SI"),
        spec_of("GCN", 4, norm="PN-SI", order="before", skip=3),
        spec_of("GCN", 4, norm="PN-SCS"),
        spec_of("GCN", 5, norm="PN-SI", missing_rate=1),
        spec_of("GAT", 2),
        spec_of("GAT", 3, skip=1),
        spec_of("GAT", 4, norm="PN-SI", heads=2),
        spec_of("GAT", 4, norm="PN", skip=2, heads=4, missing_rate=0.5),
        spec_of("GAT", 4, norm="PN-SI", missing_rate=1),
    ],
    ids=str,
)
def test_training_equals_a_plain_pyg_loop(
    graph: Graph, plain_fit: Callable[[Graph, Spec, int], Any], spec: Spec
) -> None:
    seeds, alike = range(4), 0
    for trial in train(graph, spec, seeds, "cpu", curves=True):
        plain = plain_fit(graph, spec, trial.seed)
        losses, accuracies = trial.curves["train_loss"], trial.curves["validation_accuracy"]
        assert len(losses) == len(accuracies) == 50
        assert farthest(losses[:5], plain.losses[:5]) < 1e-5
        assert farthest(losses, plain.losses) < 0.02
        assert farthest(accuracies, plain.accuracies) < 0.1
        if farthest(losses, plain.losses) < 1e-5 and farthest(accuracies, plain.accuracies) == 0:
            alike += 1
            assert trial.best_epoch == plain.best_epoch
            for part in ("train", "validation", "test"):
                nodes = getattr(graph, part)
                logits, labels = plain.logits[nodes], graph.labels[nodes]
                loss = torch.nn.functional.cross_entropy(logits, labels)
                right = (logits.argmax(1) == labels).double().mean()
                assert getattr(trial, f"{part}_loss") == pytest.approx(float(loss), abs=1e-4)
                assert getattr(trial, f"{part}_accuracy") == pytest.approx(float(right), abs=1e-6)
    # Rounding that takes a unit over the kink of ReLU sets a trial off its path by a little: PyG in
    # float32 leaves that of PyG in float64 as often.
    assert alike >= 2


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_kept_weights_give_the_metrics_of_the_best_epoch(graph: Graph, model: str) -> None:
    spec = spec_of(model, 3, norm="PN-SI", dropout=0.6, learning_rate=0.02)
    run = GNNRun(graph, [(spec, seed) for seed in range(3)], CPU, curves=True)
    run.run(lambda epochs: None)
    curves = torch.stack(run.loop.curves)  # [epochs, 2, trials]
    hidden, logits = run.evaluate()
    validation = run.problem.accuracies(logits, "validation")
    for number in range(3):
        accuracies = curves[:, 1, number].tolist()
        best = int(run.loop.best_epoch[number])
        assert best == accuracies.index(max(accuracies))  # the first of the best
        assert float(validation[number]) == accuracies[best]
    assert int(run.loop.best_epoch.min()) < 49, "only last epochs are kept, which would be so anyway"
    for number, seed in enumerate(range(3)):  # trained no longer than to its best epoch, a trial is the same
        until = spec.replace(epochs=int(run.loop.best_epoch[number]) + 1)
        alone = GNNRun(graph, [(until, seed)], CPU)
        alone.loop.run(until.epochs)
        for kept, last in zip(run.model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(kept[number], last[0], rtol=1e-4, atol=1e-5)
    single = build(spec, graph.num_features, graph.num_classes, [0], CPU).eval()
    single.load_state_dict({name: value[:1] for name, value in run.model.state_dict().items()})
    alone_hidden, alone_logits = single.hidden_and_logits(graph_features(graph), run.problem.adjacency)
    torch.testing.assert_close(hidden[:, :1], alone_hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits[:, :1], alone_logits, rtol=1e-4, atol=1e-5)


def graph_features(graph: Graph) -> Tensor:
    x = graph.features.to_dense()
    return x / x.sum(1, keepdim=True)


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_initial_weights_depend_on_the_own_seed_alone(model: str) -> None:
    spec = Spec("cora", model, 3, hidden=8)
    together = build(spec, 12, 4, [7, 3, 5], CPU)
    alone = build(spec, 12, 4, [3], CPU)
    torch.manual_seed(99)
    other = build(spec, 12, 4, [4], CPU)
    for three, one, another in zip(
        together.parameters(), alone.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(three[1], one[0])
        if three.dim() > 2:  # biases are all zero
            assert not torch.equal(another[0], one[0])


def test_build_follows_the_spec() -> None:
    spec = Spec(
        "cora", "GAT", 4, hidden=8, heads=2, norm="PN-SI", scale=3, order="before", skip=2, dropout=0.3
    )
    model = build(spec, 12, 4, [0, 1], CPU)
    assert (model.depth, model.skip, model.order, model.dropout, model.trials) == (4, 2, "before", 0.3, 2)
    assert model.norm is not None
    assert (model.norm.mode, model.norm.scale) == ("PN-SI", 3.0)
    assert [tuple(layer.weight.shape) for layer in model.convolutions] == [
        (2, 12, 8),
        (2, 8, 8),
        (2, 8, 8),
        (2, 8, 8),
    ]
    assert build(spec.replace(norm="none"), 12, 4, [0], CPU).norm is None
