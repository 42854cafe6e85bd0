"""PairNorm on tensors without memory of their own, and in graphs that torch exports."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from pairnorm import PairNorm, pair_norm
from pairnorm.nn.pair_norm import MODES

modes = pytest.mark.parametrize("mode", MODES)
BATCH = torch.tensor([0, 0, 1, 1, 1, 2])


class Model(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), PairNorm(2.0, mode)

    def forward(self, x, batch=None):
        return self.norm(self.linear(x), batch, None if batch is None else 3).relu()


@modes
def test_fake_tensors(mode):
    with FakeTensorMode() as fake:
        x = fake.from_tensor(torch.randn(6, 4))
        assert pair_norm(x, mode=mode).shape == (6, 4)
        assert pair_norm(x, mode=mode, batch=fake.from_tensor(BATCH), batch_size=3).shape == (6, 4)


@modes
def test_wrapper_subclasses(mode):
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = torch.randn(6, 4), torch.randn(6, 4)
    y = pair_norm(TwoTensor(a, b), mode=mode)
    torch.testing.assert_close(y.a, pair_norm(a, mode=mode))
    torch.testing.assert_close(y.b, pair_norm(b, mode=mode))


@modes
def test_distributed_tensors(mode, tmp_path):
    from torch import distributed
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = torch.randn(6, 4)
        y = pair_norm(distribute_tensor(x, init_device_mesh("cpu", (1,)), [Shard(0)]), mode=mode)
        torch.testing.assert_close(y.full_tensor(), pair_norm(x, mode=mode))
    finally:
        distributed.destroy_process_group()


@modes
def test_dispatch_modes_see_the_operations(mode):
    x = torch.randn(6, 4)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(pair_norm(x, mode=mode), pair_norm(x, mode=mode))


@modes
@pytest.mark.parametrize("batched", [False, True])
def test_torch_func_with_batch_of_unknown_size(mode, batched):
    """A batch without batch_size had no graphs, and an index was out of range."""
    x, batch = torch.randn(6, 4), BATCH if batched else None

    def loss(x, batch):
        return pair_norm(x, mode=mode, batch=batch).pow(3).sum()

    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(given, batch), given)
    torch.testing.assert_close(torch.func.grad(loss)(x, batch), expected)
    several = torch.func.vmap(torch.func.grad(loss), (0, None))(torch.stack([x, x]), batch)
    torch.testing.assert_close(several[1], expected)
    _, tangent = torch.func.jvp(lambda x: loss(x, batch), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, expected.sum())


@modes
@pytest.mark.parametrize("batched", [False, True])
def test_export(mode, batched):
    model, given = Model(mode).eval(), (torch.randn(6, 4), BATCH) if batched else (torch.randn(6, 4),)
    exported = torch.export.export(model, given)
    other = (torch.randn(6, 4), *given[1:])
    torch.testing.assert_close(exported.module()(*other), model(*other))


@modes
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_onnx(mode, batched):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, given = Model(mode).eval(), (torch.randn(6, 4), BATCH) if batched else (torch.randn(6, 4),)
    program = torch.onnx.export(model, given, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [one.name for one in session.get_inputs()]
    other = (torch.randn(6, 4), *given[1:])
    (actual,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, other, strict=True)})
    torch.testing.assert_close(torch.from_numpy(actual), model(*other), rtol=1e-4, atol=1e-5)
