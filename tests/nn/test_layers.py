import pytest
import torch

from pairnorm.nn import SparseMatrix
from pairnorm.nn import sparse as features
from pairnorm.nn.layers import GATConvolution, GCNConvolution, Propagation
from pairnorm.nn.ops.dropout import draw_keys, dropout, keep_mask
from pairnorm.nn.propagate import normalized_adjacency


def initialized(layer):
    for parameter in layer.parameters():
        parameter.data = torch.randn_like(parameter) / 2
    return layer


LAYERS = {
    "GCN": lambda trials: GCNConvolution(6, 4, trials),
    "GAT": lambda trials: GATConvolution(6, 4, trials),
    "GAT, heads": lambda trials: GATConvolution(6, 4, trials, heads=3),
    "GAT, mean of heads": lambda trials: GATConvolution(6, 4, trials, heads=3, concat=False),
}
layers = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS.keys())


@layers
@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("sparse", [False, True])
def test_convolutions_equal_pyg(
    build, trials, sparse, edge_index, peer_of, assert_gradients_equal, either_form
):
    layer = initialized(build(trials))
    x = torch.randn(20, 6) * (torch.rand(20, 6) < 0.4)
    features = SparseMatrix.from_torch(x) if sparse else x.unsqueeze(1)
    y = layer(features, normalized_adjacency(edge_index, "sym", 20))
    peers = [peer_of(layer, trial) for trial in range(trials)]
    expected = torch.stack([other(x, edge_index) for other in peers], 1)
    torch.testing.assert_close(y, expected)
    grad = torch.randn_like(y)
    y.backward(grad)
    expected.backward(grad)
    assert_gradients_equal(layer, peers)


@layers
def test_features_of_a_model_reach_that_model_only(build, adjacency):
    layer, x = initialized(build(3)), torch.randn(20, 3, 6)
    before = layer(x, adjacency)
    x[:, 1] += 1
    changed = (layer(x, adjacency) != before).any(-1).any(0)
    assert changed.tolist() == [False, True, False]


@layers
@pytest.mark.parametrize("per_trial", [False, True])
def test_sparse_features_equal_dense(build, per_trial, adjacency):
    layer = initialized(build(2))
    x = torch.randn(20, 2, 6) * (torch.rand(20, 1, 6) < 0.4)
    x = x if per_trial else x[:, :1]
    sparse = SparseMatrix.from_torch(x[:, 0])
    row, column = sparse.pattern.row.long(), sparse.pattern.column.long()
    values = x[row, :, column].T if per_trial else x[row, 0, column]
    torch.testing.assert_close(layer(SparseMatrix(sparse.pattern, values), adjacency), layer(x, adjacency))


def test_dropout_of_dense_features(adjacency, either_form):
    layer, x, keys = initialized(GCNConvolution(6, 4, 2)), torch.randn(20, 1, 6), draw_keys(2, 2)
    expected = layer(dropout(x.expand(-1, 2, -1), 0.5, keys[0]), adjacency)
    torch.testing.assert_close(layer(x, adjacency, 0.5, keys), expected)


def test_dropout_of_sparse_features_hashes_stored_entries(adjacency, monkeypatch):
    layer, keys = initialized(GCNConvolution(6, 4, 3)), draw_keys(2, 3)
    x = SparseMatrix.from_torch(torch.randn(20, 6) * (torch.rand(20, 6) < 0.3))
    drawn = []
    monkeypatch.setattr(
        features,
        "dropout",
        lambda values, rate, keys: drawn.append(values.numel()) or dropout(values, rate, keys),
    )
    y = layer(x, adjacency, 0.5, keys)
    assert drawn == [3 * x.pattern.num_entries]
    mask = keep_mask(keys[0], 1, x.pattern.num_entries, 0.5)[0]
    torch.testing.assert_close(y, layer(SparseMatrix(x.pattern, x.values * mask / 0.5), adjacency))


def test_heads_drop_attention_independently(adjacency):
    layer, x = initialized(GATConvolution(6, 4, 1, heads=2)), torch.randn(20, 1, 6)
    layer.weight.data[..., 4:] = layer.weight.data[..., :4]
    layer.bias.data[..., 4:] = layer.bias.data[..., :4]
    for end in (layer.source, layer.target):
        end.data[:, 1] = end.data[:, 0]
    first, second = layer(x, adjacency).split(4, -1)
    torch.testing.assert_close(first, second)
    keys = torch.tensor([[1], [2]], dtype=torch.int32)
    first, second = layer(x, adjacency, 0.5, keys).split(4, -1)
    assert not torch.isclose(first, second).all()


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("elu", torch.nn.functional.elu)])
@layers
def test_activation_is_applied_last(build, activation, function, adjacency):
    layer, x = initialized(build(2)), torch.randn(20, 1, 6)
    plain = layer(x, adjacency)
    layer.activation = activation
    torch.testing.assert_close(layer(x, adjacency), function(plain))


def test_attention_ignores_the_weights_of_the_adjacency(adjacency):
    layer, x = initialized(GATConvolution(6, 4, 1)), torch.randn(20, 1, 6)
    other = SparseMatrix(adjacency.pattern, torch.rand_like(adjacency.values))
    assert torch.equal(layer(x, adjacency), layer(x, other))


def test_directed_edges_carry_from_source_to_target():
    adjacency = normalized_adjacency(torch.tensor([[0], [1]]), num_nodes=3)
    for layer in (GCNConvolution(2, 2, 1), GATConvolution(2, 2, 1)):
        x = torch.randn(3, 1, 2, requires_grad=True)
        initialized(layer)(x, adjacency)[1].sum().backward()
        assert x.grad.flatten(1).any(1).tolist() == [True, True, False]


def test_propagation_equals_the_product(adjacency):
    x = torch.randn(20, 2, 3)
    torch.testing.assert_close(
        Propagation()(x, adjacency), torch.einsum("ij,jtf->itf", adjacency.to_dense(), x)
    )


def test_repr():
    assert repr(GCNConvolution(6, 4, 3, "relu")) == "GCNConvolution(6, 4, num_models=3, activation='relu')"
