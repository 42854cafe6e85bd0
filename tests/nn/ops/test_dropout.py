import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pairnorm.nn.ops import dropout as keys_module
from pairnorm.nn.ops.dropout import (
    draw_keys,
    dropout,
    dropped_levels,
    keep_mask,
    keys_from_seeds,
    position_hash,
    step_keys,
)

RATES = [0.1, 0.5, 0.6, 0.9]


def keys(count, seed=0):
    return torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(seed)).int()


def assert_independent(first, second, rate):
    """Compare the four outcomes of two keep masks with those of independent draws (chi-square, p = 1e-6)."""
    both = torch.stack([2 * first.flatten() + second.flatten()]).long()
    counts = torch.bincount(both.flatten(), minlength=4).double()
    keep = 1 - dropped_levels(rate) / 2**16
    one = torch.tensor([1 - keep, keep], dtype=torch.float64)
    expected = both.numel() * torch.outer(one, one).flatten()
    assert ((counts - expected).square() / expected).sum() < 30.7  # three degrees of freedom


class TestMask:
    @pytest.mark.parametrize("rate", [*RATES, 1e-4, 0.9999])
    def test_keep_rate(self, rate):
        kept = keep_mask(keys(50), 200, 31, rate)
        count, chance = kept.numel(), 1 - dropped_levels(rate) / 2**16
        assert abs(kept.sum() - count * chance) < 5 * math.sqrt(count * chance * (1 - chance))
        assert set(kept.unique().tolist()) <= {0.0, 1.0}
        assert abs(chance - (1 - rate)) <= 2**-16

    @pytest.mark.parametrize("rate", RATES)
    def test_keep_rate_per_key_node_and_feature(self, rate):
        kept = keep_mask(keys(100), 100, 30, rate)
        for dims in ((0, 2), (1, 2), (0, 1)):
            share = kept.mean(dims)
            count = kept.numel() / share.numel()
            assert ((share - (1 - rate)).abs() < 5.5 * math.sqrt(rate * (1 - rate) / count)).all()

    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("neighbor", ["random", "next", "flipped low bit"])
    def test_keys_are_independent(self, rate, neighbor):
        first = keys(40)
        second = {
            "random": keys(40, seed=1),
            "next": first + 1,
            "flipped low bit": first ^ 1,
        }[neighbor]
        assert_independent(keep_mask(first, 100, 64, rate), keep_mask(second, 100, 64, rate), rate)

    @pytest.mark.parametrize("rate", RATES)
    def test_positions_are_independent(self, rate):
        kept = keep_mask(keys(40), 100, 64, rate)
        assert_independent(kept[1:], kept[:-1], rate)
        assert_independent(kept[..., 1:], kept[..., :-1], rate)
        assert_independent(kept[..., :32], kept[..., 32:], rate)  # halves of the same words

    @pytest.mark.parametrize("rate", RATES)
    def test_steps_and_layers_are_independent(self, rate):
        trials = keys_from_seeds(range(40))
        now, later = (step_keys(trials, torch.tensor(step, dtype=torch.int32), 2) for step in (6, 7))
        assert_independent(keep_mask(now[0], 100, 64, rate), keep_mask(now[1], 100, 64, rate), rate)
        assert_independent(keep_mask(now[0], 100, 64, rate), keep_mask(later[0], 100, 64, rate), rate)
        assert_independent(keep_mask(now[0, 1:], 100, 64, rate), keep_mask(now[0, :-1], 100, 64, rate), rate)

    def test_equal_keys_give_equal_masks(self):
        kept = keep_mask(torch.tensor([5, 7, 5], dtype=torch.int32), 30, 9, 0.5)
        assert torch.equal(kept[:, 0], kept[:, 2])
        assert not torch.equal(kept[:, 0], kept[:, 1])


class TestPositionHash:
    def test_mask_of_fewer_nodes_is_a_prefix(self):
        cpu = torch.device("cpu")
        long, short = position_hash(1000, cpu), position_hash(10, cpu)
        assert torch.equal(short, long[:10])
        assert torch.equal(position_hash(2000, cpu)[:1000], long)
        assert position_hash(2000, cpu).unique().numel() == 2000

    def test_large_hashes_are_not_cached(self, monkeypatch):
        """Bug: 64 tensors of full size were kept for the life of the process."""
        monkeypatch.setattr(keys_module, "MAX_CACHED_HASHES", 100)
        monkeypatch.setattr(keys_module, "_hashes", {})
        for count in (10, 50, 100, 101, 5000):
            assert len(position_hash(count, torch.device("cpu"))) == count
        assert [len(kept) for kept in keys_module._hashes.values()] == [100]


class TestKeys:
    def test_torch_seed_determines_drawn_keys(self):
        drawn = [torch.manual_seed(seed) and draw_keys(3, 2, 4) for seed in (1, 1, 2)]
        assert drawn[0].dtype == torch.int32
        assert drawn[0].shape == (3, 2, 4)
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    def test_distinct_seeds_have_distinct_keys(self):
        seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, *range(2, 100)]
        together = keys_from_seeds(seeds)
        assert together.unique().numel() == len(seeds)
        assert torch.equal(together, torch.cat([keys_from_seeds([seed]) for seed in seeds]))

    def test_step_keys_depend_on_step_and_own_model_only(self):
        trials = keys_from_seeds(range(5))
        steps = [step_keys(trials, torch.tensor(step, dtype=torch.int32), 4) for step in range(50)]
        assert torch.stack(steps).unique().numel() == 50 * 4 * 5
        alone = step_keys(trials[2:3], torch.tensor(9, dtype=torch.int32), 4)
        assert torch.equal(alone, steps[9][:, 2:3])


class TestDropout:
    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("features", [1, 6, 7])
    def test_entries_are_zero_or_rescaled(self, rate, features, either_form):
        x, trials = torch.randn(20, 3, features), keys(3)
        factor = 2**16 / (2**16 - dropped_levels(rate))
        expected = x * keep_mask(trials, 20, features, rate) * torch.tensor(factor)
        torch.testing.assert_close(dropout(x, rate, trials), expected)

    def test_rate_zero_returns_the_input(self):
        x = torch.randn(4, 1, 3)
        assert dropout(x, 0.0, keys(1)) is x

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_every_type_has_the_same_mask(self, dtype):
        y = dropout(torch.ones(30, 2, 5, dtype=dtype), 0.5, keys(2))
        assert y.dtype == dtype
        assert torch.equal(y != 0, keep_mask(keys(2), 30, 5, 0.5) != 0)

    def test_model_mask_does_not_depend_on_other_models(self, either_form):
        x, trials = torch.randn(20, 4, 5), keys(4)
        together = dropout(x, 0.6, trials)
        for trial in range(4):
            alone = dropout(x[:, trial : trial + 1], 0.6, trials[trial : trial + 1])
            assert torch.equal(together[:, trial : trial + 1], alone)

    def test_gradient_has_the_same_mask(self, either_form):
        x = torch.randn(20, 3, 5, requires_grad=True)
        grad = torch.randn(20, 3, 5)
        (gradient,) = torch.autograd.grad(dropout(x, 0.6, keys(3)), x, grad)
        assert torch.equal(gradient, dropout(grad, 0.6, keys(3)))

    def test_second_derivative_equals_autograd(self):
        x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda x: dropout(x, 0.5, keys(2)), x)
        assert gradgradcheck(lambda x: dropout(x, 0.5, keys(2)).pow(3), x)

    def test_no_tensor_of_input_size_is_saved(self):
        x = torch.randn(50, 2, 16, requires_grad=True)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            dropout(x, 0.5, keys(2))
        assert sum(tensor.nbytes for tensor in saved) <= keys(2).nbytes

    def test_dropout_keeps_the_expectation(self):
        y = dropout(torch.ones(1, 20000, 1), 0.6, keys(20000))
        assert abs(y.mean() - 1) < 5 * math.sqrt(0.6 / 0.4 / 20000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 7, 32])
@pytest.mark.parametrize(("first", "last"), [(0, 20), (5, 12), (13, 20), (7, 7)])
def test_range_of_nodes_has_the_mask_of_the_graph(dtype, features, first, last):
    x, keys = torch.rand(20, 3, features, dtype=dtype), draw_keys(3)
    whole, part = x.clone().requires_grad_(), x[first:last].clone().requires_grad_()
    y, actual = dropout(whole, 0.5, keys), dropout(part, 0.5, keys, first)
    assert torch.equal(actual, y[first:last])
    y.sum().backward()
    actual.sum().backward()
    assert torch.equal(part.grad, whole.grad[first:last])
