import torch

from pairnorm import PairNorm
from pairnorm.nn.norms import BatchNorm, MeanSubtraction, NodeNorm, Norm


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
    assert caught.value.options == {"in_channels": 3, "num_models": 2}
    with raises("wrong-shape", value=[2]):
        MeanSubtraction()(torch.ones(3, 2), torch.tensor([0, 1]))
    with raises("not-a-whole-number", value=0):
        BatchNorm(0)
    with raises("not-a-number", value=0):
        NodeNorm(p=0)
