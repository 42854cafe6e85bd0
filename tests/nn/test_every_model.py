"""What holds for every model: many models in one, forms of the input, dropout, state and errors."""

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.nn.ops.dropout import draw_keys

sys.path.insert(0, str(Path(__file__).parent))
from model_tester import CLASSES, DEEP, EVERY, FEATURES, NODES, PLAIN, build, random_features

every = pytest.mark.parametrize(("kind", "settings"), EVERY.values(), ids=EVERY.keys())


@pytest.fixture
def x():
    return random_features()


class TestManyModels:
    @every
    def test_model_without_model_axis_equals_one_of_one(self, kind, settings, x, edge_index):
        one = build(kind, settings, num_layers=3).eval()
        ordinary = kind(FEATURES, CLASSES, num_layers=3, **settings).eval()
        ordinary.load_state_dict(one.state_dict())
        assert ordinary(x, edge_index).shape == (NODES, CLASSES)
        assert torch.equal(ordinary(x, edge_index), one(x, edge_index).squeeze(1))

    @every
    @pytest.mark.parametrize("features", ["dense", "sparse", "per model"])
    def test_stacked_models_train_like_single_models(
        self, kind, settings, features, x, edge_index, either_form
    ):
        seeds, more = (3, 1, 4), {"num_layers": 3, "dropout": 0.4}
        labels = torch.randint(0, CLASSES, (NODES,))
        adjacency = normalized_adjacency(edge_index, num_nodes=NODES)
        together = build(kind, settings, seeds, **more)
        alone = [build(kind, settings, (seed,), **more) for seed in seeds]
        inputs = {
            "dense": [x] * 4,
            "sparse": [x.to_sparse_csr()] * 4,
            "per model": [torch.stack([x, 2 * x, -x], 1), x, 2 * x, -x],
        }[features]
        parameters = together.parameters(), *(model.parameters() for model in alone)
        optimizers = [torch.optim.SGD(group, lr=0.5, momentum=0.9) for group in parameters]
        for _ in range(3):
            keys = draw_keys(together.num_keys, 2, 3)
            shares = keys, *(keys[..., number : number + 1] for number in range(3))
            losses = []
            for model, input, share in zip((together, *alone), inputs, shares, strict=True):
                logits = model(input, adjacency, share).transpose(0, 1)
                losses.append(torch.stack([functional.cross_entropy(one, labels) for one in logits]))
            torch.testing.assert_close(losses[0], torch.cat(losses[1:]), rtol=1e-4, atol=1e-5)
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.sum().backward()
            assert_stacked(together, alone, lambda parameter: parameter.grad)
            for optimizer in optimizers:
                optimizer.step()
        assert_stacked(together, alone, lambda parameter: parameter.data)

    @every
    def test_seed_gives_equal_weights_alone_and_stacked(self, kind, settings):
        together = kind(FEATURES, CLASSES, num_layers=3, num_models=3, **settings)
        together.reset_parameters([7, 8, 9])
        for number, seed in enumerate((7, 8, 9)):
            alone = kind(FEATURES, CLASSES, num_layers=3, **settings)
            alone.reset_parameters([seed])
            for parameter, one in zip(together.parameters(), alone.parameters(), strict=True):
                assert torch.equal(parameter[number], one[0])

    @every
    def test_torch_seed_determines_weights(self, kind, settings):
        states = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            model = kind(FEATURES, CLASSES, num_models=2, **settings)
            states.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
        assert torch.equal(states[0], states[1])
        assert not torch.equal(states[0], states[2])

    @every
    def test_initial_weights_are_glorot_and_biases_zero(self, kind, settings):
        model = kind(FEATURES, CLASSES, num_layers=3, num_models=2, **settings)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any()
            elif "norm" not in name and name != "shares":
                bound = (6 / (parameter.size(-2) + parameter.size(-1))) ** 0.5
                assert 0.5 * bound < parameter.abs().max() <= bound


def assert_stacked(together, alone, part):
    for parameter, *parts in zip(
        together.parameters(), *(model.parameters() for model in alone), strict=True
    ):
        expected = torch.cat([part(one) for one in parts])
        torch.testing.assert_close(part(parameter), expected, rtol=1e-3, atol=1e-5)


class TestInputs:
    @every
    def test_dense_and_sparse_features_agree(self, kind, settings, x, edge_index):
        model = build(kind, settings, (0, 1), num_layers=3).eval()
        expected = model(x, edge_index)
        for features in (x.to_sparse_csr(), x.to_sparse_coo(), SparseMatrix.from_torch(x), x.unsqueeze(1)):
            torch.testing.assert_close(model(features, edge_index), expected, rtol=1e-4, atol=1e-5)

    @every
    def test_each_model_may_have_its_own_features(self, kind, settings, x, edge_index):
        model = build(kind, settings, (0, 1), num_layers=3).eval()
        stacked = torch.stack([x, 2 * x.roll(1, 0)], 1)
        expected = torch.stack([model(stacked[:, number], edge_index)[:, number] for number in range(2)], 1)
        torch.testing.assert_close(model(stacked, edge_index), expected, rtol=1e-4, atol=1e-5)
        everywhere = SparseMatrix.from_torch(torch.ones(NODES, FEATURES)).pattern
        sparse = SparseMatrix(everywhere, stacked.transpose(0, 1).flatten(1).contiguous())
        torch.testing.assert_close(model(sparse, edge_index), expected, rtol=1e-4, atol=1e-5)

    @every
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_dtypes_agree(self, kind, settings, dtype, x, edge_index):
        model = build(kind, settings, num_layers=3).eval()
        expected = model(x, edge_index)
        logits = copy.deepcopy(model).to(dtype)(x.to(dtype), edge_index)
        assert logits.dtype == dtype
        tolerance = 1e-4 if dtype == torch.float64 else 0.1
        torch.testing.assert_close(logits.float(), expected, rtol=tolerance, atol=tolerance)

    @every
    def test_every_form_of_a_graph_agrees(self, kind, settings, x, edge_index):
        model = build(kind, settings, num_layers=2, adjacency="sym").eval()
        expected = model(x, model.normalized_adjacency(edge_index, NODES))
        ones = torch.ones(edge_index.size(1))
        csr = torch.sparse_coo_tensor(edge_index, ones, (NODES, NODES)).to_sparse_csr()
        for adjacency in (edge_index, csr):
            torch.testing.assert_close(model(x, adjacency), expected)

    @pytest.mark.parametrize("name", [*PLAIN, *DEEP])
    def test_isolated_nodes_see_themselves_only(self, name, x, edge_index):
        model = build(*EVERY[name], num_layers=3).eval()
        logits = model(x, edge_index)
        other = x.clone()
        other[:18] = torch.randn(18, FEATURES)
        precision = {"rtol": 1e-5, "atol": 1e-6} if name == "G2" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(model(other, edge_index)[18:], logits[18:], **precision)
        alone = model(x[18:], torch.zeros(2, 0, dtype=torch.long))
        torch.testing.assert_close(logits[18:], alone)

    @every
    def test_all_zero_features_are_finite(self, kind, settings, edge_index):
        model = build(kind, settings, num_layers=3).eval()
        logits = model(torch.zeros(NODES, FEATURES), edge_index)
        logits.sum().backward()
        assert logits.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    @every
    def test_zero_nodes_are_accepted(self, kind, settings):
        model = build(kind, settings, num_layers=2, dropout=0.5)
        assert model(torch.zeros(0, FEATURES), torch.zeros(2, 0, dtype=torch.long)).shape == (0, 1, CLASSES)

    @every
    @pytest.mark.parametrize("sparse", [False, True])
    def test_default_dtype_changes_no_bit(self, kind, settings, sparse, x, edge_index, double_by_default):
        model = build(kind, settings, (0, 1), num_layers=3, dropout=0.5)
        adjacency, keys = model.normalized_adjacency(edge_index, NODES), draw_keys(model.num_keys, 2, 2)
        features = SparseMatrix.from_torch(x.to_sparse_csr()) if sparse else x
        results = []
        for _ in range(2):
            model.zero_grad()
            logits = model(features, adjacency, keys)
            logits.square().sum().backward()
            results.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
            double_by_default()
        assert all(map(torch.equal, *results))


class TestDropout:
    @every
    def test_no_dropout_in_evaluation(self, kind, settings, x, edge_index):
        model = build(kind, settings, num_layers=2, dropout=0.5)
        plain = build(kind, settings, num_layers=2, dropout=0.0)
        assert torch.equal(model.eval()(x, edge_index), plain(x, edge_index))
        assert not torch.equal(model.train()(x, edge_index), plain(x, edge_index))

    @every
    def test_torch_seed_determines_dropout_keys(self, kind, settings, x, edge_index):
        model = build(kind, settings, num_layers=2, dropout=0.5)
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(model(x, edge_index))
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    @every
    def test_dropout_mask_does_not_depend_on_other_models(self, kind, settings, x, edge_index):
        model = build(kind, settings, (0, 1), num_layers=2, dropout=0.5)
        keys = draw_keys(model.num_keys, 2, 2)
        other = keys.clone()
        other[..., 1] += 12345
        first, second = model(x, edge_index, keys), model(x, edge_index, other)
        assert torch.equal(first[:, 0], second[:, 0])
        assert not torch.equal(first[:, 1], second[:, 1])


@every
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_give_equal_logits(kind, settings, copied, x, edge_index):
    model = build(kind, settings, num_layers=3).eval()
    assert torch.equal(copied(model)(x, edge_index), model(x, edge_index))


@every
def test_state_dict_round_trip(kind, settings, x, edge_index, tmp_path):
    model, other = (build(kind, settings, (seed,), num_layers=3).eval() for seed in (1, 2))
    assert not torch.equal(model(x, edge_index), other(x, edge_index))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(model(x, edge_index), other(x, edge_index))


@every
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, of what goes on behind the model
def test_compiled_model_equals_eager(kind, settings, x, edge_index):
    torch.compiler.reset()
    model = build(kind, settings, num_layers=3)
    compiled = torch.compile(model, backend="aot_eager")
    for graph in (edge_index, normalized_adjacency(edge_index, "rw", NODES)):
        results = []
        for call in (model, compiled):
            torch.manual_seed(1)  # of the dropout
            logits = call(x, graph)
            results.append([logits, *torch.autograd.grad(logits.square().sum(), [*model.parameters()])])
        torch.testing.assert_close(*results, rtol=0, atol=0)


class TestErrors:
    @every
    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"num_layers": 0}, "not-a-whole-number"),
            ({"num_layers": 1.5}, "not-a-whole-number"),
            ({"num_layers": "2"}, "not-a-whole-number"),
            ({"num_models": 0}, "not-a-whole-number"),
            ({"dropout": 1.0}, "not-a-number"),
            ({"dropout": -0.1}, "not-a-number"),
            ({"dropout": float("nan")}, "not-a-number"),
            ({"adjacency": "random walk"}, "unknown-choice"),
        ],
    )
    def test_invalid_settings_raise(self, kind, settings, wrong, code, raises):
        with raises(code):
            kind(FEATURES, CLASSES, **{**settings, **wrong})

    @every
    def test_invalid_sizes_raise(self, kind, settings, raises):
        for sizes in ((0, 3), (6, 0)):
            with raises("not-a-whole-number", value=0):
                kind(*sizes, **settings)

    @every
    def test_wrong_number_of_seeds_raises(self, kind, settings, raises):
        with raises("wrong-shape", value=2):
            kind(FEATURES, CLASSES, num_models=3, **settings).reset_parameters([0, 1])

    @every
    @pytest.mark.parametrize(
        "wrong",
        [
            torch.randn(NODES),
            torch.randn(NODES, FEATURES + 1),
            torch.randn(NODES, FEATURES + 1).to_sparse_csr(),
            torch.randn(NODES, 3, FEATURES),
            torch.randn(NODES, 2, 1, FEATURES),
            torch.ones(NODES, FEATURES, dtype=torch.long),
        ],
        ids=lambda x: f"{x.dtype} {list(x.shape)}",
    )
    def test_invalid_features_raise(self, kind, settings, wrong, edge_index, raises):
        with raises("wrong-shape", expected="floating-point [nodes, 6] or [nodes, 2, 6]"):
            kind(FEATURES, CLASSES, num_models=2, **settings)(wrong, edge_index)

    @every
    def test_adjacency_of_wrong_size_raises(self, kind, settings, x, adjacency, raises):
        with raises("wrong-shape", value=20):
            kind(FEATURES, CLASSES, **settings)(x[:19], adjacency)

    @every
    @pytest.mark.parametrize(
        "keys", [torch.zeros(2, 2, 5).int(), torch.zeros(2, 2).int(), torch.zeros(2, 2, 1)]
    )
    def test_invalid_keys_raise(self, kind, settings, keys, x, edge_index, raises):
        with raises("wrong-shape", value=list(keys.shape)):
            kind(FEATURES, CLASSES, **{**settings, "dropout": 0.5})(x, edge_index, keys)
