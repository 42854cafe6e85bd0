import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pairnorm.train.loop import EPOCHS_PER_SYNC, Adam, Loop


class Bowls:
    """Models that each minimize their own parabola, with given accuracies by epoch."""

    def __init__(self, centers: Sequence[float], accuracies: Callable[[int, int], float]) -> None:
        self.center = torch.tensor(centers)
        self.position = torch.zeros(len(centers), 2, requires_grad=True)
        self.epochs: list[int] = []
        self._accuracies = accuracies

    def loss(self, epoch: Tensor) -> Tensor:
        self.epochs.append(int(epoch))
        return (self.position - self.center.unsqueeze(1)).square().sum(1)

    def accuracy(self) -> Tensor:
        epoch = len(self.epochs) - 1
        return torch.tensor([self._accuracies(model, epoch) for model in range(len(self.center))])

    def loop(self, **options: Any) -> Loop:
        models = len(self.center)
        settings = {"learning_rate": [0.1] * models, "weight_decay": [0.01] * models} | options
        return Loop([self.position], [self.position], self.loss, self.accuracy, curves=True, **settings)


def adam_positions(center: float, epochs: int) -> tuple[list[Tensor], list[float]]:
    """Return the positions of one model after each epoch of torch's Adam, and the loss before it."""
    position = torch.zeros(2, requires_grad=True)
    adam = torch.optim.Adam([position], lr=0.1, weight_decay=0.01, foreach=False)
    positions, losses = [], []
    for _ in range(epochs):
        adam.zero_grad()
        loss = (position - center).square().sum()
        loss.backward()
        adam.step()
        positions.append(position.detach().clone())
        losses.append(loss.item())
    return positions, losses


def test_each_model_has_its_own_adam() -> None:
    bowls = Bowls([1.0, -3.0, 0.5], lambda model, epoch: epoch)
    loop = bowls.loop()
    loop.train(30)
    curves = torch.stack(loop.curves)
    for model, center in enumerate([1.0, -3.0, 0.5]):
        positions, losses = adam_positions(center, 30)
        torch.testing.assert_close(bowls.position[model].detach(), positions[-1])
        torch.testing.assert_close(curves[:, 0, model], torch.tensor(losses))
        assert curves[:, 1, model].tolist() == list(range(30))
    assert bowls.epochs == list(range(30))


def test_reset_loop_repeats_its_training() -> None:
    bowls = Bowls([1.0, -3.0], lambda model, epoch: -((epoch % 10 - 4) ** 2))
    loop = bowls.loop()
    results = []
    for _ in range(2):
        with torch.no_grad():
            bowls.position.zero_()
        loop.reset()
        assert torch.equal(loop.best_parameters[0], torch.zeros(2, 2))
        loop.train(10)
        kept = [
            *loop.best_parameters,
            loop.best_epoch,
            loop.best_accuracy,
            loop.diverged,
            bowls.position.detach(),
        ]
        results.append([*[tensor.clone() for tensor in kept], torch.stack(loop.curves)])
    assert loop.best_epoch.tolist() == [4, 4]
    assert bowls.epochs == [*range(10), *range(10)]
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_first_best_epoch_is_kept_per_model() -> None:
    table = [[0.1, 0.5, 0.5, 0.2, 0.5], [0.9, 0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.0, 0.3]]
    bowls = Bowls([1.0, 2.0, 3.0], lambda model, epoch: table[model][epoch])
    loop = bowls.loop()
    loop.train(5)
    assert loop.best_epoch.tolist() == [1, 0, 4]
    assert loop.best_accuracy.tolist() == pytest.approx([0.5, 0.9, 0.3])
    last = bowls.position.detach().clone()
    loop.restore()
    for model, best in enumerate([1, 0, 4]):
        positions, _ = adam_positions([1.0, 2.0, 3.0][model], 5)
        torch.testing.assert_close(bowls.position[model].detach(), positions[best])
        torch.testing.assert_close(last[model], positions[-1])


def test_diverged_model_keeps_its_best_and_others_are_unchanged() -> None:
    bowls = Bowls([1.0, 2.0, 3.0], lambda model, epoch: epoch)
    finite = bowls.loss

    def loss(epoch: Tensor) -> Tensor:
        losses = finite(epoch)
        factors = torch.ones(3)
        factors[1] = math.inf if epoch == 4 else 1
        return losses * factors

    bowls.loss = loss  # type: ignore[method-assign]
    loop = bowls.loop()
    loop.train(10)
    assert loop.diverged.tolist() == [False, True, False]
    assert loop.best_epoch.tolist() == [9, 3, 9]
    loop.restore()
    for model, best in enumerate([9, 3, 9]):
        positions, _ = adam_positions([1.0, 2.0, 3.0][model], 10)
        torch.testing.assert_close(bowls.position[model].detach(), positions[best])


@pytest.mark.parametrize("epochs", [1, EPOCHS_PER_SYNC - 1, EPOCHS_PER_SYNC, 2 * EPOCHS_PER_SYNC + 3])
def test_ticks_sum_to_epochs(epochs: int) -> None:
    ticks: list[int] = []
    bowls = Bowls([1.0], lambda model, epoch: 0.0)
    bowls.loop().train(epochs, ticks.append)
    assert sum(ticks) == epochs == len(bowls.epochs)
    assert max(ticks) <= EPOCHS_PER_SYNC


def test_layout_of_parameters_may_differ_from_models() -> None:
    """As in SGC, where one tensor holds the weights of all scales next to each other."""
    weight = torch.zeros(2, 6, requires_grad=True)  # [trials, scales · 3]
    models = weight.view(2, 2, 3)
    center = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    epoch_now = -1

    def loss(epoch: Tensor) -> Tensor:
        nonlocal epoch_now
        epoch_now = int(epoch)
        return (weight.view(2, 2, 3) - center.unsqueeze(-1)).square().sum(-1)

    def accuracy() -> Tensor:
        return torch.tensor([[0.0, epoch_now], [-epoch_now, 1.0]], dtype=torch.float)

    loop = Loop([weight], [models], loss, accuracy, learning_rate=[0.1] * 4, weight_decay=[0.01] * 4)
    loop.train(4)
    assert loop.curves is None
    assert loop.best_epoch.tolist() == [[0, 3], [0, 0]]
    loop.restore()
    for trial, scale in ((0, 0), (0, 1), (1, 0), (1, 1)):
        best = int(loop.best_epoch[trial, scale])
        expected = adam_positions(float(center[trial, scale]), 4)[0][best][0].expand(3)
        torch.testing.assert_close(weight.detach().view(2, 2, 3)[trial, scale], expected)


def test_denormals_are_flushed_only_during_training() -> None:
    def is_zero() -> bool:
        return float(torch.tensor(1e-310, dtype=torch.float64) + 0.0) == 0

    weight, results = torch.ones(1, requires_grad=True), []

    def loss(epoch: Tensor) -> Tensor:
        results.append(is_zero())
        return weight

    Loop([weight], [weight], loss, lambda: torch.zeros(1), learning_rate=[0.1], weight_decay=[0.0]).train(2)
    assert results == [True, True]
    assert not is_zero()


@pytest.mark.parametrize("rate", [[0.1, 0.1], [0.1, 0.3]], ids=str)
def test_loaded_state_resumes_training(rate: list[float]) -> None:
    def accuracy(model: int, epoch: int) -> float:
        return [0.1, 0.9, 0.2, 0.9, 0.3, 0.8, 0.95, 0.1][epoch] - model * epoch / 10

    whole, first, second = (Bowls([1.0, -3.0], accuracy) for _ in range(3))
    expected, interrupted, loop = (bowls.loop(learning_rate=rate) for bowls in (whole, first, second))
    expected.train(8)
    interrupted.train(5)
    saved = {name: value.clone() for name, value in interrupted.state().items()}
    assert loop.load_state(saved) == 5
    second.epochs = list(range(5))
    loop.train(3)
    assert second.epochs == list(range(8))
    for name, value in expected.state().items():
        torch.testing.assert_close(loop.state()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("decays", [[0.02] * 6, [0.0, 0.02, 0.02, 0.5, 0.5, 0.0]], ids=str)
@pytest.mark.parametrize("rates", [[0.1] * 6, [0.1, 0.3, 0.3, 0.02, 0.1, 0.1]], ids=str)
def test_models_may_have_separate_optimizers(rates: list[float], decays: list[float]) -> None:
    """As in SGC: [trials, variants · 4, 5] weights and [trials, variants] biases; 2 trials x 3 variants."""
    generator = torch.Generator().manual_seed(0)
    start, center = torch.randn(2, 6, 4, 5, dtype=torch.float64, generator=generator)
    weight = start.reshape(2, 12, 5).clone().requires_grad_()
    bias = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)

    def loss(weight: Tensor, bias: Tensor, center: Tensor) -> Tensor:
        return (weight - center).square().sum((-2, -1)) + (bias - center.mean((-2, -1))).pow(4)

    loop = Loop(
        [weight, bias],
        [weight.view(2, 3, 4, 5), bias],
        lambda epoch: loss(weight.view(2, 3, 4, 5), bias, center.view(2, 3, 4, 5)),
        lambda: torch.zeros(2, 3),
        learning_rate=rates,
        weight_decay=decays,
    )
    loop.train(30)
    for model in range(6):
        own = [
            start[model].clone().requires_grad_(),
            torch.zeros((), dtype=torch.float64, requires_grad=True),
        ]
        adam = torch.optim.Adam(own, lr=rates[model], weight_decay=decays[model], foreach=False)
        for _ in range(30):
            adam.zero_grad()
            loss(*own, center[model]).backward()
            adam.step()
        torch.testing.assert_close(weight.view(6, 4, 5)[model], own[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(bias.view(6)[model], own[1], rtol=1e-10, atol=1e-12)


def test_adam_equals_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = ([torch.ones(3, 5).requires_grad_(), torch.ones(2).requires_grad_()] for _ in range(2))
    adam = Adam([(ours[:1], 0.1, 0.01), (ours[1:], 0.02, 0.0)])
    reference = torch.optim.Adam(
        [{"params": theirs[:1], "lr": 0.1, "weight_decay": 0.01}, {"params": theirs[1:], "lr": 0.02}],
        fused=True,
    )
    for step in range(20):
        for own, other in zip(ours, theirs, strict=True):
            # At some steps a tensor has no gradient, and stays.
            own.grad = None if step % 3 == 0 and own.dim() == 1 else torch.randn_like(own)
            other.grad = own.grad
        adam.step()
        reference.step()
    assert all(torch.equal(own, other) for own, other in zip(ours, theirs, strict=True))
    for number, other in enumerate(theirs):
        for name, tensor in reference.state[other].items():
            assert torch.equal(adam.state()[f"{number}.{name}"], tensor)


def test_training_does_not_import_the_compiler() -> None:
    code = """
import sys
from pairnorm.data import csbm
from pairnorm.train import Spec, train
train(csbm(100), Spec("csbm", "GCN", 2, epochs=2), seeds=[0], device="cpu")
assert "torch._dynamo" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
