"""Logistic regressions by L-BFGS along a path of scales, and when to end a path of scales or depths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.nn import Normalization
from pairnorm.train.spec import Norm

# Newton decrements (twice the expected decrease of the objective) at which a solve has converged: for the
# delivered model, for comparing candidates, and for comparing them where a solve is expensive: there held-out
# losses agree in three digits.
TOLERANCE, LOOSE_TOLERANCE, DRAFT_TOLERANCE = 1e-10, 1e-7, 1e-4
# Share of the variance that the axes explain to which such a solve is restricted.
EXPLAINED, MAX_AXES = 0.99, 512
MAX_STEPS, MEMORY = 1000, 10
MAX_PENALTY = 1e30
# The diagonal of the Hessian is recomputed after this many steps.
REFRESH_STEPS = 10
SUFFICIENT_DECREASE, SMALLEST_STEP = 1e-4, 1e-10
# Below this many numbers, waking a second thread takes longer than the work it would share.
MIN_PARALLEL_SIZE = 2**20
SCALES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4)
# Training nodes that select a depth, and those that the model is then fitted to where there are many nodes.
MAX_SELECTION_ROWS, MAX_TRAINING_ROWS = 4000, 20_000
# An expensive propagation ends after this many depths in a row without a smaller loss.
PATIENCE = 3
# A path of scales ends after this many larger losses in a row, or one where regressions are expensive.
SCALE_PATIENCE = 2
# A scale whose loss is larger than the smallest one by this factor overfits.
MAX_LOSS_RATIO = 2.0


def regressions(
    rows: Tensor, labels: Tensor, classes: int, scales: Sequence[float], tolerance: float = TOLERANCE
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield (s, W, b) for every scale: ``fold_regressions`` of one fold with all rows and known labels."""
    one_fold = torch.ones(1, len(rows), device=rows.device)
    for scale, weight, bias in fold_regressions(rows, one_hot(labels, classes), scales, one_fold, tolerance):
        yield scale, weight[0], bias[0]


def fold_regressions(
    rows: Tensor,
    target: Tensor,
    scales: Sequence[float],
    folds: Tensor,
    tolerance: float = TOLERANCE,
    axes: Tensor | None = None,
) -> Iterator[tuple[float, Tensor, Tensor]]:
    r"""Yield (s, W, b) for every scale s, from small to large: the logistic regression on rows s·x.

    $$
    \min_{\mathbf{W}, \mathbf{b}} \; \text{mean cross-entropy}(s \mathbf{X} \mathbf{W} + \mathbf{b})
    + \tfrac{1}{2} \|\mathbf{W}\|_F^2
    $$

    The problem is convex: there is one solution for every seed. The scale is the strength of regularization
    (in V = sW the penalty is ‖V‖² / 2s²), so each scale starts from the answer of the one before. All folds
    are solved at once in the principal coordinates of the centered rows, at most as many as there are rows:
    there the Hessian is nearly diagonal, and its diagonal preconditions L-BFGS.

    Args:
        rows: float [m, d], the training nodes.
        target: [m, classes], the probability of each class; one-hot where the label is known.
        scales: PairNorm's s.
        folds: [folds, m], the weight of each row in the mean of a fold: W is [folds, d, classes].
        tolerance: the Newton decrement at which a fold has converged.
        axes: [d, r], orthonormal, to which the weights are restricted; solved in single precision. Default:
            all principal axes of the rows, in double precision.
    """
    device = rows.device
    if rows.numel() < MIN_PARALLEL_SIZE:  # a GPU would wait for the start of each of thousands of operations
        rows, target, folds = rows.cpu(), target.cpu(), folds.cpu()
        axes = None if axes is None else axes.cpu()
    if axes is None:
        rows = rows.double()
        center = rows.mean(0)
        basis, rows = principal(rows - center)
    else:
        center, basis = rows.mean(0), axes
        rows = (rows - center) @ axes
    # Rows of norm one on average in any unit, so that one tolerance supports all.
    unit = max(float(rows.square().sum(1).mean().sqrt()), 1e-30)
    rows = torch.cat([rows / unit, rows.new_ones(len(rows), 1)], 1)
    shares = (folds.T.to(rows) / folds.sum(1)).unsqueeze(2)
    problem = _Problem(rows, target.to(rows).unsqueeze(1), shares)
    weight = rows.new_zeros(rows.shape[1], len(folds), target.shape[1])
    for scale in sorted(scales):
        penalty = torch.full_like(weight[:, :1, :1], min(1 / (scale * unit) ** 2, MAX_PENALTY))
        penalty[-1] = 0  # the bias
        with _threads(rows.numel()):
            weight = _minimize(problem, penalty, weight, tolerance)
        scaled = torch.einsum("dr,rkc->kdc", basis, weight[:-1]) / unit
        bias = weight[-1] - torch.einsum("d,kdc->kc", center, scaled)
        bias = bias - bias.mean(1, keepdim=True)  # a constant for all classes changes nothing
        yield scale, (scaled / scale).float().to(device), bias.float().to(device)


class _Problem(NamedTuple):
    """Cross-entropy of several folds: rows [m, d], target [m, 1, classes], shares of rows [m, folds, 1]."""

    rows: Tensor
    target: Tensor
    shares: Tensor

    def loss(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of every fold, [1, folds, 1], and the probabilities, [m, folds, classes]."""
        logarithms = logits.log_softmax(2)
        return -_sum(self.shares * self.target * logarithms), logarithms.exp()

    def gradient(self, probabilities: Tensor) -> Tensor:
        """Return the gradient of the loss, [d, folds, classes]."""
        return _product(self.rows.T, self.shares * (probabilities - self.target))

    def curvature(self, probabilities: Tensor) -> Tensor:
        """Return the diagonal of the Hessian of the loss, [d, folds, classes]."""
        return _product(self.rows.T.square(), self.shares * probabilities * (1 - probabilities))


def _minimize(problem: _Problem, penalty: Tensor, weight: Tensor, tolerance: float) -> Tensor:
    """Minimize loss + Σ penalty · weight² / 2 by L-BFGS and return the weights (Nocedal & Wright, alg. 7.5).

    A converged fold does not move any more, so that no fold depends on another. A step needs two products
    with the rows: logits are linear in the weights, so that halving a step costs none.
    """
    history: list[tuple[Tensor, Tensor, Tensor]] = []
    logits = _product(problem.rows, weight)
    loss, probabilities = problem.loss(logits)
    value = loss + _sum(penalty / 2 * weight.square())
    gradient = problem.gradient(probabilities) + penalty * weight
    moving = torch.ones_like(value, dtype=torch.bool)
    for step in range(MAX_STEPS):
        if step % REFRESH_STEPS == 0:
            diagonal = problem.curvature(probabilities) + penalty + 1e-15
        moving = moving & (_sum(gradient.square() / diagonal) > tolerance)
        if not moving.any():
            break
        direction = -_inverse_hessian(gradient, diagonal, history)
        uphill = _sum(gradient * direction) > 0  # by rounding
        direction = torch.where(uphill, -gradient / diagonal, direction) * moving
        descent = _sum(gradient * direction)
        change, share = _product(problem.rows, direction), moving.to(weight)
        while True:
            new_weight, new_logits = weight + share * direction, logits + share * change
            loss, probabilities = problem.loss(new_logits)
            new_value = loss + _sum(penalty / 2 * new_weight.square())
            short = new_value > value + SUFFICIENT_DECREASE * share * descent
            if not (short & (share > 0)).any():
                break
            share = torch.where(short, torch.where(share > SMALLEST_STEP, share / 2, 0), share)
        if not share.any():  # rounding hides any further gain
            break
        new_gradient = problem.gradient(probabilities) + penalty * new_weight
        moved, turned = new_weight - weight, new_gradient - gradient
        curvature = _sum(moved * turned)
        history.append((moved, turned, torch.where(curvature > 0, 1 / curvature, 0)))
        del history[:-MEMORY]
        weight, logits, value, gradient = new_weight, new_logits, new_value, new_gradient
    return weight


def _inverse_hessian(
    gradient: Tensor, diagonal: Tensor, history: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> Tensor:
    """Return the L-BFGS approximation of Hessian⁻¹ · gradient (Nocedal & Wright, algorithm 7.4)."""
    factors = []
    for moved, turned, inverse in reversed(history):
        factors.append(inverse * _sum(moved * gradient))
        gradient = gradient - factors[-1] * turned
    result = gradient / diagonal
    for (moved, turned, inverse), factor in zip(history, reversed(factors), strict=True):
        result = result + moved * (factor - inverse * _sum(turned * result))
    return result


def _product(matrix: Tensor, weight: Tensor) -> Tensor:
    return (matrix @ weight.flatten(1)).view(-1, *weight.shape[1:])


def _sum(values: Tensor) -> Tensor:
    """Return the sum of every fold, [1, folds, 1]."""
    return values.sum((0, 2), keepdim=True)


@contextmanager
def _threads(size: int) -> Iterator[None]:
    """Keep small work on one thread."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if size < MIN_PARALLEL_SIZE else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the principal axes V [d, r] of the rows, the leading one last, and the coordinates X V.

    The best weights lie in their span, and the Hessian is nearly diagonal in them. The work is that of the
    smaller dimension.
    """
    wide = rows.shape[0] < rows.shape[1]
    values, vectors = _eigen(rows @ rows.T if wide else rows.T @ rows)
    precision = 1e-14 if values.dtype == torch.float64 else 1e-6
    positive = values > precision * values[-1:].clamp(min=1e-30)  # ascending; empty where there is no column
    values, vectors = values[positive], vectors[:, positive]
    if not wide:
        return vectors, rows @ vectors
    return rows.T @ (vectors / values.sqrt()), vectors * values.sqrt()


def leading_axes(rows: Tensor, max_axes: int = MAX_AXES) -> Tensor:
    """Return the leading principal axes of dense or sparse rows, [d, r], with most of their variance.

    Where rows and columns are many more than ``max_axes``, a randomized decomposition finds them.
    """
    rows = rows.float()
    total = (rows.coalesce().values() if rows.is_sparse else rows).square().sum()
    if min(rows.shape) > 2 * max_axes:
        with torch.random.fork_rng([] if rows.device.type == "cpu" else [rows.device]):
            torch.manual_seed(0)
            _, values, axes = torch.svd_lowrank(rows, q=max_axes, niter=1)
        squares = values.square()
    else:
        axes, coordinates = principal(rows.to_dense())
        axes, squares = axes.flip(1)[:, :max_axes], coordinates.square().sum(0).flip(0)[:max_axes]
    explained = squares.cumsum(0) / total
    return axes[:, : int((explained < EXPLAINED).sum()) + 1].contiguous()


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of a symmetric matrix."""
    try:
        values, vectors = torch.linalg.eigh(gram)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        from scipy.linalg import eigh

        # Divide and conquer sometimes does not converge where many eigenvalues are equal; QR always does.
        values, vectors = (torch.from_numpy(part).to(gram) for part in eigh(gram.cpu().numpy(), driver="ev"))
    return values, vectors


def span(features: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return an orthonormal basis Q [d, r] of the rows of X that are not zero, and X Q [n, r].

    Norms and distances of rows stay as they are under Q, so that propagation, PairNorm and regression
    may work in r columns instead of d: 140 instead of 1,433 where only 140 papers of Cora have words.
    Where most rows are not zero, X is returned as it is, without a basis.
    """
    known = features.any(1)
    if int(known.sum()) > features.shape[1] // 2:
        return None, features
    basis, triangle = torch.linalg.qr(features[known].double().T)
    reduced = features.new_zeros(features.shape[0], basis.shape[1])
    reduced[known] = triangle.T.float()
    return basis.float(), reduced


class HasLoss(Protocol):
    """An evaluated candidate."""

    @property
    def validation_loss(self) -> float:
        """Mean cross-entropy."""


Result = TypeVar("Result", bound=HasLoss)


@dataclass(frozen=True)
class SearchLimits:
    """Early stopping along paths of scales and depths, for graphs in memory and packed graphs.

    With many nodes, a propagation step is expensive. ``numbers`` is the size of a regression: training nodes
    times columns, in every fold. Other metrics than the loss may prefer overconfident candidates.
    """

    many_nodes: bool
    numbers: int
    metric: str = "loss"
    exhaustive: bool = True

    @property
    def is_expensive(self) -> bool:
        """Whether a regression takes long."""
        return self.numbers >= MIN_PARALLEL_SIZE

    def scales(self, results: Iterable[Result]) -> Iterator[Result]:
        """Yield results from the smallest scale to the largest, and stop where larger ones only overfit.

        The less a regression is regularized, the longer it takes.
        """
        best, worse = inf, 0
        for result in results:
            yield result
            worse = worse + 1 if result.validation_loss > best else 0
            if worse == (1 if self.is_expensive else SCALE_PATIENCE) and not self.exhaustive:
                break
            if self.is_expensive and self.metric == "loss" and result.validation_loss > MAX_LOSS_RATIO * best:
                break
            best = min(best, result.validation_loss)

    def depths(
        self,
        depths: Sequence[int],
        results: Iterable[Iterable[Result]],
        tick: Callable[[str], None],
        name: str,
    ) -> Iterator[tuple[int, list[Result]]]:
        """Yield (depth, results) of a propagation, and stop where a step is expensive and none gains.

        ``tick`` is called after every depth, also for those left out.
        """
        best, waited = inf, 0
        for number, (depth, by_scale) in enumerate(zip(depths, results, strict=False), 1):
            evaluated = list(self.scales(by_scale))
            loss = min(result.validation_loss for result in evaluated)
            best, waited = (loss, 0) if loss < best else (best, waited + 1)
            yield depth, evaluated
            tick(f"{name}, depth {depth}")
            if waited == PATIENCE and (self.many_nodes or self.is_expensive):
                for skipped in depths[number:]:
                    tick(f"{name}, depth {skipped}: left out")
                break


def default_norms(adjacency: Normalization, many_nodes: bool) -> list[Norm]:
    """Return the norms of SGC that ``"auto"`` stands for.

    Rows of D̃⁻¹Ã sum to one, so there an SGC without PairNorm is an SGC-PN of another scale: a regression does
    not penalize its bias.
    """
    norms: list[Norm] = ["PN"] if adjacency == "rw" else ["none", "PN"]
    return norms if many_nodes else [*norms, "PN-SI"]


def subsample(labels: Tensor, count: int) -> Tensor:
    """Return ``count`` indices of labels, ascending: evenly spaced within each class, with its first."""
    if len(labels) <= count:
        return torch.arange(len(labels), device=labels.device)
    order = labels.argsort(stable=True)
    by_class = labels[order]
    first = torch.cat([by_class.new_ones(1, dtype=torch.bool), by_class[1:] != by_class[:-1]])
    spaced = torch.linspace(0, len(labels) - 1, count, device=labels.device).long()
    chosen = torch.zeros_like(labels, dtype=torch.bool)
    chosen[order[spaced.clamp(max=len(labels) - 1)]] = True
    chosen[order[first]] = True
    return chosen.nonzero().squeeze(1)
