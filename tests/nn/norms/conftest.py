"""Batches of graphs and comparisons that the tests of the norms share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture(
    params=[
        None,
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2],
        [2, 0, 1, 2, 2, 0, 1, 0, 2, 1, 0, 0],
        [1, 1, 4, 4, 4, 1, 6, 6, 6, 4, 1, 6],
    ],
    ids=["one graph", "sorted", "unsorted", "empty graphs"],
)
def batch(request: pytest.FixtureRequest) -> Tensor | None:
    """The graph of each of twelve nodes."""
    return None if request.param is None else torch.tensor(request.param)


@pytest.fixture
def near() -> Callable[..., None]:
    """Compare in float64; the default leaves rounding of float64 only."""

    def check(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
        torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)

    return check
