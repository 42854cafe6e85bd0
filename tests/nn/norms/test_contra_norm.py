import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pairnorm.nn.norms import ContraNorm, similarity


def similar(x, temperature=1.0):
    """The n x n matrix of the formula, and what it makes of x, in float64."""
    unit = x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
    weight = (unit @ unit.T / temperature).exp()
    weight = weight / weight.sum(1, keepdim=True)
    return weight, weight @ x.double()


@pytest.mark.parametrize("pairs", [1, 40, 2**24])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_equals_brute_force_in_any_block(pairs, temperature, batch, near, monkeypatch):
    monkeypatch.setattr(similarity, "BLOCK_PAIRS", pairs)
    x = torch.randn(12, 5, dtype=torch.float64)
    expected = torch.empty_like(x)
    index = torch.zeros(12) if batch is None else batch
    for graph in index.unique():
        nodes = index == graph
        expected[nodes] = x[nodes] - 0.7 * similar(x[nodes], temperature)[1]
    near(ContraNorm(0.7, temperature)(x, batch), expected)


class Largest(TorchDispatchMode):
    """Remember the size of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_memory_stays_below_all_pairs(monkeypatch, near):
    monkeypatch.setattr(similarity, "BLOCK_PAIRS", 2**14)
    x = torch.randn(600, 2, 8, requires_grad=True)
    with Largest() as largest, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = ContraNorm()(x)
        y.square().sum().backward()
    assert largest.elements <= 2**15
    blocked, x.grad = x.grad, None
    monkeypatch.setattr(similarity, "BLOCK_PAIRS", 2**24)
    ContraNorm()(x).square().sum().backward()
    near(blocked, x.grad, 1e-5)


def test_zero_row_is_equally_similar_to_all(near):
    x = torch.randn(6, 4, dtype=torch.float64)
    x[2] = 0
    near(ContraNorm(1.0)(x.requires_grad_())[2], -x.mean(0))
    ContraNorm(1.0)(x).sum().backward()
    assert x.grad.abs().max() < 1e4


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampling_error_is_below_stated_bound(temperature):
    x = torch.randn(400, 6, dtype=torch.float64) + 0.3
    exact, norm = ContraNorm(1.0, temperature)(x), ContraNorm(1.0, temperature, sample=100)
    error = torch.stack([(norm(x) - exact).square().sum(-1) for _ in range(200)]).mean(0)
    weight, mean = similar(x, temperature)
    spread = (x[None] - mean[:, None]).square().sum(-1)  # [i, j] of |x_j - mean_i|²
    share = 1 / 100 - 1 / 400
    expected = share * 400 * (weight.square() * spread).sum(1)
    assert (error / expected).mean() == pytest.approx(1, abs=0.1)
    assert (error.sqrt() <= math.exp(1 / temperature) * ((weight * spread).sum(1) * share).sqrt()).all()


def test_sample_of_all_nodes_is_exact(near):
    x = torch.randn(9, 2, 4)
    near(ContraNorm(sample=9)(x), ContraNorm()(x), 1e-6)


def test_models_share_a_sample(near):
    x = torch.randn(30, 3, 4)
    torch.manual_seed(1)
    together = ContraNorm(sample=5)(x)
    for trial in range(3):
        torch.manual_seed(1)
        near(together[:, trial], ContraNorm(sample=5)(x[:, trial]), 1e-6)
