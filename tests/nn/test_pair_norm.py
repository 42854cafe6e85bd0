import copy
import math
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import PairNorm as PeerPairNorm

from pairnorm import PairNorm, pair_norm
from pairnorm.nn.ops._numba import pair_norm as kernels
from pairnorm.nn.pair_norm import MODES

sys.path.insert(0, str(Path(__file__).parent))
import pair_norm_tester as tester

modes = pytest.mark.parametrize("mode", MODES)
BATCHES = {
    "sorted": [0, 0, 0, 1, 1, 2, 2, 2, 2],
    "unsorted": [2, 0, 1, 2, 2, 0, 1, 0, 2],
    "empty graphs": [1, 1, 4, 4, 4, 1, 6, 6, 6],
    "single nodes": [0, 3, 1, 1, 1, 2, 1, 4, 1],
}
batches = pytest.mark.parametrize(
    "batch", [torch.tensor(batch) for batch in BATCHES.values()], ids=[*BATCHES]
)


def by_formula(x, scale, mode, eps=1e-6, batch=None):
    """The formulas of the docstring, graph by graph in float64."""
    x, batch = x.detach(), torch.zeros(len(x)) if batch is None else batch
    result = torch.zeros_like(x, dtype=torch.float64)
    for graph in batch.unique():
        result[batch == graph] = tester.formula(x[batch == graph], scale, mode, eps)
    return result


def assert_near(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


class TestFormula:
    @modes
    @pytest.mark.parametrize("shape", [(7, 5), (6, 3, 4), (5, 2, 3, 4), (3, 1, 1), (2, 2, 1, 1, 3)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equals_the_formula(self, mode, shape, dtype, either_form):
        x = torch.randn(shape, dtype=dtype) * 3 + 1
        y = pair_norm(x, 2.5, mode, eps=1e-3)
        assert y.dtype == dtype
        assert_near(y, by_formula(x, 2.5, mode, 1e-3), 1e-5 if dtype == torch.float32 else 1e-12)

    @modes
    @batches
    @pytest.mark.parametrize("batch_size", [None, 7, 9])
    @pytest.mark.parametrize("middle", [(), (2,), (2, 2)])
    def test_batch(self, mode, batch, batch_size, middle):
        x = torch.randn(9, *middle, 4)
        y = pair_norm(x, 2.0, mode, batch=batch, batch_size=batch_size)
        assert_near(y, by_formula(x, 2.0, mode, batch=batch))
        for graph in batch.unique():
            assert_near(y[batch == graph], pair_norm(x[batch == graph], 2.0, mode))
        assert torch.equal(y, PairNorm(2.0, mode)(x, batch.int(), batch_size))

    @pytest.mark.parametrize("individually", [False, True])
    @pytest.mark.parametrize("batched", [False, True])
    def test_equals_peer(self, individually, batched):
        x = torch.randn(12, 5, dtype=torch.float64)
        batch = torch.arange(12) // 4 if batched else None
        # PyG adds eps to the row norm, not under the root: an eps that vanishes makes them one.
        peer = PeerPairNorm(scale=3.0, scale_individually=individually, eps=1e-30)
        ours = PairNorm(3.0, "PN-SI" if individually else "PN", eps=1e-30)
        assert_near(ours(x, batch), peer(x, batch), 1e-12)
        assert_near(ours(x, batch, 3), peer(x, batch, 3), 1e-12)

    @modes
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_diverged_model_gives_nan_and_spares_others(self, mode, value):
        x = torch.randn(6, 2, 4)
        x[3, 1, 2] = value
        y = pair_norm(x, mode=mode)
        assert_near(y[:, 0], pair_norm(x[:, 0], mode=mode))
        assert y[3, 1].isnan().any()
        assert value == math.inf or y[:, 1].isnan().any(-1).all()


class TestPrecision:
    @modes
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("batch", [None, torch.arange(6) % 2], ids=["one graph", "batch"])
    def test_autocast_keeps_the_dtype(self, mode, dtype, batch):
        x = torch.randn(6, 4).to(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            y = pair_norm(x, mode=mode, batch=batch)
        assert y.dtype == dtype
        assert torch.equal(y, pair_norm(x, mode=mode, batch=batch))


class TestDegenerate:
    @modes
    @pytest.mark.parametrize("batch", [False, True])
    @pytest.mark.parametrize(
        "x",
        [
            torch.full((5, 3), 7.0),
            torch.zeros(5, 3),
            torch.tensor([[1e4, 2e-3]]).expand(9, 2),
            torch.randn(1, 4),
            torch.randn(1, 2, 4),
            torch.zeros(0, 4),
            torch.zeros(0, 2, 4),
            torch.zeros(5, 0),
            torch.zeros(5, 0, 3),
        ],
        ids=lambda x: str(list(x.shape)),
    )
    def test_zeros_or_empty_and_finite_gradients(self, mode, x, batch, either_form):
        x = x.clone().requires_grad_()
        groups = torch.zeros(len(x), dtype=torch.long) if batch else None
        y = pair_norm(x, mode=mode, batch=groups)
        assert y.shape == x.shape
        assert_near(y, by_formula(x, 1.0, mode))
        assert mode == "PN-SCS" or not y.any()
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        assert grad.isfinite().all()
        assert torch.autograd.grad(grad.square().sum() + 0 * x.sum(), x)[0].isfinite().all()

    @modes
    def test_slope_at_a_zero_row_is_bounded_by_the_scale_over_the_root_of_eps(self, mode):
        x = torch.zeros(4, 3, requires_grad=True)
        pair_norm(x, 2.0, mode, eps=1e-4)[0, 0].backward()
        assert x.grad.abs().max() <= 2.0 / 1e-2 + 1


class TestGradient:
    @modes
    @pytest.mark.parametrize("batch", [None, torch.tensor([1, 0, 1, 3, 1])], ids=["one graph", "batch"])
    @pytest.mark.parametrize("middle", [(), (2,)])
    def test_gradcheck(self, mode, batch, middle):
        x = torch.randn(5, *middle, 3, dtype=torch.float64, requires_grad=True)

        def function(x):
            return pair_norm(x, 1.7, mode, 1e-3, batch, 4)

        assert gradcheck(function, x)
        assert gradgradcheck(function, x)

    @modes
    def test_gradient_of_the_gradient_in_single_precision(self, mode):
        x, grad = torch.randn(12, 2, 4, requires_grad=True), torch.randn(12, 2, 4, requires_grad=True)

        def second(x, grad):
            (first,) = torch.autograd.grad(pair_norm(x, 2.0, mode), x, grad, create_graph=True)
            return torch.autograd.grad(first.pow(3).sum(), (x, grad))

        wide = [tensor.detach().double().requires_grad_() for tensor in (x, grad)]
        for single, double in zip(second(x, grad), second(*wide), strict=True):
            assert_near(single, double, 1e-4)

    @modes
    def test_expanded_gradient(self, mode, either_form):
        x = torch.randn(9, 4, requires_grad=True)
        weight = torch.randn(9, 1)
        pair_norm(x, mode=mode).mul(weight).sum().backward()
        (expected,) = torch.autograd.grad(pair_norm(x, mode=mode), x, weight.repeat(1, 4))
        assert_near(x.grad, expected)

    @modes
    def test_no_grad_saves_no_autograd_graph(self, mode):
        assert not pair_norm(torch.randn(4, 3), mode=mode).requires_grad
        with torch.no_grad():
            assert not pair_norm(torch.randn(4, 3, requires_grad=True), mode=mode).requires_grad

    @modes
    @pytest.mark.parametrize("batch", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    @pytest.mark.parametrize("nodes", [200, 9000])
    def test_saves_one_tensor_of_the_input_size(self, mode, batch, dtype, nodes):
        x = torch.randn(nodes, 2, 64, dtype=dtype, requires_grad=True)
        assert (x.numel() > kernels.MIN_ELEMENTS_FOR_THREADS) == (nodes == 9000)
        groups = torch.zeros(nodes, dtype=torch.long) if batch else None
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            pair_norm(x, mode=mode, batch=groups, batch_size=1)
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved
        }
        per_row = 8 * x.shape[:-1].numel()  # norms, and the graph of each node
        assert sum(storages.values()) <= x.nbytes + 2 * per_row


class TestTransforms:
    @modes
    @pytest.mark.parametrize("batched", [False, True])
    def test_compile_in_one_graph_for_all_sizes(self, mode, batched):
        torch.compiler.reset()
        graphs = []

        def count(graph, inputs):
            graphs.append(graph)
            return graph

        function = torch.compile(
            lambda x, batch: pair_norm(x, 2.0, mode, batch=batch, batch_size=3),
            fullgraph=True,
            dynamic=True,
            backend=count,
        )
        for nodes in (5, 8, 13):
            x = torch.randn(nodes, 4)
            batch = torch.arange(nodes) % 3 if batched else None
            assert_near(function(x, batch), pair_norm(x, 2.0, mode, batch=batch))
        assert len(graphs) == 1

    @pytest.mark.skipif(not shutil.which("c++"), reason="torch.compile needs a C++ compiler on a CPU")
    def test_compiled_code_and_its_gradient(self):
        torch.compiler.reset()

        def everything(x):
            return sum(pair_norm(x, 2.0, mode) for mode in MODES)

        function = torch.compile(everything, fullgraph=True, dynamic=True)
        for nodes in (5, 13):
            x, grad = torch.randn(nodes, 4, requires_grad=True), torch.randn(nodes, 4)
            y, expected = function(x), everything(x)
            assert_near(y, expected)
            assert_near(*(torch.autograd.grad(output, x, grad)[0] for output in (y, expected)))

    @modes
    def test_export(self, mode):
        layer = PairNorm(2.0, mode)
        nodes = torch.export.Dim("nodes", min=2)
        exported = torch.export.export(layer, (torch.randn(6, 4),), dynamic_shapes=({0: nodes},)).module()
        x = torch.randn(11, 4)
        assert_near(exported(x), layer(x))

    @modes
    def test_vmap_is_a_trial_axis(self, mode):
        x, grad = torch.randn(3, 7, 2, 4), torch.randn(3, 7, 2, 4)
        expected = torch.stack([pair_norm(trial, mode=mode) for trial in x])
        assert_near(torch.vmap(lambda x: pair_norm(x, mode=mode))(x), expected)
        last = torch.vmap(lambda x: pair_norm(x, mode=mode), in_dims=2, out_dims=2)
        assert_near(last(x.movedim(0, 2)).movedim(2, 0), expected)

        def inner(x, grad):
            return (pair_norm(x, mode=mode) * grad).sum()

        gradients = torch.vmap(torch.func.grad(inner))(x, grad)
        assert_near(
            gradients, torch.stack([torch.func.grad(inner)(*pair) for pair in zip(x, grad, strict=True)])
        )

    @modes
    @pytest.mark.parametrize("batch", [None, torch.tensor([0, 1, 0, 1, 1])], ids=["one graph", "batch"])
    def test_forward_mode_and_hessian(self, mode, batch):
        x, direction = torch.randn(2, 5, 3)

        def function(x):
            return pair_norm(x, 2.0, mode, batch=batch, batch_size=2)

        _, along = torch.func.jvp(function, (x,), (direction,))
        jacobian = torch.autograd.functional.jacobian(function, x)
        assert_near(along, (jacobian * direction).sum((-2, -1)))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, direction)
            assert_near(torch.autograd.forward_ad.unpack_dual(function(dual)).tangent, along)
        hessian = torch.autograd.functional.hessian(lambda x: function(x).pow(3).sum(), x)
        assert_near(torch.func.hessian(lambda x: function(x).pow(3).sum())(x), hessian, 1e-3)

    @modes
    def test_meta_tensors_have_a_shape_and_no_kernel(self, mode):
        assert pair_norm(torch.empty(7, 3, device="meta"), mode=mode).shape == (7, 3)


class TestLayer:
    def test_defaults(self):
        x = torch.randn(5, 3)
        assert torch.equal(PairNorm()(x), pair_norm(x))
        assert torch.equal(pair_norm(x), pair_norm(x, scale=1.0, mode="PN", eps=1e-6))

    @pytest.mark.parametrize("layer", [PairNorm(), PairNorm(0.5, "PN-SI", 1e-3), PairNorm(10, mode="PN-SCS")])
    def test_repr_shows_every_setting(self, layer):
        again = eval(repr(layer), {"PairNorm": PairNorm})
        assert (again.scale, again.mode, again.eps) == (layer.scale, layer.mode, layer.eps)
        for setting in ("scale", "mode", "eps"):
            assert f"{setting}={getattr(layer, setting)!r}" in repr(layer)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
    def test_copies_keep_settings(self, copied):
        layer = PairNorm(3.0, "PN-SI", 1e-3)
        x = torch.randn(5, 3)
        assert repr(copied(layer)) == repr(layer)
        assert torch.equal(copied(layer)(x), layer(x))

    def test_layer_has_no_state(self):
        layer = PairNorm(3.0)
        assert layer.state_dict() == {}
        layer.load_state_dict({})
        assert not list(layer.parameters())

    def test_individual_scaling_as_pyg_spells_it(self, raises):
        assert PairNorm(scale_individually=True).mode == "PN-SI"
        assert PairNorm(scale_individually=False).mode == "PN"
        assert PairNorm(mode="PN-SI", scale_individually=True).mode == "PN-SI"
        for mode, individually in (("PN-SI", False), ("PN-SCS", True)):
            with raises("conflicting-options"):
                PairNorm(mode=mode, scale_individually=individually)

    @pytest.mark.parametrize(("norm", "ours", "peers"), [(1e-3, 0.707, 0.999), (1e-6, 0.001, 0.5)])
    def test_eps_is_under_the_root_unlike_in_pyg(self, norm, ours, peers):
        x = torch.tensor([[norm, 0.0], [-norm, 0.0]])
        assert PairNorm(mode="PN-SI", eps=1e-6)(x)[0, 0].item() == pytest.approx(ours, rel=1e-2)
        peer = PeerPairNorm(scale_individually=True, eps=1e-6)
        assert peer(x)[0, 0].item() == pytest.approx(peers, rel=1e-2)


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "settings"),
        [
            *[("unknown-choice", {"mode": mode}) for mode in ("PN-Si", "pn", "", None, 3)],
            *[
                ("not-a-number", {name: value})
                for name in ("scale", "eps")
                for value in (0, -1.0, math.inf, -math.inf, math.nan, "1", None, True, torch.ones(3))
            ],
            ("not-a-number", {"eps": 1e-50}),  # zero in single precision
        ],
    )
    def test_invalid_settings_raise(self, code, settings, raises):
        for call in (lambda: pair_norm(torch.randn(3, 2), **settings), lambda: PairNorm(**settings)):
            with raises(code) as caught:
                call()
            assert caught.value.value is next(iter(settings.values()))

    def test_unknown_mode_gets_a_suggestion(self, raises):
        with raises("unknown-choice", hint="Did you mean 'PN-SI'?"):
            PairNorm(mode="PNSI")

    @pytest.mark.parametrize(
        ("code", "value", "x"),
        [
            *[
                ("wrong-dtype", dtype, torch.ones(3, 2, dtype=dtype))
                for dtype in (torch.int64, torch.bool, torch.complex64)
            ],
            ("wrong-layout", torch.sparse_coo, torch.eye(3).to_sparse()),
            ("wrong-shape", [], torch.ones(())),
            ("wrong-shape", [5], torch.ones(5)),
        ],
    )
    def test_invalid_states_raise(self, code, value, x, raises):
        with raises(code, value=value):
            pair_norm(x)

    @pytest.mark.parametrize(
        ("code", "value", "batch", "batch_size"),
        [
            *[
                ("wrong-shape", list(shape), torch.zeros(shape, dtype=torch.long), None)
                for shape in ((2,), (4,), (0,), (3, 1))
            ],
            ("wrong-type", torch.float32, torch.zeros(3), None),
            ("wrong-type", torch.bool, torch.zeros(3, dtype=torch.bool), None),
            *[("out-of-range", -1, torch.tensor([0, -1, 2]), size) for size in (None, 3)],
            *[("out-of-range", 2, torch.tensor([0, 1, 2]), size) for size in (0, 1, 2)],
        ],
    )
    def test_invalid_batch_vectors_raise(self, code, value, batch, batch_size, raises):
        with raises(code, value=value):
            pair_norm(torch.randn(3, 2), batch=batch, batch_size=batch_size)


class TestStatistics:
    @modes
    def test_running_statistics_of_batches_equal_all_rows(self, mode):
        x = torch.randn(50, 3, 4) + 1e3
        norm = PairNorm(2.0, mode, track_running_stats=True)
        for part in x.split([1, 20, 29]):
            assert torch.equal(norm(part), pair_norm(part, 2.0, mode))
        wide = x.double()
        statistics = norm.statistics
        assert int(statistics.count) == 50
        assert_near(statistics.mean, wide.mean(0), 1e-12)
        assert_near(
            statistics.mean_square, (wide - wide.mean(0)).square().sum(-1, keepdim=True).mean(0), 1e-6
        )
        assert_near(norm.eval()(x), by_formula(x, 2.0, mode), 1e-4)
        assert int(statistics.count) == 50

    @modes
    def test_eval_uses_running_statistics_in_float64(self, mode):
        norm = PairNorm(mode=mode, track_running_stats=True)
        x = torch.randn(40, 8) + 7
        norm(x)
        norm.eval()
        assert_near(torch.cat([norm(row) for row in x.split(1)]), norm(x), 1e-6)
        half = copy.deepcopy(norm).half()
        assert half.statistics.mean.dtype == torch.float64
        assert half(x.half()).dtype == torch.float16
        assert gradcheck(norm, x[:3].double().requires_grad_())

    def test_eval_without_statistics_raises(self, raises):
        norm = PairNorm(track_running_stats=True).eval()
        with raises("not-fitted"):
            norm(torch.randn(3, 2))
        norm.train()(torch.randn(3, 2))
        with raises("wrong-shape"):
            norm(torch.randn(3, 5))
        with raises("conflicting-options"):
            norm(torch.randn(3, 2), torch.zeros(3, dtype=torch.long))
        norm.statistics.reset()
        assert norm(torch.randn(3, 5)).shape == (3, 5)

    def test_running_statistics_are_optional_and_in_repr(self):
        norm = PairNorm(track_running_stats=True)
        assert set(norm.state_dict()) == {"statistics.count", "statistics.mean", "statistics.mean_square"}
        assert repr(norm) == "PairNorm(scale=1.0, mode='PN', eps=1e-06, track_running_stats=True)"

    def test_layers_do_not_fuse_running_statistics(self):
        from pairnorm.nn.ops.pair_norm import can_fuse

        x = torch.randn(4, 1, 2)
        assert can_fuse(PairNorm(), x)
        assert not can_fuse(PairNorm(track_running_stats=True), x)
