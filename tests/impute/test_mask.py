import torch
from torch import Tensor

from pairnorm.impute import mask, mean, zero
from pairnorm.nn import SparseMatrix


def test_indicators_stand_beside_the_values(walk: SparseMatrix, features: Tensor, known: Tensor) -> None:
    for fill in (zero, mean):
        result = mask(walk, features, known, fill=fill)
        assert torch.equal(result[:, :5], fill(walk, features, known))
        indicators = result[:, 5:]
        assert indicators.size(1) == (5 if known.dim() == 2 else 1)
        assert torch.equal(indicators == 0, known.view(14, -1))
        assert set(indicators.unique().tolist()) <= {0.0, 1.0}


def test_zero_is_the_fill_it_was_published_with(walk: SparseMatrix, features: Tensor, known: Tensor) -> None:
    assert torch.equal(mask(walk, features, known), mask(walk, features, known, fill=zero))


def test_every_trial_has_its_indicator(walk: SparseMatrix, features: Tensor) -> None:
    known = torch.rand(14, 3, 1, generator=torch.Generator().manual_seed(0)) < 0.5
    assert torch.equal(mask(walk, features, known)[..., 5:], (~known).double())
