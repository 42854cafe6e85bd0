"""Logistic regression solved to the end: all that an SGC learns, and the candidate that sees no graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.nn.ops.kernels import installed

TOLERANCE, STEPS, INNER_STEPS = 1e-10, 100, 500
SUFFICIENT = 1e-4
# Below this many numbers, waking a second thread takes longer than the work it would share.
WORTH_A_THREAD = 2**20
# To make the Hessian of n weights takes as long as n / 4 products with it; of more it is too expensive.
PER_PRODUCT, MOST_WEIGHTS = 4, 1500
# It is made of so many rows at a time.
ROWS = 2**11


def regressions(
    rows: Tensor, labels: Tensor, classes: int, scales: Sequence[float], gradient: float = TOLERANCE
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield (s, W, b) for every scale; see ``fold_regressions``, of which this is one fold of all rows.

    Of few weights, a Newton step that conjugate gradients do not reach soon is solved by factorization.
    """
    everyone = torch.ones(1, len(rows), device=rows.device)
    few, target = min(rows.shape) * classes <= MOST_WEIGHTS, one_hot(labels, classes)
    for scale, weight, bias in fold_regressions(rows, target, scales, everyone, gradient, factorize=few):
        yield scale, weight[0], bias[0]


def fold_regressions(
    rows: Tensor,
    target: Tensor,
    scales: Sequence[float],
    folds: Tensor,
    gradient: float = TOLERANCE,
    *,
    factorize: bool = False,
) -> Iterator[tuple[float, Tensor, Tensor]]:
    r"""Yield (s, W, b) for every scale s, from small to large: the logistic regression on rows s·x.

    $$
    \min_{\mathbf{W}, \mathbf{b}} \; \text{mean cross-entropy}(s \mathbf{X} \mathbf{W} + \mathbf{b})
    + \tfrac{1}{2} \|\mathbf{W}\|_F^2
    $$

    The problem is convex: there is one answer, whatever the seed. The scale is the strength of regularization
    (in V = sW the penalty is ‖V‖² / 2s²), so each scale starts from the answer of the one before.

    Args:
        rows: float [m, d], the training nodes.
        target: [m, classes], how probable each class is; one and zeros where the label is known.
        scales: PairNorm's s, each above 0.
        folds: [folds, m], how much each row counts in the mean of a fold: W is [folds, d, classes].
        gradient: where its largest number is below this, the end is reached.
        factorize: whether to solve by factorization where conjugate gradients would take longer.
    """
    basis, rows = principal(rows.double())
    # The solver stops at a small gradient: it is given rows of norm one on average, whatever their unit.
    unit = max(float(rows.square().sum(1).mean().sqrt()), 1e-30)
    rows = torch.cat([rows / unit, rows.new_ones(len(rows), 1)], 1)
    target = target.double()
    # [m, folds, 1]: what a row counts for in the mean of a fold.
    shares = (folds.T.to(rows) / folds.sum(1)).unsqueeze(2)
    weight = rows.new_zeros(rows.shape[1], len(folds), target.shape[1])
    for scale in sorted(scales):
        penalty = torch.full_like(weight[:, :1, :1], 1 / (scale * unit) ** 2)
        penalty[-1] = 0  # the bias
        with _threads(rows.numel()):
            weight = _newton(rows, target.unsqueeze(1), shares, penalty, weight, gradient, factorize)
        found = torch.einsum("dr,rkc->kdc", basis, weight[:-1])
        yield scale, found.float() / (scale * unit), weight[-1].float()


def _newton(
    rows: Tensor, target: Tensor, shares: Tensor, penalty: Tensor, weight: Tensor, enough: float,
    factorize: bool,
) -> Tensor:  # fmt: skip
    """Return the weights of the least mean cross-entropy + Σ penalty · weight² / 2 (Nocedal & Wright, 7.1).

    Every Newton step is solved by conjugate gradients, more exactly the nearer the goal, and halved until the
    objective falls enough. All folds go side by side, [d, folds, classes]: one that has arrived stays.
    """
    turned = rows.T.contiguous()  # products with it take half the time of those with rows.T
    squares = turned.square()
    most, stalled = weight[:, 0].numel() // PER_PRODUCT if factorize else INNER_STEPS, False

    def objective(weight: Tensor) -> tuple[Tensor, Tensor]:
        logarithms = _product(rows, weight).log_softmax(2)
        return _sum(penalty / 2 * weight.square()) - _sum(shares * target * logarithms), logarithms.exp()

    value, probabilities = objective(weight)
    for _ in range(STEPS):
        gradient = _product(turned, shares * (probabilities - target)) + penalty * weight
        moving = gradient.abs().amax((0, 2), keepdim=True) >= enough
        if not moving.any():
            break
        weighted = shares * probabilities
        hessian = _hessian(rows, turned, probabilities, weighted, penalty)
        diagonal = _product(squares, weighted * (1 - probabilities)) + penalty + 1e-15
        goal = -gradient * moving
        step = _factorized(rows, probabilities, shares, penalty, goal) if stalled else None
        if step is None:
            step, arrived = _conjugate_gradients(hessian, goal, diagonal, most)
            stalled = factorize and not arrived
        descent, share = _sum(gradient * step), moving.to(rows)
        while float(share.max()) > 1e-10:
            new_value, new_chances = objective(weight + share * step)
            short = new_value > value + SUFFICIENT * share * descent
            if not (short & (share > 0)).any():
                break
            share = torch.where(short, torch.where(share > 1e-10, share / 2, 0), share)
        else:  # rounding hides what is left to gain
            break
        weight, value, probabilities = weight + share * step, new_value, new_chances
    return weight


def _hessian(
    rows: Tensor, turned: Tensor, probabilities: Tensor, weighted: Tensor, penalty: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return what multiplies by the Hessian of the objective, [d, folds, classes]."""

    def plain(direction: Tensor) -> Tensor:
        product = _product(rows, direction)
        change = weighted * (product - (probabilities * product).sum(2, keepdim=True))
        return _product(turned, change) + penalty * direction

    def fast(direction: Tensor) -> Tensor:
        by_class = direction.permute(1, 2, 0).contiguous()
        result = torch.empty_like(by_class)
        curvature(*(part.numpy() for part in (rows, probabilities, weighted, by_class, result)))
        return result.permute(2, 0, 1) + penalty * direction

    if rows.device.type != "cpu" or not installed("cpu"):
        return plain
    from pairnorm.classify.curvature import curvature

    return fast


def _conjugate_gradients(
    matrix: Callable[[Tensor], Tensor], goal: Tensor, diagonal: Tensor, most: int
) -> tuple[Tensor, bool]:
    """Return x with matrix(x) ≈ goal, and whether it is near enough after so many steps at most.

    These are conjugate gradients with the diagonal as preconditioner.
    """
    solution, residual = torch.zeros_like(goal), goal
    direction = scaled = residual / diagonal
    size = _sum(residual * scaled)
    enough = size.sqrt().clamp(max=0.01) * size
    for _ in range(most):
        if not (wanting := size > enough).any():
            return solution, True
        product = matrix(direction)
        curvature = _sum(direction * product)
        # Of a convex function, a curvature of nothing is rounding.
        length = torch.where(wanting & (curvature > 0), size / curvature, 0)
        solution = solution + length * direction
        residual = residual - length * product
        scaled = residual / diagonal
        size, before = torch.where(length > 0, _sum(residual * scaled), 0), size
        direction = scaled + size / before.clamp(min=1e-300) * direction
    return solution, False


def _factorized(
    rows: Tensor, probabilities: Tensor, shares: Tensor, penalty: Tensor, goal: Tensor
) -> Tensor | None:
    """Return x with Hessian · x = goal of every fold, by Cholesky; None where rounding allows no factor."""
    columns, folds, classes = goal.shape
    every, solution = range(classes), torch.empty_like(goal)
    for fold in range(folds):
        hessian = rows.new_zeros(classes * columns, classes * columns)
        blocks = hessian.view(classes, columns, classes, columns)
        blocks[every, :, every] = penalty.flatten().diag()
        # A bias that all classes share changes nothing: in its direction, any curvature will do.
        blocks[:, -1, :, -1] += 1 / classes
        for some, chance, share in zip(
            *(part.split(ROWS) for part in (rows, probabilities[:, fold], shares[:, fold])), strict=True
        ):
            blocks[every, :, every] += (some.T * (share * chance).T.unsqueeze(1)) @ some
            outer = ((share.sqrt() * chance).unsqueeze(2) * some.unsqueeze(1)).flatten(1)
            hessian.addmm_(outer.T, outer, alpha=-1)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if failed:
            return None
        found = torch.cholesky_solve(goal[:, fold].T.reshape(-1, 1), factor)
        solution[:, fold] = found.view(classes, columns).T
    return solution


def _product(matrix: Tensor, weight: Tensor) -> Tensor:
    return (matrix @ weight.flatten(1)).view(-1, *weight.shape[1:])


def _sum(values: Tensor) -> Tensor:
    """Return the sum of every fold, [1, folds, 1]."""
    return values.sum((0, 2), keepdim=True)


@contextmanager
def _threads(size: int) -> Iterator[None]:
    """Keep small work on one thread."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if size < WORTH_A_THREAD else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the principal axes V [d, r] of the rows, the leading one last, and X V: unrelated coordinates.

    The best weights lie in their span, and the Hessian is nearly diagonal in them.

    Args:
        rows: [m, d]; the work is that of the smaller number.
    """
    wide = rows.shape[0] < rows.shape[1]
    values, vectors = _eigen(rows @ rows.T if wide else rows.T @ rows)
    kept = values > 1e-14 * values[-1:].clamp(min=1e-300)  # rising; none at all where there is no column
    values, vectors = values[kept], vectors[:, kept]
    if not wide:
        return vectors, rows @ vectors
    return rows.T @ (vectors / values.sqrt()), vectors * values.sqrt()


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of a symmetric matrix.

    LAPACK's usual way, divide and conquer, now and then ends nowhere where many eigenvalues are alike; the QR
    algorithm is slow and sure.
    """
    try:
        values, vectors = torch.linalg.eigh(gram)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        from scipy.linalg import eigh

        values, vectors = (torch.from_numpy(part).to(gram) for part in eigh(gram.cpu().numpy(), driver="ev"))
    return values, vectors


def span(features: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return an orthonormal basis Q [d, r] of the rows of X that are not zero, and X Q [n, r].

    Norms and distances of rows stay as they are under Q, so that propagation, PairNorm and regression
    may work in r columns instead of d: 140 instead of 1,433 where all but 140 papers lost their words.

    Args:
        features: dense [n, d]. Where most rows are not zero, it is returned as it is, without a basis.
    """
    filled = features.any(1)
    if int(filled.sum()) > features.shape[1] // 2:
        return None, features
    basis, triangle = torch.linalg.qr(features[filled].double().T)
    reduced = features.new_zeros(features.shape[0], basis.shape[1])
    reduced[filled] = triangle.T.float()
    return basis.float(), reduced
