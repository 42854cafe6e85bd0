import torch
from torch import Tensor

from pairnorm.impute import mean, zero
from pairnorm.nn import SparseMatrix


def test_a_missing_entry_is_the_mean_of_the_known_ones(
    walk: SparseMatrix, features: Tensor, known: Tensor
) -> None:
    mask = (known if known.dim() == 2 else known[:, None]).expand(14, 5)
    expected = torch.zeros(14, 5, dtype=torch.float64)
    for column in range(5):
        there = [float(features[node, column]) for node in range(14) if mask[node, column]]
        for node in range(14):
            if mask[node, column]:
                expected[node, column] = features[node, column]
            elif there:
                expected[node, column] = sum(there) / len(there)
    torch.testing.assert_close(mean(walk, features, known), expected)


def test_every_trial_has_its_own_mean(walk: SparseMatrix, features: Tensor) -> None:
    known = torch.rand(14, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    together = mean(walk, features, known)
    for trial in range(4):
        torch.testing.assert_close(together[:, trial], mean(walk, features, known[:, trial]))


def test_zero_is_what_is_left(walk: SparseMatrix, features: Tensor, known: Tensor) -> None:
    filled = zero(
        walk, torch.where(known if known.dim() == 2 else known[:, None], features, torch.nan), known
    )
    assert torch.equal(filled != 0, (known if known.dim() == 2 else known[:, None]).expand(14, 5))
