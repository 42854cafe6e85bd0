from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch_geometric.nn import GATConv, GCNConv, SGConv

from pairnorm import nn
from pairnorm.data import (
    Graph,
    csbm,
)
from pairnorm.nn import pair_norm
from pairnorm.nn.ops.dropout import dropout as drop
from pairnorm.nn.ops.dropout import keys_from_seeds, step_keys
from pairnorm.train import Spec, build, train
from pairnorm.train.trainers import Fitted, GNNTrainer, SGCTrainer

CPU = torch.device("cpu")


def spec_of(model: str, depth: int, **options: Any) -> Spec:
    return Spec("csbm", model, depth, **{"epochs": 30, "dropout": 0, "hidden": 16} | options)


def farthest(left: Any, right: Any) -> float:
    return float((torch.as_tensor(left) - torch.as_tensor(right)).abs().max())


class PlainFit(NamedTuple):
    """Training loss and validation accuracy of every epoch, and the logits of the best one."""

    losses: list[float]
    accuracies: list[float]
    logits: Tensor


def train_plain(
    graph: Graph, spec: Spec, model: torch.nn.Module, logits: Callable[[int | None], Tensor]
) -> PlainFit:
    """Train one model the way one writes it with PyG; ``logits`` of an epoch, or None for evaluation."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=spec.learning_rate, weight_decay=spec.weight_decay, foreach=False
    )
    losses, accuracies, best, kept = [], [], -1.0, torch.empty(0)
    for epoch in range(spec.epochs):
        model.train()
        optimizer.zero_grad()
        loss = cross_entropy(logits(epoch)[graph.train], graph.labels[graph.train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            now = logits(None)
        right = now[graph.validation].argmax(-1) == graph.labels[graph.validation]
        losses.append(loss.item())
        accuracies.append(float(right.float().mean()))
        if accuracies[-1] > best:
            best, kept = accuracies[-1], now
    return PlainFit(losses, accuracies, kept)


class Plain(torch.nn.Module):
    """GCN or GAT of PyG's convolutions without dropout, with the initial weights of a trial."""

    def __init__(self, graph: Graph, spec: Spec, seed: int) -> None:
        super().__init__()
        self.spec, self.edges, self.weights = spec, graph.adjacency.to_dense().nonzero().t(), ()
        self.act = torch.relu if spec.model == "GCN" else torch.nn.functional.elu
        widths = [graph.num_features, *[spec.hidden] * (spec.depth - 1), graph.num_classes]
        self.layers = torch.nn.ModuleList()
        ours = build(spec, graph.num_features, graph.num_classes, [seed], CPU)
        for layer, (width, out) in enumerate(pairwise(widths)):
            last = layer == spec.depth - 1
            if spec.model == "GAT":
                heads = 1 if last else spec.heads
                plain = GATConv(width, out // heads, heads=spec.heads, concat=not last)
            else:
                plain = GCNConv(width, out, normalize=spec.adjacency == "sym")
            self.layers.append(plain)
            with torch.no_grad():
                plain.lin.weight.copy_(ours.convolutions[layer].weight[0].t())
                plain.bias.copy_(ours.convolutions[layer].bias[0])
                if spec.model == "GAT":
                    plain.att_src.copy_(ours.convolutions[layer].source)
                    plain.att_dst.copy_(ours.convolutions[layer].target)
        if spec.model == "GCN" and spec.adjacency == "rw":  # which GCNConv has no option for
            loops = torch.arange(graph.num_nodes).expand(2, -1)
            self.edges = torch.cat([self.edges, loops], 1)
            degree = torch.bincount(self.edges[1], minlength=graph.num_nodes)
            self.weights = (1 / degree[self.edges[1]].float(),)

    def norm(self, h: Tensor) -> Tensor:
        if self.spec.norm == "none":
            return h
        centered = h - h.mean(0)
        if self.spec.norm == "PN":
            return self.spec.scale * centered / (centered.square().sum(1).mean() + 1e-6).sqrt()
        if self.spec.norm == "PN-SI":
            return self.spec.scale * centered / (centered.square().sum(1, keepdim=True) + 1e-6).sqrt()
        return self.spec.scale * h / (h.square().sum(1, keepdim=True) + 1e-6).sqrt() - h.mean(0)

    def forward(self, h: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for convolution in self.layers[:-1]:
            h = convolution(h, self.edges, *self.weights)
            h = self.norm(self.act(h)) if self.spec.order == "after" else self.act(self.norm(h))
            if self.spec.skip and len(outputs) >= self.spec.skip:
                h = h + outputs[-self.spec.skip]
            outputs.append(h)
        return self.layers[-1](h, self.edges, *self.weights)


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
def test_training_equals_pyg_loop(graph: Graph, features: Callable[..., Tensor], spec: Spec) -> None:
    seeds, num_equal = range(4), 0
    for trial in train(graph, spec, seeds, "cpu", curves=True):
        model = Plain(graph, spec, trial.seed)
        x = features(graph, spec, trial.seed)
        plain = train_plain(graph, spec, model, lambda _, model=model, x=x: model(x))
        losses, accuracies = trial.curves["train_loss"], trial.curves["validation_accuracy"]
        assert len(losses) == len(accuracies) == 30
        assert farthest(losses[:5], plain.losses[:5]) < 1e-5
        assert farthest(losses, plain.losses) < 0.02
        assert farthest(accuracies, plain.accuracies) < 0.1
        if farthest(losses, plain.losses) < 1e-5 and farthest(accuracies, plain.accuracies) == 0:
            num_equal += 1
            assert trial.best_epoch == plain.accuracies.index(max(plain.accuracies)) + 1
            for part in ("train", "validation", "test"):
                nodes = getattr(graph, part)
                logits, labels = plain.logits[nodes], graph.labels[nodes]
                loss = torch.nn.functional.cross_entropy(logits, labels)
                right = (logits.argmax(1) == labels).double().mean()
                assert getattr(trial, f"{part}_loss") == pytest.approx(float(loss), abs=1e-4)
                assert getattr(trial, f"{part}_accuracy") == pytest.approx(float(right), abs=1e-6)
    # Rounding that takes a unit over the kink of ReLU sets a trial off its path by a little: PyG in
    # float32 leaves that of PyG in float64 as often.
    assert num_equal >= 2


@pytest.mark.parametrize("model", ["GCN", "GAT"])
def test_best_weights_give_the_metrics_of_best_epoch(graph: Graph, model: str) -> None:
    spec = spec_of(model, 3, norm="PN-SI", dropout=0.6, learning_rate=0.02)
    run = GNNTrainer(graph, [(spec, seed) for seed in range(3)], CPU, curves=True)
    run.fit()
    curves = torch.stack(run.loop.curves)  # [epochs, 2, trials]
    hidden, logits = run.evaluate()
    validation = run.problem.scores(logits, "validation")
    for number in range(3):
        accuracies = curves[:, 1, number].tolist()
        best = int(run.loop.best_epoch[number])
        assert best == accuracies.index(max(accuracies))  # the first of the best
        assert float(validation[number]) == accuracies[best]
    assert int(run.loop.best_epoch.min()) < 29, "only last epochs are kept, which would be so anyway"
    for number, seed in enumerate(range(3)):  # trained no longer than to its best epoch, a trial is the same
        until = spec.replace(epochs=int(run.loop.best_epoch[number]) + 1)
        alone = GNNTrainer(graph, [(until, seed)], CPU)
        alone.loop.train(until.epochs)
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
def test_initial_weights_depend_on_own_seed_only(model: str) -> None:
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


def test_build_follows_the_spec(raises) -> None:
    spec = Spec(
        "cora", "GAT", 4, hidden=8, heads=2, norm="PN-SI", scale=3, order="before", skip=2, dropout=0.3
    )
    model = build(spec, 12, 4, [0, 1], CPU)
    assert (model.num_layers, model.skip, model.order, model.dropout, model.num_models) == (
        4,
        2,
        "before",
        0.3,
        2,
    )
    assert model.norm is not None
    assert (model.norm.mode, model.norm.scale) == ("PN-SI", 3.0)
    assert [tuple(layer.weight.shape) for layer in model.convolutions] == [
        (2, 12, 8),
        (2, 8, 8),
        (2, 8, 8),
        (2, 8, 8),
    ]
    assert build(spec.replace(norm="none"), 12, 4, [0], CPU).norm is None
    with raises("unknown-choice", value="SGC"):
        build(Spec("cora", "SGC", 4), 12, 4, [0], CPU)


DEPTHS, SCALES, SEEDS = (1, 2, 6), (0.1, 1.0, 10.0), (4, 9)


def fit(graph: Graph, spec: Spec, scales: tuple[float, ...] = SCALES) -> dict[int, Fitted]:
    variants = [[(spec.replace(scale=scale), seed) for scale in scales] for seed in SEEDS]
    run = SGCTrainer(graph, variants, DEPTHS, CPU, curves=True)
    # One loop supports all depths: it is copied as each leaves it.
    return {fitted.depth: replace(fitted, loop=deepcopy(fitted.loop)) for fitted in run.fit_depths()}


def curves_of(fitted: Fitted, trial: int, scale: int) -> Tensor:
    assert fitted.loop.curves is not None
    return torch.stack(fitted.loop.curves)[:, :, trial, scale]


def check(fitted: Fitted, trial: int, scale: int, plain: PlainFit) -> None:
    ours, accuracies = curves_of(fitted, trial, scale), torch.tensor(plain.accuracies)
    torch.testing.assert_close(ours[:, 0], torch.tensor(plain.losses), rtol=1e-3, atol=1e-4)
    # A node between two classes may fall to either side by rounding.
    assert (ours[:, 1] - accuracies).abs().max() < 0.04
    if torch.equal(ours[:, 1], accuracies):
        assert int(fitted.loop.best_epoch[trial, scale]) == int(accuracies.argmax())
        torch.testing.assert_close(fitted.logits[:, trial, scale], plain.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.6])
@pytest.mark.parametrize(
    ("norm", "missing_rate", "adjacency"), [("PN", 0, "rw"), ("PN", 1, "rw"), ("PN-SI", 0.5, "sym")]
)
def test_shared_propagation_equals_separate_models(
    graph: Graph,
    features: Callable[..., Tensor],
    norm: str,
    missing_rate: float,
    adjacency: str,
    dropout: float,
) -> None:
    spec = Spec(
        "csbm",
        "SGC",
        1,
        norm=norm,
        missing_rate=missing_rate,
        adjacency=adjacency,
        dropout=dropout,
        epochs=50,
    )
    results = fit(graph, spec)
    assert list(results) == list(DEPTHS)
    for trial, seed in enumerate(SEEDS):
        x = features(graph, spec, seed)
        keys = keys_from_seeds([seed])
        for depth in DEPTHS:
            for number, scale in enumerate(SCALES):
                model = nn.SGC(x.size(1), graph.num_classes, depth, norm, scale, 0.0, adjacency)
                model.reset_parameters([seed])
                with torch.no_grad():
                    hidden = model.hidden(x, graph.adjacency)
                # Up to eps, which weighs more in the short rows of a small scale.
                torch.testing.assert_close(
                    hidden[:, 0] / scale,
                    results[depth].state.expand(-1, len(SEEDS), -1)[:, trial],
                    rtol=5e-3,
                    atol=1e-4,
                )

                def logits(
                    epoch: int | None, model: nn.SGC = model, hidden: Tensor = hidden, keys: Tensor = keys
                ) -> Tensor:
                    rows = hidden
                    if epoch is not None and dropout:
                        # The engine draws masks for the training rows alone.
                        rows = torch.zeros_like(hidden)
                        key = step_keys(keys, torch.tensor(epoch), 1)[0]
                        rows[graph.train] = drop(hidden[graph.train], dropout, key)
                    return linear(rows[:, 0], model.weight[0].t(), model.bias[0])

                check(results[depth], trial, number, train_plain(graph, spec, model, logits))


def test_sgc_training_equals_pyg_loop_that_propagates_every_epoch(
    graph: Graph, features: Callable[..., Tensor]
) -> None:
    """PyG's own SGConv, which has no norm, and its symmetric adjacency."""
    spec = Spec("csbm", "SGC", 1, adjacency="sym", dropout=0, epochs=50, missing_rate=0.5)
    results = fit(graph, spec, (1.0,))
    edges = graph.adjacency.to_dense().nonzero().t()
    for trial, seed in enumerate(SEEDS):
        x = features(graph, spec, seed)
        for depth in DEPTHS:
            model = SGConv(x.size(1), graph.num_classes, K=depth)
            start = nn.SGC(x.size(1), graph.num_classes, depth)
            start.reset_parameters([seed])
            with torch.no_grad():
                model.lin.weight.copy_(start.weight[0].t())
                model.lin.bias.zero_()
            plain = train_plain(graph, spec, model, lambda _, model=model, x=x: model(x, edges))
            check(results[depth], trial, 0, plain)


def test_pn_scs_is_propagated_with_its_scale(graph: Graph) -> None:
    spec = Spec("csbm", "SGC", 1, norm="PN-SCS", scale=5, epochs=3, dropout=0)
    run = SGCTrainer(graph, [[(spec, 0)]], [3], CPU)
    [fitted] = run.fit_depths()
    x = graph.features.to_dense()
    x = x / x.sum(1, keepdim=True)
    looped = graph.adjacency.to_dense() + torch.eye(graph.num_nodes)
    h = pair_norm(x, 5.0, "PN-SCS")
    for _ in range(3):
        h = pair_norm(looped @ h / looped.sum(1, keepdim=True), 5.0, "PN-SCS")
    torch.testing.assert_close(fitted.state[:, 0], h, rtol=1e-4, atol=1e-5)
    assert fitted.factors.tolist() == [[1.0]]


def test_propagation_is_computed_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    products = 0
    original = nn.SparseMatrix.__matmul__

    def count(matrix: nn.SparseMatrix, dense: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return original(matrix, dense)

    monkeypatch.setattr(nn.SparseMatrix, "__matmul__", count)
    fit(graph, Spec("csbm", "SGC", 1, norm="PN", epochs=5))
    assert products == max(DEPTHS)


def test_dense_equals_sparse_features() -> None:
    graph = csbm(150, classes=3, features=40, seed=2)
    dense = graph.replace(features=graph.features.to_dense())
    for rate in (0.0, 0.7):
        spec = Spec("csbm", "SGC", 1, norm="PN", epochs=20, missing_rate=rate)
        ours, theirs = fit(graph, spec), fit(dense, spec)
        for depth in DEPTHS:
            torch.testing.assert_close(ours[depth].logits, theirs[depth].logits, rtol=1e-4, atol=1e-5)


def test_training_resumes_from_checkpoint(graph: Graph, tmp_path: Path) -> None:
    trials = [(Spec("csbm", "GCN", 3, norm="PN-SI", hidden=8, epochs=60), seed) for seed in range(2)]
    whole, interrupted, resumed = (GNNTrainer(graph, trials, CPU) for _ in range(3))
    whole.fit()
    ticks: list[int] = []

    def stop(epochs: int) -> None:
        ticks.append(epochs)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(stop, tmp_path / "training.pt")
    ticks.clear()
    resumed.fit(ticks.append, tmp_path / "training.pt")
    assert sum(ticks) == 60 - 50
    for one, other in zip(resumed.evaluate(), whole.evaluate(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
