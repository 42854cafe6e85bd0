import torch
from torch_geometric.utils import scatter

from pairnorm import PairNorm
from pairnorm.nn.norms import BatchNorm, NodeNorm, Norm
from pairnorm.nn.norms.base import Graphs


def test_means_equal_pyg(batch, near):
    x = torch.randn(12, 2, 3, dtype=torch.float64)
    index = torch.zeros(12, dtype=torch.long) if batch is None else batch
    near(Graphs(x, batch).mean(x).expand_as(x), scatter(x, index, reduce="mean")[index])


def test_a_common_offset_does_not_hide_differences(near):
    x = 1e6 + torch.randn(500, 8).round(decimals=2)
    near(Graphs(x).centre(x), Graphs(x).centre(x.double()), 1e-3)
    assert Graphs(x).centre(torch.full((500, 8), 1e6 / 3)).abs().max() == 0


def test_the_batch_size_may_count_more_graphs(near):
    x, batch = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    near(Graphs(x, batch, 5).mean(x), Graphs(x, batch).mean(x))


def test_what_is_a_norm():
    assert isinstance(PairNorm(), Norm)
    assert isinstance(lambda x, batch=None, batch_size=None: x, Norm)


def test_errors(raises):
    with raises("wrong-dtype", value=torch.int64):
        NodeNorm()(torch.arange(4).view(2, 2))
    with raises("wrong-shape", value=[3]):
        NodeNorm()(torch.ones(3))
    with raises("wrong-shape", value=[4, 2, 3]) as caught:
        BatchNorm(3)(torch.ones(4, 2, 3))
    assert caught.value.options == {"features": 3, "trials": 2}
    with raises("wrong-shape", value=[2]):
        Graphs(torch.ones(3, 2), torch.tensor([0, 1]))
    with raises("not-a-whole-number", value=0):
        BatchNorm(0)
    with raises("not-a-number", value=0):
        NodeNorm(p=0)
