import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import SAGEConv

from pairnorm.nn import normalized_adjacency
from pairnorm.nn.norms import BatchNorm
from pairnorm.nn.ops.dropout import draw_keys
from pairnorm.train.methods import ModelPerTrial, PerTrial


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Nested(nn.Module):
    """Parameters with dots in their names, buffers, and one that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))

    def forward(self, x):
        return self.inner(x)


def test_copies_equal_modules_initialized_from_their_seeds():
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


def test_batch_norm_per_trial_equals_ours():
    theirs, ours = PerTrial(lambda: nn.BatchNorm1d(4), 2), BatchNorm(4, num_models=2)
    for _ in range(3):
        x = torch.randn(9, 2, 4) * 3 + 1
        torch.testing.assert_close(theirs(x), ours(x))
    torch.testing.assert_close(theirs.eval()(x), ours.eval()(x))


class Sage(nn.Module):
    """A model as anybody would write it, with what no model here has: another aggregation, BatchNorm1d."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(6, 8), SAGEConv(8, 3)
        self.norm = nn.BatchNorm1d(8)

    def hidden(self, x, edge_index):
        h = self.norm(self.first(x, edge_index)).relu()
        return F.dropout(h, 0.5, self.training)

    def forward(self, x, edge_index):
        return self.second(self.hidden(x, edge_index), edge_index)


@pytest.mark.parametrize("form", ["dense", "sparse", "by trial"])
def test_model_copies_equal_models_initialized_from_their_seeds(form, edge_index):
    """States, gradients, running statistics and what dropout draws; edges come back without self-loops."""
    seeds, nodes = [11, 12, 11], 20
    together = ModelPerTrial(Sage, 3)
    together.reset_parameters(seeds)
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(Sage())
    x = torch.randn(nodes, 6)
    given = {
        "dense": x,
        "sparse": x.to_sparse_csr(),
        "by trial": x[:, None] * torch.tensor([1.0, 2, 3])[:, None],
    }
    adjacency = normalized_adjacency(edge_index, num_nodes=nodes)
    for training in (True, True, False):
        keys = draw_keys(1, 2, 3)
        before = torch.get_rng_state()
        hidden, logits = together.train(training).hidden_and_logits(given[form], adjacency, keys)
        assert torch.equal(torch.get_rng_state(), before)
        logits.square().sum().backward()
        for trial, model in enumerate(models):
            own = given[form][:, trial] if form == "by trial" else x
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(keys[0, 0, trial]))
                h = model.train(training).hidden(own, edge_index)
            expected = model.second(h, edge_index)
            torch.testing.assert_close(hidden[:, trial], h)
            torch.testing.assert_close(logits[:, trial], expected)
            expected.square().sum().backward()
            for ours, theirs in zip(together.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(ours.grad[trial], theirs.grad, rtol=1e-4, atol=1e-5)


def test_model_without_convolutions_returns_logits_as_state(edge_index):
    class Perceptron(nn.Linear):
        def forward(self, x, edge_index):
            return super().forward(x)

    hidden, logits = ModelPerTrial(lambda: Perceptron(6, 3), 2).hidden_and_logits(
        torch.randn(20, 6), edge_index
    )
    assert torch.equal(hidden, logits)
