"""What holds for every norm of the registry."""

import copy
import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GCN

from pairnorm.nn.norms import (
    NORMS,
    BatchNorm,
    DegreePairNorm,
    GraphNormV2,
    MeanSubtraction,
    NodeNorm,
    Norm,
    make_norm,
)
from pairnorm.nn.pair_norm import PairNorm

every = pytest.mark.parametrize("name", NORMS)
# Statistics over all nodes of a mini-batch are what these two are named for, and made of.
OVER_GRAPHS = ("BatchNorm", "DiffGroupNorm")


def make(name, trials=None, features=5, nodes=12, **settings):
    """A norm with random parameters, in float64."""
    norm = make_norm(name, features, trials, **settings).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return bind(norm, nodes)


def bind(norm, nodes, order=slice(None)):
    if isinstance(norm, DegreePairNorm):
        degree = torch.rand(nodes, generator=torch.Generator().manual_seed(5)) * 9 + 1
        norm.bind(degree[order])
    if isinstance(norm, GraphNormV2):
        basis = torch.randn(nodes, norm.num_eigenvectors + 1, generator=torch.Generator().manual_seed(6))
        norm.bind(basis[order] / 4)
    return norm


def alone(norm, name, trial):
    """The ordinary module that holds the parameters and statistics of one trial."""
    single = make(name)
    single.load_state_dict({key: value[trial].clone() for key, value in norm.state_dict().items()})
    return single


@every
@pytest.mark.parametrize("trials", [1, 3])
def test_several_models_equal_one_module_each(name, trials, batch, near):
    norm = make(name, trials)
    singles = [alone(norm, name, trial) for trial in range(trials)]
    for _ in range(2):
        x = torch.randn(12, trials, 5, dtype=torch.float64) + 1
        y = norm(x, batch)
        for trial, single in enumerate(singles):
            near(y[:, trial], single(x[:, trial], batch))
    near(norm.eval()(x), torch.stack([single.eval()(x[:, i]) for i, single in enumerate(singles)], 1))


@every
def test_gradients(name, batch):
    norm = make(name, 2, features=3)
    x = torch.randn(12, 2, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, *_: norm(x, batch), (x, *norm.parameters()))


@every
def test_norm_is_equivariant_to_node_order(name, batch, near):
    norm = make(name)
    x, order = torch.randn(12, 5, dtype=torch.float64), torch.randperm(12)
    moved = bind(copy.deepcopy(norm), 12, order)
    near(moved(x[order], batch if batch is None else batch[order]), norm(x, batch)[order])


@pytest.mark.parametrize("name", [name for name in NORMS if name not in OVER_GRAPHS])
def test_batch_equals_each_graph_alone(name, near):
    batch = torch.tensor([0, 1, 4, 1, 0, 4, 4, 0, 1, 1, 4, 0])
    norm = make(name)
    x = torch.randn(12, 5, dtype=torch.float64)
    y = norm(x, batch, 7)
    near(norm(x, batch.int()), y)
    for graph in batch.unique():
        nodes = batch == graph
        near(y[nodes], bind(copy.deepcopy(norm), 12, nodes)(x[nodes]))


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", ["mixed", "autocast", "all"])
def test_half_precision_accumulates_in_float32(name, dtype, how):
    norm = make_norm(name, 64, 2)
    norm = bind(norm.to(dtype) if how == "all" else norm, 50)
    x = (torch.randn(50, 2, 64) * 300).to(dtype)  # squares are beyond float16
    wide = copy.deepcopy(norm).double()
    expected = wide(x.double())
    with torch.autocast("cpu", dtype, enabled=how == "autocast"):
        y = norm(x)
    assert y.dtype == dtype
    last_bit = torch.finfo(dtype).eps * expected.abs().max()
    assert (y.double() - expected).abs().max() <= last_bit
    for ours, theirs in zip(norm.buffers(), wide.buffers(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=torch.finfo(dtype).eps, atol=1e-3)


@every
def test_repr_makes_the_same_norm(name):
    norm = make_norm(name, 5, 3)
    names = {kind.__name__: kind for kind in (method.kind for method in NORMS.values())}
    assert repr(eval(repr(norm), names)) == repr(norm)
    for argument, value in inspect.signature(type(norm)).parameters.items():
        # No text can make the first again, the second is shown where it is on, the third is a mode.
        if argument not in ("process_group", "track_running_stats", "scale_individually"):
            assert f"{argument}={getattr(norm, argument)!r}" in repr(norm), value


@every
def test_tuned_parameter_changes_the_result(name):
    method = NORMS[name]
    if method.parameter is None:
        return
    x = torch.randn(12, 5) + 1
    results = []
    for value in (0.2, 1.0, 2.0, 4.0):
        torch.manual_seed(0)
        norm = bind(make_norm(name, 5, **{method.parameter: value}), 12)
        assert getattr(norm, method.parameter) == value
        results.append(norm(x))
    assert all(not torch.allclose(a, b, rtol=1e-4) for a, b in itertools.pairwise(results))


@every
def test_norm_works_in_pyg_model(name, edge_index):
    """PyG copies a norm for every layer, resets it and gives it the batch."""
    norm = bind(make_norm(name, 8), 20)
    model = GCN(5, 8, num_layers=3, out_channels=2, norm=norm)
    batch = torch.tensor([0] * 10 + [1] * 10)
    model(torch.randn(20, 5), edge_index, batch=batch).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every
def test_norm_compiles_without_graph_break(name, near):
    torch.compiler.reset()  # the norms share a forward, of which only a few variants are compiled
    norm = make(name, 3)
    x, batch = torch.randn(12, 3, 5, dtype=torch.float64), torch.arange(12) % 3
    # ContraNorm walks over the graphs of a batch, whose sizes only the data tells.
    for given in [(x,)] if name == "ContraNorm" else [(x,), (x, batch, 3)]:
        near(torch.compile(copy.deepcopy(norm), backend="eager", fullgraph=True)(*given), norm(*given))


@every
def test_result_does_not_depend_on_strides(name, near):
    norm = make(name, 3)
    x = torch.randn(6, 12, 5, dtype=torch.float64).transpose(0, 1)[:, ::2]
    near(norm(x), norm(x.contiguous()))


@pytest.mark.parametrize("name", [name for name in NORMS if name != "PN-SCS"])  # which centers last
@pytest.mark.parametrize("offset", [100.0, 1e4])
def test_common_offset_keeps_differences(name, offset):
    norm, x = bind(make_norm(name, 16), 200), offset + torch.randn(200, 16)
    expected = copy.deepcopy(norm).double()(x.double())
    assert (norm(x) - expected).abs().max() < 2e-3 * (expected - expected.mean(0)).abs().max()


@every
def test_equal_rows_stay_finite(name):
    x = torch.full((12, 5), 3.0, requires_grad=True)
    norm = bind(make_norm(name, 5), 12)
    norm(x).square().sum().backward()
    assert norm(x).isfinite().all()
    assert x.grad.isfinite().all()


def test_make_norm_knows_every_name(raises):
    assert isinstance(make_norm("PN-SI", 5), PairNorm)
    with raises("unknown-choice", value="batchnorm"):
        make_norm("batchnorm", 5)


class HostTransfers(TorchDispatchMode):
    """Record copies from the host and reads by it, which the capture of a CUDA graph forbids."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._opname in ("lift_fresh", "_local_scalar_dense"):
            self.operations.append(func._opname)
        return func(*args, **(kwargs or {}))


@every
def test_training_step_can_be_captured(name):
    norm, x = make(name, 2), torch.randn(12, 2, 5, dtype=torch.float64, requires_grad=True)
    norm(x).sum().backward()  # the first call may prepare
    with HostTransfers() as transfers:
        norm(x).sum().backward()
    assert transfers.operations == []


@every
def test_every_norm_satisfies_the_protocol(name):
    arguments = inspect.signature(Norm.__call__).parameters
    own = inspect.signature(NORMS[name].kind.forward).parameters
    assert list(own)[: len(arguments)] == list(arguments)
    assert all(own[name].default is None for name in ("batch", "batch_size"))


def test_invalid_arguments_raise(raises):
    with raises("wrong-dtype", value=torch.int64):
        NodeNorm()(torch.arange(4).view(2, 2))
    with raises("wrong-shape", value=[3]):
        NodeNorm()(torch.ones(3))
    with raises("wrong-shape", value=[4, 2, 3]) as caught:
        BatchNorm(3)(torch.ones(4, 2, 3))
    assert caught.value.options == {"in_channels": 3, "num_models": 2}
    with raises("wrong-shape", value=[2]):
        MeanSubtraction()(torch.ones(3, 2), torch.tensor([0, 1]))
    with raises("not-a-whole-number", value=0):
        BatchNorm(0)
    with raises("not-a-number", value=0):
        NodeNorm(p=0)
