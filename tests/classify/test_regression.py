import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.classify.regression import LOOSE_TOLERANCE, TOLERANCE, fold_regressions, regressions, span
from pairnorm.data import Graph, row_normalize
from pairnorm.nn import normalized_adjacency, pair_norm

EXACT = 1e-13


def problem(rows: int, columns: int, unit: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    features = unit * torch.randn(rows, columns, generator=generator)
    return features, torch.randint(0, 3, (rows,), generator=generator)


def gradient(rows: Tensor, labels: Tensor, scale: float, weight: Tensor, bias: Tensor) -> Tensor:
    """The gradient of the objective as it is written in the docstring, by autograd, in float64."""
    weight, bias = (tensor.double().requires_grad_() for tensor in (weight, bias))
    logits = scale * rows.double() @ weight + bias
    loss = torch.nn.functional.cross_entropy(logits, labels) + weight.square().sum() / 2
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [weight, bias])])


@pytest.mark.parametrize(("rows", "columns"), [(60, 5), (12, 40)], ids=["tall", "wide"])
@pytest.mark.parametrize("unit", [1.0, 0.01])
def test_gradient_vanishes_at_each_scale(rows, columns, unit):
    features, labels = problem(rows, columns, unit)
    result = list(regressions(features, labels, 3, (10.0, 0.5, 2.0), EXACT))
    assert [scale for scale, _, _ in result] == [0.5, 2.0, 10.0]
    for scale, weight, bias in result:
        assert gradient(features, labels, scale, weight, bias).abs().max() < 1e-5


def test_solution_does_not_depend_on_earlier_scales():
    features, labels = problem(60, 5)
    *_, (_, weight, bias) = regressions(features, labels, 3, (1.0, 3.0, 10.0))
    ((_, alone, alone_bias),) = regressions(features, labels, 3, (10.0,))
    torch.testing.assert_close(weight, alone, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(bias, alone_bias, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(60, 5), (20, 40)], ids=["tall", "wide"])
def test_fold_solution_equals_regression_on_its_rows(rows, columns):
    features, labels = problem(rows, columns)
    folds = torch.stack([torch.arange(rows) % 3 != number for number in range(3)])
    target, scales = one_hot(labels, 3), (0.5, 30.0)
    for scale, weight, bias in fold_regressions(features, target, scales, folds, EXACT):
        for fold, own, constant in zip(folds, weight, bias, strict=True):
            assert gradient(features[fold], labels[fold], scale, own, constant).abs().max() < 1e-5


def test_weighted_soft_labels_equal_repeated_labels():
    """Where a class has probability 0.7, a row that counts for ten is seven of it and three of another."""
    features, labels = problem(30, 4)
    target = 0.7 * one_hot(labels, 3) + 0.3 * one_hot((labels + 1) % 3, 3)
    counts = 10.0 * (1 + torch.arange(30) % 2)
    ((_, weight, bias),) = fold_regressions(features, target, (3.0,), counts.unsqueeze(0), EXACT)
    repeated = torch.arange(30).repeat_interleave(1 + torch.arange(30) % 2)
    rows, repeated_labels = features[repeated].repeat(10, 1), labels[repeated]
    known = torch.cat([repeated_labels.repeat(7), ((repeated_labels + 1) % 3).repeat(3)])
    assert gradient(rows, known, 3.0, weight[0], bias[0]).abs().max() < 1e-5


def objective(rows: Tensor, labels: Tensor, scale: float, weight: Tensor, bias: Tensor) -> float:
    logits = scale * rows.double() @ weight.double() + bias.double()
    return float(torch.nn.functional.cross_entropy(logits, labels) + weight.double().square().sum() / 2)


@pytest.fixture(scope="module", params=[(5, "PN"), (20, "PN"), (20, "none")], ids=str)
def propagated(request: pytest.FixtureRequest, blanked_cora: Graph) -> tuple[Tensor, Tensor]:
    """The training rows of an SGC where most vectors are missing: the deeper, the worse conditioned."""
    depth, norm = request.param
    state, matrix = (
        row_normalize(blanked_cora.features).to_dense(),
        normalized_adjacency(blanked_cora.adjacency),
    )
    for _ in range(depth):
        state = matrix @ (state if norm == "none" else pair_norm(state))
    return pair_norm(state)[blanked_cora.train], blanked_cora.labels[blanked_cora.train]


def test_objective_is_as_low_as_scikit_learn(propagated):
    rows, labels = propagated
    # As few coordinates as there are rows, which changes neither problem nor solution.
    rows = rows @ torch.linalg.qr(rows.T.double())[0].float()
    for scale, weight, bias in regressions(rows, labels, 7, (1.0, 10.0, 100.0, 300.0, 10_000.0)):
        theirs = LogisticRegression(C=scale**2 / len(rows), solver="newton-cholesky", tol=1e-8, max_iter=500)
        theirs.fit(rows.double(), labels)
        coefficients, intercept = torch.from_numpy(theirs.coef_.T), torch.from_numpy(theirs.intercept_)
        expected = objective(rows, labels, scale, coefficients / scale, intercept)
        assert objective(rows, labels, scale, weight, bias) < expected + 1e-5


def test_loose_solution_has_nearly_optimal_objective(propagated):
    rows, labels = propagated
    scales = (1.0, 30.0, 300.0)
    exact, loose = (
        list(regressions(rows, labels, 7, scales, limit)) for limit in (TOLERANCE, LOOSE_TOLERANCE)
    )
    for (scale, *best), (_, *result) in zip(exact, loose, strict=True):
        gap = objective(rows, labels, scale, *result) - objective(rows, labels, scale, *best)
        assert -1e-6 < gap < 1e-3


def test_large_scale_alone_equals_warm_start(propagated):
    rows, labels = propagated
    *_, (_, weight, bias) = regressions(rows, labels, 7, (1.0, 30.0, 300.0))
    ((_, alone, alone_bias),) = regressions(rows, labels, 7, (300.0,))
    together, apart = (
        objective(rows, labels, 300.0, *result) for result in ((weight, bias), (alone, alone_bias))
    )
    assert together == pytest.approx(apart, abs=1e-6)


def test_failed_eigh_gives_the_same_solution(monkeypatch):
    features, labels = problem(12, 40)
    (expected,) = regressions(features, labels, 3, (10.0,))

    def fail(gram: Tensor) -> None:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    (result,) = regressions(features, labels, 3, (10.0,))
    for one, other in zip(result[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other)


def test_zero_rows_give_class_frequencies():
    ((_, weight, bias),) = regressions(torch.zeros(4, 3), torch.tensor([0, 1, 1, 1]), 2, (1.0,))
    assert not weight.any()
    torch.testing.assert_close(bias.softmax(0), torch.tensor([0.25, 0.75]), atol=1e-5, rtol=0)


def test_zero_columns_give_class_frequencies():
    ((_, weight, bias),) = regressions(torch.zeros(4, 0), torch.tensor([0, 1, 1, 1]), 2, (1.0,))
    assert weight.shape == (0, 2)
    torch.testing.assert_close(bias.softmax(0), torch.tensor([0.25, 0.75]), atol=1e-5, rtol=0)


def test_number_of_threads_is_restored():
    torch.set_num_threads(2)
    list(regressions(*problem(10, 3), 3, (1.0,)))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_span_keeps_distances_and_pair_norm():
    features = torch.zeros(30, 50)
    features[:8] = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    basis, reduced = span(features)
    assert basis is not None
    assert reduced.shape == (30, 8)
    torch.testing.assert_close(reduced @ basis.T, features, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(reduced @ reduced.T, features @ features.T, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(pair_norm(reduced) @ basis.T, pair_norm(features), atol=1e-5, rtol=1e-5)


def test_span_keeps_full_rank_features():
    features = torch.randn(30, 5)
    basis, reduced = span(features)
    assert basis is None
    assert reduced is features
