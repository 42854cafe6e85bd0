import torch
from torch import Tensor

from pairnorm.classify.minimise import minimise


def test_a_quadratic_is_solved_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + 0.1 * torch.eye(20)
    goal = torch.randn(20, generator=generator, dtype=torch.float64)

    def function(point: Tensor) -> tuple[float, Tensor]:
        slope = matrix @ point - goal
        return float(point @ matrix @ point / 2 - goal @ point), slope

    found = minimise(function, torch.zeros(20, dtype=torch.float64))
    torch.testing.assert_close(found, torch.linalg.solve(matrix, goal), atol=1e-3, rtol=1e-3)


def test_a_start_at_the_least_point_stays_there() -> None:
    start = torch.ones(3, dtype=torch.float64)
    calls = []

    def function(point: Tensor) -> tuple[float, Tensor]:
        calls.append(point)
        return float((point - 1).square().sum()), 2 * (point - 1)

    assert torch.equal(minimise(function, start), start)
    assert len(calls) == 1


def test_steps_are_counted() -> None:
    calls = []

    def function(point: Tensor) -> tuple[float, Tensor]:
        calls.append(point)
        return float(point.pow(4).sum()), 4 * point.pow(3)

    minimise(function, torch.full((2,), 3.0, dtype=torch.float64), steps=3)
    assert 4 <= len(calls) <= 12
