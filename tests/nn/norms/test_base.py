import inspect

import pytest
import torch

from pairnorm.nn.norms import NORMS, BatchNorm, MeanSubtraction, NodeNorm, Norm


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_takes_the_arguments_of_the_protocol(name):
    arguments = inspect.signature(Norm.__call__).parameters
    own = inspect.signature(NORMS[name].kind.forward).parameters
    assert list(own)[: len(arguments)] == list(arguments)
    assert all(own[name].default is None for name in ("batch", "batch_size"))


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
