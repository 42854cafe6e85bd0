import pytest
import torch
from torch import Tensor

from pairnorm.impute import methods
from pairnorm.impute.methods import (
    apply_linear,
    broadcast_mask,
    diffuse,
    divide_or_zero,
    known_values,
    map_column_blocks,
)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(14, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_masks_share_the_features(x: Tensor) -> None:
    missing = torch.rand(14, 3, 1, generator=torch.Generator().manual_seed(0)) < 0.5
    values = known_values(x, broadcast_mask(x, missing))
    for index in range(3):
        assert torch.equal(values[:, index], known_values(x, missing[:, index]))


@pytest.mark.parametrize("shape", [(13,), (14, 3), (14, 2, 3), (1, 5), (14, 1, 1, 5), ()])
def test_mask_of_wrong_shape_raises(x: Tensor, shape: tuple[int, ...], raises) -> None:
    with raises("wrong-shape", value=list(shape)) as caught:
        broadcast_mask(x, torch.ones(shape, dtype=torch.bool))
    assert caught.value.expected == "bool [14], [14, 5], [14, num_masks, 1] or [14, num_masks, 5]"


def test_types_are_checked(x: Tensor, raises) -> None:
    missing = torch.ones(14, dtype=torch.bool)
    with raises("wrong-shape"):
        broadcast_mask(x, torch.ones(14))
    with raises("wrong-shape", value=[14, 5]):
        broadcast_mask(x.long(), missing)
    for arguments in ((x.numpy(), missing), (x, missing.numpy())):
        with raises("wrong-type", expected="a tensor"):
            broadcast_mask(*arguments)


def test_division_without_weight_is_zero() -> None:
    assert divide_or_zero(torch.tensor([6.0, 0.0]), torch.tensor([2.0, 0.0])).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("rows", [[3], [2, 8], [], [0, 1, 2, 3, 4, 5, 6]])
def test_weights_of_known_vectors_equal_features(x: Tensor, rows: list[int]) -> None:
    missing = torch.ones(14, 1, dtype=torch.bool)
    missing[rows] = False
    matrix = torch.rand(14, 14, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 14
    gate = missing.double()
    imputed = apply_linear(lambda values: diffuse(matrix.__matmul__, values, gate, steps=9), x, missing)
    direct = diffuse(matrix.__matmul__, known_values(x, missing), gate, steps=9)
    torch.testing.assert_close(imputed, direct)


@pytest.mark.parametrize("shape", [(14, 200), (14, 3, 70), (14, 0), (0, 5)])
def test_column_blocks_are_concatenated(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_BLOCK_ELEMENTS", 1)
    values, factor = torch.rand(shape), torch.rand(*shape[:-1], 1)
    widths = []

    def multiply(values: Tensor, factor: Tensor) -> Tensor:
        widths.append(values.size(-1))
        return values * factor

    assert torch.equal(map_column_blocks(multiply, values, factor), values * factor)
    assert max(widths) <= 32
    assert sum(widths) == shape[-1]
