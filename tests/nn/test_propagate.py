from itertools import islice

import pytest
import torch
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from pairnorm.nn import SGC, PairNorm, SparseMatrix, normalized_adjacency, sgc_iterates
from pairnorm.nn.ops import sparse_product as pattern
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.propagate import propagate_with_restart

graphs = pytest.mark.parametrize(
    "name", ["undirected", "directed", "weighted", "self-loops", "isolated nodes", "no edge"]
)
kinds = pytest.mark.parametrize("kind", ["rw", "sym"])


def adjacency(name, nodes=12):
    """Row i holds what node i receives from."""
    dense = (torch.rand(nodes, nodes) < 0.25).float()
    if name not in ("directed", "self-loops"):
        dense = torch.triu(dense, 1)
        dense = dense + dense.T
    if name == "weighted":
        dense = dense * torch.rand(nodes, nodes)
    if name == "self-loops":
        dense.diagonal().copy_(torch.arange(nodes) % 3)  # none, of weight 1, of weight 2
    else:
        dense.fill_diagonal_(0)
    if name == "isolated nodes":
        dense[-3:], dense[:, -3:] = 0, 0
    return torch.zeros(nodes, nodes) if name == "no edge" else dense


@graphs
def test_sym_equals_peer(name):
    dense = adjacency(name)
    edges = dense.T.nonzero().T  # PyG's run from source to target
    (source, target), weight = gcn_norm(edges, dense.T[*edges], len(dense))
    expected = torch.zeros_like(dense).index_put((target, source), weight)
    torch.testing.assert_close(normalized_adjacency(dense.to_sparse_csr(), "sym").to_dense(), expected)


@graphs
def test_rw_averages_over_node_and_senders(name):
    dense = adjacency(name)
    looped = dense + torch.diag((dense.diagonal() == 0).float())
    matrix = normalized_adjacency(dense.to_sparse_csr(), "rw")
    torch.testing.assert_close(matrix.to_dense(), looped / looped.sum(1, keepdim=True))
    torch.testing.assert_close(matrix @ torch.ones(12, 1), torch.ones(12, 1))


@kinds
def test_all_forms_of_a_graph_agree(kind):
    dense = adjacency("directed")
    expected = normalized_adjacency(dense.to_sparse_csr(), kind).to_dense()
    for form in (
        dense.to_sparse_coo(),
        dense.to_sparse_csc(),
        dense.bool().to_sparse_csr(),
        SparseMatrix.from_torch(dense),
        dense.T.nonzero().T,
        dense.T.nonzero().T.int(),
        dense.T.nonzero().T.flip(1),
    ):
        torch.testing.assert_close(normalized_adjacency(form, kind, 12).to_dense(), expected)


@kinds
def test_isolated_nodes_keep_their_state(kind):
    matrix = normalized_adjacency(torch.tensor([[0, 1], [1, 0]]), kind, num_nodes=4)
    x = torch.randn(4, 3)
    assert torch.equal((matrix @ x)[2:], x[2:])
    assert normalized_adjacency(torch.tensor([[0, 1], [1, 0]]), kind).pattern.shape == (2, 2)


@kinds
def test_empty_graphs_are_accepted(kind):
    none = torch.zeros(2, 0, dtype=torch.long)
    assert torch.equal(normalized_adjacency(none, kind, 3).to_dense(), torch.eye(3))
    assert normalized_adjacency(none, kind).pattern.shape == (0, 0)


def test_parallel_edges_are_summed():
    matrix = normalized_adjacency(torch.tensor([[0, 0, 1], [1, 1, 0]]))
    torch.testing.assert_close(matrix.to_dense(), torch.tensor([[1 / 2, 1 / 2], [2 / 3, 1 / 3]]))


def test_columns_are_sorted_within_rows():
    pattern = normalized_adjacency(torch.randint(0, 20, (2, 60))).pattern
    assert (pattern.row.diff() >= 0).all()
    assert (pattern.column.diff()[pattern.row.diff() == 0] > 0).all()


def test_rw_converges_to_degree_weighted_mean():
    dense = adjacency("undirected")
    dense[0, 1:], dense[1:, 0] = 1, 1  # connected
    matrix, x = normalized_adjacency(dense.to_sparse_csr()), torch.randn(12, 2)
    degree = dense.sum(1) + 1
    for _ in range(200):
        x, mean = matrix @ x, (degree @ x) / degree.sum()
    torch.testing.assert_close(x, mean.expand_as(x), atol=1e-5, rtol=0)


@kinds
def test_dense_matrix_equals_sparse(kind):
    dense = adjacency("directed")
    torch.testing.assert_close(
        normalized_adjacency(dense, kind).to_dense(),
        normalized_adjacency(dense.to_sparse_csr(), kind).to_dense(),
    )


class TestStates:
    @pytest.mark.parametrize("norm", [None, PairNorm(2.0), PairNorm(2.0, "PN-SCS")])
    def test_iterates_differ_by_one_step(self, norm):
        matrix, x = normalized_adjacency(adjacency("directed")), torch.randn(12, 3, 4)
        expected = x if norm is None else norm(x)
        for state in islice(sgc_iterates(x, matrix, norm), 5):
            torch.testing.assert_close(state, expected)
            expected = matrix.to_dense() @ expected.flatten(1)
            expected = expected.view(12, 3, 4) if norm is None else norm(expected.view(12, 3, 4))

    @pytest.mark.parametrize("trials", [None, 3])
    def test_sparse_features_equal_dense(self, trials):
        matrix, x = normalized_adjacency(adjacency("directed")), SparseMatrix.from_torch(torch.eye(12)[:, :4])
        if trials:
            x = SparseMatrix(x.pattern, torch.randn(trials, x.pattern.num_entries))
        dense = x.to_dense().view(trials or 1, 12, 4).transpose(0, 1)
        for ours, expected in islice(
            zip(sgc_iterates(x, matrix), sgc_iterates(dense, matrix), strict=False), 3
        ):
            torch.testing.assert_close(ours, expected)

    def test_hidden_state_of_an_sgc(self, edge_index):
        model, x = SGC(4, 2, num_layers=3, norm="PN", scale=5.0), torch.randn(20, 4)
        walk = sgc_iterates(x, normalized_adjacency(edge_index, num_nodes=20), model.norm)
        torch.testing.assert_close(model.hidden(x, edge_index)[:, 0], next(islice(walk, 3, None)))


def test_restart_converges_to_the_solution_for_every_alpha():
    """Against a dense solution of Z = α P Z + (1 - α) Z₀, and clamped against its own steps."""
    matrix, start = normalized_adjacency(adjacency("directed")), torch.randn(12, 4)
    dense, alphas = matrix.to_dense().double(), [0.1, 0.5, 0.8]
    actual = propagate_with_restart(matrix, start, alphas, 100)
    for alpha, state in zip(alphas, actual.unbind(1), strict=True):
        solved = torch.linalg.solve(torch.eye(12) - alpha * dense, (1 - alpha) * start.double())
        torch.testing.assert_close(state.double(), solved, rtol=1e-4, atol=1e-5)
    state = start
    for _ in range(3):
        state = (0.5 * dense.float() @ state + 0.5 * start).clamp(-0.2, 0.3)
    torch.testing.assert_close(propagate_with_restart(matrix, start, [0.5], 3, (-0.2, 0.3))[:, 0], state)


class TestErrors:
    def test_unknown_normalization_raises(self, raises):
        with raises("unknown-choice", value="row"):
            normalized_adjacency(torch.tensor([[0], [1]]), "row")

    @pytest.mark.parametrize(
        "adjacency",
        [
            torch.ones(2, 3).to_sparse_csr(),
            torch.ones(3, 3, dtype=torch.long),
            torch.ones(2, 3),
            torch.zeros(4, dtype=torch.long),
        ],
    )
    def test_invalid_adjacency_raises(self, adjacency, raises):
        with raises("wrong-shape", value=list(adjacency.shape)):
            normalized_adjacency(adjacency)

    def test_nodes_out_of_range_raise(self, raises):
        with raises("out-of-range", value=7):
            normalized_adjacency(torch.tensor([[0, 7], [1, 0]]), num_nodes=5)
        with raises("out-of-range", value=-1):
            normalized_adjacency(torch.tensor([[0, -1], [1, 0]]))

    @kinds
    @pytest.mark.parametrize("weight", [-1.0, -3.0, torch.inf, torch.nan])
    def test_weights_without_positive_sum_raise(self, kind, weight, raises):
        adjacency = torch.sparse_coo_tensor([[2], [1]], [weight], (4, 4))
        with raises("out-of-range"):
            normalized_adjacency(adjacency, kind)


@kinds
@pytest.mark.parametrize("form", ["matrix", "edge_index", "unsorted"])
def test_blocks_and_64_bit_indices_give_equal_results(kind, form, monkeypatch):
    dense = adjacency("directed", 40)
    given = dense.to_sparse_csr() if form == "matrix" else dense.T.nonzero().T.flip(1)
    if form == "unsorted":
        row = torch.arange(40).repeat_interleave(3)
        given = SparseMatrix(
            Pattern(torch.arange(0, 121, 3), torch.randint(40, (120,)).int(), (40, 40)), torch.rand(120)
        )
        dense = torch.zeros(40, 40).index_put_(
            (row, given.pattern.column.long()), given.values, accumulate=True
        )
    expected = normalized_adjacency(given, kind, 40)
    assert expected.pattern.crow.dtype == torch.int32
    monkeypatch.setattr(pattern, "ENTRIES_PER_BLOCK", 5)
    monkeypatch.setattr(pattern, "MAX_ENTRIES_IN_32_BITS", 3)  # as if there were more than 2³¹
    actual = normalized_adjacency(given, kind, 40)
    assert actual.pattern.crow.dtype == torch.int64
    assert torch.equal(actual.pattern.crow, expected.pattern.crow.long())
    assert torch.equal(actual.pattern.column, expected.pattern.column)
    assert torch.equal(actual.values, expected.values)
    looped = dense + torch.diag((dense.diagonal() == 0).float())
    if kind == "rw":
        torch.testing.assert_close(actual.to_dense(), looped / looped.sum(1, keepdim=True))


def test_products_and_gradients_with_64_bits(monkeypatch, either_form):
    dense = adjacency("weighted", 30)
    monkeypatch.setattr(pattern, "MAX_ENTRIES_IN_32_BITS", 3)
    matrix = SparseMatrix.from_torch(dense)
    assert matrix.pattern.crow.dtype == matrix.pattern.transposed.crow.dtype == torch.int64
    x = torch.randn(30, 2, 5, requires_grad=True)
    y = matrix @ x
    torch.testing.assert_close(y, torch.einsum("ij,jtf->itf", dense, x))
    weight = torch.randn_like(y)
    (actual,) = torch.autograd.grad((y * weight).sum(), x)
    torch.testing.assert_close(actual, torch.einsum("ij,itf->jtf", dense, weight))


def test_more_than_32_bits_of_nodes_raise(raises):
    crow, column = torch.zeros(2, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    with raises("too-large", value=(1, 2**31)):
        Pattern(crow, column, (1, 2**31))
