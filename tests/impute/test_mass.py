import pytest
import torch
from torch import Tensor

from pairnorm.impute import mass, mass_states
from pairnorm.nn import SparseMatrix


def brute_force(matrix: SparseMatrix, features: Tensor, known: Tensor, steps: int) -> Tensor:
    """Weigh every known value by the sum over all walks of ``steps`` edges that lead to it."""
    power = torch.linalg.matrix_power(matrix.to_dense().double(), steps)
    mask = (known if known.dim() == 2 else known[:, None]).expand_as(features)
    expected = torch.zeros_like(features)
    for node in range(len(features)):
        for column in range(features.size(1)):
            there = [k for k in range(len(features)) if mask[k, column] and power[node, k] > 0]
            total = sum(float(power[node, k]) for k in there)
            if there:
                expected[node, column] = (
                    sum(float(power[node, k] * features[k, column]) for k in there) / total
                )
    return expected


def test_every_depth_is_a_mean_over_what_is_known(
    matrix: SparseMatrix, features: Tensor, known: Tensor
) -> None:
    for depth, state in enumerate(mass_states(matrix, features, known, steps=12)):
        torch.testing.assert_close(state, brute_force(matrix, features, known, depth))
    assert depth == 12


def test_the_fill_is_the_last_state_where_something_is_missing(
    matrix: SparseMatrix, features: Tensor, known: Tensor
) -> None:
    *_, last = mass_states(matrix, features, known, steps=6)
    mask = known if known.dim() == 2 else known[:, None]
    torch.testing.assert_close(mass(matrix, features, known, steps=6), torch.where(mask, features, last))


def test_without_gaps_it_is_plain_propagation(walk: SparseMatrix, features: Tensor) -> None:
    plain = features
    for state in mass_states(walk, features, torch.ones(14, dtype=torch.bool), steps=5):
        torch.testing.assert_close(state, plain)
        plain = walk @ plain


def test_a_step_is_a_convolution_of_pagnn(matrix: SparseMatrix, features: Tensor) -> None:
    """(P 1) ∘ P (M ∘ X) / (P M) of PaGNN, but for P 1, which is one if rows add up to it."""
    known = torch.rand(14, 5, generator=torch.Generator().manual_seed(3)) < 0.5
    dense, shown = matrix.to_dense().double(), known.double()
    ratio = ((dense @ (shown * features)) / (dense @ shown)).nan_to_num()
    _, state = mass_states(matrix, features, known, steps=1)
    torch.testing.assert_close(state, ratio)


def test_a_constant_stays_constant_at_once(matrix: SparseMatrix) -> None:
    known = torch.zeros(14, dtype=torch.bool)
    known[6] = True
    filled = mass(matrix, torch.full((14, 3), -4.0), known, steps=3)
    far = torch.tensor([1, 2, 3, 4, 11, 12, 13])
    assert filled[[0, 5, 6, 7, 8, 9, 10]].unique().tolist() == pytest.approx([-4.0], rel=1e-6)
    assert filled[far[4:]].unique().tolist() == [0.0]


def test_trials_pass_through_every_depth_as_each_would_alone(walk: SparseMatrix, features: Tensor) -> None:
    known = torch.rand(14, 3, 1, generator=torch.Generator().manual_seed(4)) < 0.4
    alone = [mass_states(walk, features, known[:, trial], steps=4) for trial in range(3)]
    for together, *states in zip(mass_states(walk, features, known, steps=4), *alone, strict=True):
        torch.testing.assert_close(together, torch.stack(states, 1))
