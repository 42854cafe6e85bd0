from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch_geometric.nn import SGConv

from pairnorm import nn
from pairnorm.data import Graph, csbm
from pairnorm.nn import pair_norm
from pairnorm.nn.dropout import dropout as drop
from pairnorm.nn.dropout import keys_from_seeds, step_keys
from pairnorm.train import Spec
from pairnorm.train.sgc import Fitted, SGCRun

CPU = torch.device("cpu")
DEPTHS, SCALES, SEEDS = (1, 2, 6), (0.1, 1.0, 10.0), (4, 9)


def fit(graph: Graph, spec: Spec, scales: tuple[float, ...] = SCALES) -> dict[int, Fitted]:
    run = SGCRun(graph, [(spec, seed) for seed in SEEDS], DEPTHS, scales, CPU, curves=True)
    # One loop serves all depths: it is copied as each leaves it.
    return {
        fitted.depth: replace(fitted, loop=deepcopy(fitted.loop)) for fitted in run.run(lambda epochs: None)
    }


def curves_of(fitted: Fitted, trial: int, scale: int) -> Tensor:
    assert fitted.loop.curves is not None
    return torch.stack(fitted.loop.curves)[:, :, trial, scale]


def train_one(
    graph: Graph, spec: Spec, model: torch.nn.Module, logits: Callable[[int | None], Tensor]
) -> tuple[Tensor, Tensor]:
    """Train one model the plain way: its curves ``[epochs, 2]``, and its logits at the best epoch."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=spec.learning_rate, weight_decay=spec.weight_decay, foreach=False
    )
    rows, best, kept = [], -1.0, torch.empty(0)
    for epoch in range(spec.epochs):
        model.train()
        optimizer.zero_grad()
        loss = cross_entropy(logits(epoch)[graph.train], graph.labels[graph.train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            now = logits(None)
        right = now[graph.validation].argmax(1) == graph.labels[graph.validation]
        rows.append([loss.item(), right.float().mean().item()])
        if rows[-1][1] > best:
            best, kept = rows[-1][1], now
    return torch.tensor(rows), kept


def check(fitted: Fitted, trial: int, scale: int, curves: Tensor, logits: Tensor) -> None:
    ours = curves_of(fitted, trial, scale)
    torch.testing.assert_close(ours[:, 0], curves[:, 0], rtol=1e-3, atol=1e-4)
    # A node between two classes may fall to either side by rounding.
    assert (ours[:, 1] - curves[:, 1]).abs().max() < 0.04
    if torch.equal(ours[:, 1], curves[:, 1]):
        assert int(fitted.loop.best_epoch[trial, scale]) == int(curves[:, 1].argmax())
        torch.testing.assert_close(fitted.logits[:, trial, scale], logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.6])
@pytest.mark.parametrize(
    ("norm", "missing_rate", "adjacency"), [("PN", 0, "rw"), ("PN", 1, "rw"), ("PN-SI", 0.5, "sym")]
)
def test_one_propagation_equals_models_trained_one_by_one(
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

                check(results[depth], trial, number, *train_one(graph, spec, model, logits))


def test_training_equals_a_plain_pyg_loop_that_propagates_every_epoch(
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
            curves, logits = train_one(graph, spec, model, lambda _, model=model, x=x: model(x, edges))
            check(results[depth], trial, 0, curves, logits)


def test_pn_scs_does_not_commute_with_its_scale_and_is_propagated_with_it(graph: Graph) -> None:
    spec = Spec("csbm", "SGC", 1, norm="PN-SCS", epochs=3, dropout=0)
    run = SGCRun(graph, [(spec, 0)], [3], [5.0], CPU)
    [fitted] = run.run(lambda epochs: None)
    x = graph.features.to_dense()
    x = x / x.sum(1, keepdim=True)
    looped = graph.adjacency.to_dense() + torch.eye(graph.num_nodes)
    h = pair_norm(x, 5.0, "PN-SCS")
    for _ in range(3):
        h = pair_norm(looped @ h / looped.sum(1, keepdim=True), 5.0, "PN-SCS")
    torch.testing.assert_close(fitted.state[:, 0], h, rtol=1e-4, atol=1e-5)
    assert run.factors == [1.0]


def test_the_propagation_is_done_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    products = 0
    original = nn.SparseMatrix.__matmul__

    def count(matrix: nn.SparseMatrix, dense: Tensor) -> Tensor:
        nonlocal products
        products += 1
        return original(matrix, dense)

    monkeypatch.setattr(nn.SparseMatrix, "__matmul__", count)
    fit(graph, Spec("csbm", "SGC", 1, norm="PN", epochs=5))
    assert products == max(DEPTHS)


def test_dense_features_give_what_sparse_ones_do() -> None:
    graph = csbm(150, classes=3, features=40, seed=2)
    dense = graph.replace(features=graph.features.to_dense())
    for rate in (0.0, 0.7):
        spec = Spec("csbm", "SGC", 1, norm="PN", epochs=20, missing_rate=rate)
        ours, theirs = fit(graph, spec), fit(dense, spec)
        for depth in DEPTHS:
            torch.testing.assert_close(ours[depth].logits, theirs[depth].logits, rtol=1e-4, atol=1e-5)
