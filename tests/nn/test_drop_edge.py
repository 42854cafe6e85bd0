import torch

from pairnorm.nn import GCN, SparseMatrix, drop_edges, normalized_adjacency
from pairnorm.nn.ops.dropout import draw_keys

NODES, FEATURES, CLASSES = 20, 6, 3


def ring(nodes):
    here = torch.arange(nodes)
    steps = torch.cat([torch.stack([here, (here + step) % nodes]) for step in range(1, 6)], 1)
    return torch.cat([steps, steps.flip(0)], 1)


def test_rows_average_over_remaining_edges(adjacency, either_form):
    dropped = drop_edges(adjacency, 0.5, draw_keys(3))
    dense, whole = dropped.to_dense(), adjacency.to_dense()
    for trial in dense:
        kept = (trial > 0) * whole
        torch.testing.assert_close(trial, kept / kept.sum(1, keepdim=True))
        assert (trial.diagonal() > 0).all()
        assert ((trial > 0) <= (whole > 0)).all()


def test_drop_rate_and_keys(either_form):
    adjacency = normalized_adjacency(ring(2000))
    keys = draw_keys(2)
    dropped = drop_edges(adjacency, 0.3, keys)
    loops = adjacency.pattern.row == adjacency.pattern.column
    shares = (dropped.values[:, ~loops] == 0).float().mean(1)
    assert ((shares - 0.3).abs() < 4 * (0.21 / 20_000) ** 0.5).all()
    assert not torch.equal(dropped.values[0], dropped.values[1])
    again = drop_edges(adjacency, 0.3, keys.flip(0))
    torch.testing.assert_close(again.values, dropped.values.flip(0))


def test_edges_are_dropped_in_training_only(edge_index):
    x = torch.randn(NODES, FEATURES)
    plain, model = (GCN(FEATURES, CLASSES, num_layers=3, dropout=0.0, drop_edge=rate) for rate in (0.0, 0.5))
    model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(model.eval()(x, edge_index), plain.eval()(x, edge_index))
    keys = draw_keys(3, 2, 1)
    adjacency = drop_edges(model.normalized_adjacency(edge_index, NODES), 0.5, keys[0, 1])
    shared = SparseMatrix(adjacency.pattern, adjacency.values[0])
    torch.testing.assert_close(model.train()(x, edge_index, keys), plain.eval()(x, shared))


def test_stacked_models_equal_single_models(edge_index, either_form):
    x, seeds, settings = (
        torch.randn(NODES, FEATURES),
        (3, 5),
        {"num_layers": 3, "dropout": 0.4, "drop_edge": 0.5},
    )
    together = GCN(FEATURES, CLASSES, num_models=2, **settings)
    together.reset_parameters(seeds)
    keys = draw_keys(3, 2, 2)
    logits = together(x, edge_index, keys)
    logits.square().sum().backward()
    for trial, seed in enumerate(seeds):
        alone = GCN(FEATURES, CLASSES, num_models=1, **settings)
        alone.reset_parameters([seed])
        expected = alone(x, edge_index, keys[:, :, trial : trial + 1].contiguous())
        torch.testing.assert_close(logits[:, trial], expected[:, 0])
        expected.square().sum().backward()
        for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad[trial], theirs.grad[0], rtol=1e-4, atol=1e-5)


def test_unsupported_matrices_raise(adjacency, raises):
    with raises("unknown-choice", value="sym"):
        GCN(FEATURES, CLASSES, adjacency="sym", drop_edge=0.5)
    with raises("wrong-shape"):
        drop_edges(drop_edges(adjacency, 0.5, draw_keys(2)), 0.5, draw_keys(2))
