import math

import pytest
import torch

from pairnorm.nn.norms import NodeNorm


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 6)])
def test_equals_brute_force(p, shape, near):
    x = torch.randn(shape, dtype=torch.float64) * 3 + 1
    expected = torch.empty_like(x)
    for row, result in zip(x.view(-1, shape[-1]), expected.view(-1, shape[-1]), strict=True):
        values = row.tolist()
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
        result[:] = row / deviation ** (1 / p)
    near(NodeNorm(p)(x), expected)


def test_first_root_gives_variance_one(near):
    near(NodeNorm(1, eps=1e-12)(torch.randn(9, 64).double()).var(-1, correction=0), torch.ones(9))
