import pytest
import torch
from torch import Tensor

from pairnorm.impute import known
from pairnorm.impute.known import diffuse, divided, in_blocks, mask_of, observed, through_weights
from pairnorm.nn import SparseMatrix


def test_only_what_is_known_is_read(features: Tensor, known: Tensor) -> None:
    mask = mask_of(features, known)
    shown = torch.where(mask, features, torch.nan)
    expected = [
        [float(x) if k else 0.0 for x, k in zip(row, ks, strict=True)]
        for row, ks in zip(features, mask.expand_as(features), strict=True)
    ]
    assert observed(shown, mask).tolist() == expected


def test_sparse_features_are_those_they_stand_for(features: Tensor, known: Tensor) -> None:
    mask = mask_of(features, known)
    assert torch.equal(observed(features.to_sparse_csr(), mask), observed(features, mask))


def test_trials_share_the_features_each_with_its_mask(features: Tensor) -> None:
    known = torch.rand(14, 3, 1, generator=torch.Generator().manual_seed(0)) < 0.5
    values = observed(features, mask_of(features, known))
    for trial in range(3):
        assert torch.equal(values[:, trial], observed(features, known[:, trial]))


@pytest.mark.parametrize("shape", [(13,), (14, 3), (14, 2, 3), (1, 5), (14, 1, 1, 5), ()])
def test_a_mask_of_another_shape_is_refused(features: Tensor, shape: tuple[int, ...], raises) -> None:
    with raises("wrong-shape", value=shape) as caught:
        mask_of(features, torch.ones(shape, dtype=torch.bool))
    assert caught.value.expected == "bool [14], [14, 5], [14, trials, 1] or [14, trials, 5]"


def test_numbers_are_no_mask_and_integers_are_no_features(features: Tensor, raises) -> None:
    with raises("wrong-shape"):
        mask_of(features, torch.ones(14))
    with raises("wrong-shape", value=(14, 5)):
        mask_of(features.long(), torch.ones(14, dtype=torch.bool))


def test_what_is_no_tensor_is_refused(features: Tensor, known: Tensor, raises) -> None:
    for given in ((features.numpy(), known), (features, known.numpy())):
        with raises("wrong-type", expected="a tensor"):
            mask_of(*given)


def test_without_weight_it_is_zero() -> None:
    assert divided(torch.tensor([6.0, 0.0]), torch.tensor([2.0, 0.0])).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("rows", [[3], [2, 8], [], [0, 1, 2, 3, 4, 5, 6]])
def test_the_weights_of_known_vectors_tell_all(
    matrix: SparseMatrix, features: Tensor, rows: list[int]
) -> None:
    mask = torch.zeros(14, 1, dtype=torch.bool)
    mask[rows] = True
    walked = []

    def fill(values: Tensor) -> Tensor:
        walked.append(values.size(1))
        return diffuse(matrix, values, (~mask).double(), 9)

    filled = through_weights(fill, features, mask)
    assert walked == [len(rows) if len(rows) < 3 else 5]
    torch.testing.assert_close(filled, fill(observed(features, mask)))


def test_trials_with_other_known_vectors_share_the_weights(matrix: SparseMatrix, features: Tensor) -> None:
    known = torch.zeros(14, 2, 1, dtype=torch.bool)
    known[2, 0], known[[2, 9], 1] = True, True
    gate = (~known).double()
    filled = through_weights(lambda values: diffuse(matrix, values, gate, 9), features, known)
    torch.testing.assert_close(filled, diffuse(matrix, observed(features, known), gate, 9))


@pytest.mark.parametrize("shape", [(14, 200), (14, 3, 70), (14, 0), (0, 5)])
def test_blocks_are_put_together_again(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_BLOCK", 1)
    values, factor = torch.rand(shape), torch.rand(*shape[:-1], 1)
    widths = []

    def walk(values: Tensor, factor: Tensor) -> Tensor:
        widths.append(values.size(-1))
        return values * factor

    assert torch.equal(in_blocks(walk, values, factor), values * factor)
    assert max(widths) <= 32
    assert sum(widths) == shape[-1]


@pytest.mark.parametrize("rows", [[1, 4], [0, 1, 2, 3, 4, 5, 6]])
def test_what_is_filled_is_differentiable(matrix: SparseMatrix, features: Tensor, rows: list[int]) -> None:
    mask = torch.zeros(14, 1, dtype=torch.bool)
    mask[rows] = True

    def fill(features: Tensor) -> Tensor:
        gate = (~mask).to(features.dtype)
        return through_weights(lambda values: diffuse(matrix, values, gate, 3), features, mask)

    assert torch.autograd.gradcheck(fill, features.requires_grad_())
