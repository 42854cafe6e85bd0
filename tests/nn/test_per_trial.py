import torch
from torch import nn

from pairnorm.nn.norms import BatchNorm
from pairnorm.nn.per_trial import PerTrial


class Nested(nn.Module):
    """Parameters with dots in their names, buffers, and one that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))

    def forward(self, x):
        return self.inner(x)


def test_copies_equal_modules_made_under_their_seeds():
    stacked, seeds = PerTrial(Nested, 3), [11, 12, 11]
    before = torch.get_rng_state()
    stacked.reset_parameters(seeds)
    assert torch.equal(torch.get_rng_state(), before)
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(Nested())
    for training in (True, True, False):
        x = torch.randn(12, 3, 5)
        y = stacked.train(training)(x)
        y.square().sum().backward()
        for trial, module in enumerate(modules):
            expected = module.train(training)(x[:, trial])
            torch.testing.assert_close(y[:, trial], expected)
            expected.square().sum().backward()
            for ours, theirs in zip(stacked.stacked, module.parameters(), strict=True):
                torch.testing.assert_close(ours.grad[trial], theirs.grad)
    assert torch.equal(stacked.stacked[0][0], stacked.stacked[0][2])
    assert all(tensor.shape[0] == 3 for tensor in (*stacked.parameters(), *stacked.buffers()))


def test_torchs_batch_norm_is_ours():
    theirs, ours = PerTrial(lambda: nn.BatchNorm1d(4), 2), BatchNorm(4, trials=2)
    for _ in range(3):
        x = torch.randn(9, 2, 4) * 3 + 1
        torch.testing.assert_close(theirs(x), ours(x))
    torch.testing.assert_close(theirs.eval()(x), ours.eval()(x))
