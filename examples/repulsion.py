r"""Graph convolution as denoising (Section 3.1 of the paper): least squares on a graph, also with repulsion.

Every undirected edge {i, j} counts once, and so does every pair of nodes that no edge joins:

$$
\min_Y \; \sum_i \tilde d_i \|y_i - x_i\|^2 + \sum_{\{i,j\} \in E} a_{ij} \|y_i - y_j\|^2
- \lambda \sum_{\{i,j\} \notin E} \|y_i - y_j\|^2
$$

A zero gradient means $(\tilde D + M) Y = \tilde D X$ with
$M = L_A - \lambda L_{\bar B} = L_{A + \lambda B} - \lambda n C$, where $B$ is the pattern of $A$ and $C$
subtracts the mean: the complement of the graph, with its nearly $n^2 / 2$ edges, turns into a subtraction.
The derivation is in docs/repel.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pairnorm.base.errors import PairNormError, real_number
from pairnorm.nn.ops.pair_norm import to_accumulation_dtype
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.propagate import entries
from pairnorm.nn.sparse import SparseMatrix

Adjacency = Tensor | SparseMatrix


def grls(x: Tensor, adjacency: Adjacency, tolerance: float | None = None) -> Tensor:
    r"""Solve graph-regularized least squares (Eq. 5) exactly: $(2 I - \tilde A_{rw})^{-1} X$.

    The graph convolution $\tilde A_{rw} X$ is its first-order approximation.

    Args:
        x: node features ``[nodes, features]`` or ``[nodes, trials, features]``.
        adjacency: an undirected graph, as a sparse tensor ``[nodes, nodes]`` or an ``edge_index`` with both
            directions of every edge; self-loops are ignored, as they are in the sums. No gradient reaches it.
        tolerance: of the residual, relative to the input; by default, what the dtype allows.

    >>> edge = torch.tensor([[0, 1], [1, 0]])
    >>> grls(torch.tensor([[0.0], [1.0]]), edge)
    tensor([[0.2500],
            [0.7500]])
    """
    return repel(x, adjacency, 0.0, tolerance)


def repel(x: Tensor, adjacency: Adjacency, lam: float, tolerance: float | None = None) -> Tensor:
    r"""Solve Eq. 6, which also pushes disconnected nodes apart: $(I + \tilde D^{-1} M)^{-1} X$.

    Conjugate gradients, each step linear in nodes and edges; differentiable in ``x``, to any order.

    Args:
        x: node features ``[nodes, features]`` or ``[nodes, trials, features]``.
        adjacency: an undirected graph; see ``grls``.
        lam: the weight of the repulsion, from 0 (Eq. 5) to below ``largest_lambda``.
        tolerance: of the residual, relative to the input; by default, what the dtype allows.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> x = torch.tensor([[0.0], [0.0], [1.0]])
    >>> repel(x, path, lam=0.5).squeeze()  # the ends, which no edge joins, are 1 apart; grls leaves 2/3
    tensor([-0.1154,  0.1538,  0.8846])
    """
    hessian, wide = _prepare(x, adjacency, lam)
    if tolerance is None:
        tolerance = 8 * torch.finfo(wide.dtype).eps
    solution: Tensor = _Solve.apply(hessian.degree * wide, hessian, tolerance)  # type: ignore[no-untyped-call]
    return solution.view(x.shape).to(x.dtype)


def repel_conv(x: Tensor, adjacency: Adjacency, lam: float) -> Tensor:
    r"""Apply the graph convolution that Eq. 6 leads to, the first-order approximation of ``repel``.

    $$
    (I - \tilde D^{-1} M) X = (1 + \lambda) \tilde A_{rw} X - \lambda X + \lambda n \tilde D^{-1} C X
    $$

    for a graph without weights, and $\tilde A_{rw} X$ for $\lambda = 0$. Beyond the plain
    convolution, every node moves away from the mean of all, the further the fewer neighbors it has.

    Args:
        x: node features ``[nodes, features]`` or ``[nodes, trials, features]``.
        adjacency: an undirected graph; see ``grls``.
        lam: the weight of the repulsion, from 0 to below ``largest_lambda``.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> repel_conv(torch.tensor([[0.0], [0.0], [1.0]]), path, lam=0.5).squeeze()
    tensor([-0.2500,  0.3333,  0.7500])
    """
    hessian, wide = _prepare(x, adjacency, lam)
    return (wide + hessian.push(wide) / hessian.degree).view(x.shape).to(x.dtype)


def largest_lambda(adjacency: Adjacency, num_nodes: int | None = None) -> float:
    r"""Return the bound of the admissible weights of the repulsion: from there on, Eq. 6 has no minimum.

    $$
    \lambda^* = \min_y \; \frac{y^T (\tilde D + L) y}{y^T L_{\bar B} y}
    $$

    It is infinite where every two nodes are joined. Right to five digits or more.

    Args:
        adjacency: an undirected graph; see ``grls``.
        num_nodes: needed with an ``edge_index`` when the last nodes are isolated.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> round(largest_lambda(path), 6)  # where y = (1, 0, -1): (2 + 2 + 1 + 1) / 4
    1.5
    """
    return _Graph.of(adjacency, num_nodes).largest_lambda


class _Graph:
    """An undirected graph without self-loops, as the sums of Eq. 5 and 6 see it."""

    # A layer meets the same graph again and again; a tensor changed in place is another graph.
    _known: ClassVar[Any] = WeakIdKeyDictionary()

    @classmethod
    def of(cls, adjacency: Adjacency, num_nodes: int | None) -> "_Graph":
        if isinstance(adjacency, Tensor) and adjacency.is_inference():  # which does not count its changes
            return cls(adjacency, num_nodes)
        state = (num_nodes, adjacency._version if isinstance(adjacency, Tensor) else 0)
        if adjacency not in cls._known or cls._known[adjacency][0] != state:
            cls._known[adjacency] = state, cls(adjacency, num_nodes)
        graph: _Graph = cls._known[adjacency][1]
        return graph

    def __init__(self, adjacency: Adjacency, num_nodes: int | None) -> None:
        nodes, row, column, weight = entries(adjacency, num_nodes)
        if num_nodes not in (None, nodes):
            problem = f"x has {num_nodes} rows"
            expected = f"one for each of the {nodes} nodes of adjacency"
            raise PairNormError(problem, code="wrong-shape", value=num_nodes, expected=expected)
        joins = row != column
        row, column, weight = row[joins], column[joins], weight[joins].double()
        if not bool((weight > 0).all()):
            problem = f"adjacency has an edge of weight {weight.min():g}"
            expected = "positive weights"
            raise PairNormError(problem, code="out-of-range", value=float(weight.min()), expected=expected)
        # The diagonal is there too: a Laplacian needs it.
        loops = torch.arange(nodes, device=row.device) * (nodes + 1)
        entry, inverse = torch.unique(torch.cat([row * nodes + column, loops]), return_inverse=True)
        weight = weight.new_zeros(len(entry)).index_add_(0, inverse[: len(weight)], weight)
        row, column = entry // nodes, entry % nodes
        reverse, order = (column * nodes + row).sort()
        if not (torch.equal(reverse, entry) and torch.equal(weight[order], weight)):
            problem = "adjacency is not symmetric"
            expected = "an undirected graph, which Eq. 5 and 6 are about"
            hint = "Add every edge's reverse, as torch_geometric.utils.to_undirected does."
            raise PairNormError(problem, code="not-symmetric", expected=expected, hint=hint)
        count = torch.bincount(row, minlength=nodes)
        self.nodes, self.weight, self.diagonal = nodes, weight, row == column
        self.neighbors = count - 1
        self.degree = weight.new_zeros(nodes).index_add_(0, row, weight)
        crow = torch.cat([count.new_zeros(1), count.cumsum(0)])
        self.pattern = Pattern(crow.int(), column.int(), (nodes, nodes))

    @cached_property
    def safe_lambda(self) -> float:
        """A bound without an eigenvalue: up to here D̃ alone outweighs the repulsion, at most λn."""
        return (1 - 1e-6) * (1 + float(self.degree.min())) / self.nodes if self.nodes else math.inf

    @cached_property
    def largest_lambda(self) -> float:
        if len(self.weight) == self.nodes**2:
            return math.inf
        plain, repelled = self.hessian(0.0, torch.float64), self.hessian(1.0, torch.float64)
        root = plain.degree.sqrt()  # in z = root * y, hubs and leaves have equal weight

        def forms(z: Tensor) -> tuple[Tensor, Tensor]:
            attraction = plain(z / root) / root
            return attraction - repelled(z / root) / root, attraction

        return 1 / _largest_ratio(forms, self.nodes, self.weight.device)

    def hessian(self, lam: float, dtype: torch.dtype) -> "_Hessian":
        weight = self.weight + lam
        weight[self.diagonal] = -(self.degree + lam * self.neighbors)
        degree = (1 + self.degree).to(dtype).unsqueeze(1)
        return _Hessian(lam, SparseMatrix(self.pattern, weight.to(dtype)), degree)


@dataclass(frozen=True, eq=False)
class _Hessian:
    """Half the second derivative of the objective, D̃ + M, applied to ``[nodes, columns]`` in linear time."""

    lam: float
    laplacian: SparseMatrix  # of A + λB, negative
    degree: Tensor  # D̃

    def push(self, y: Tensor) -> Tensor:
        """Return -M y: towards the neighbors, and away from the mean of all nodes."""
        return self.laplacian @ y + self.lam * len(y) * (y - y.mean(0))

    def __call__(self, y: Tensor) -> Tensor:
        return self.degree * y - self.push(y)


def _prepare(x: Tensor, adjacency: Adjacency, lam: float) -> tuple[_Hessian, Tensor]:
    """Return the Hessian and ``x`` as a matrix in its precision, after checking all three."""
    if x.layout != torch.strided or not x.is_floating_point() or x.dim() < 2:
        problem = f"x is a {x.layout} {x.dtype} tensor of shape {list(x.shape)}"
        expected = "dense floating-point features [nodes, features] or [nodes, trials, features]"
        raise PairNormError(problem, code="wrong-shape", value=list(x.shape), expected=expected)
    real_number("lam", lam, least=0)
    graph = _Graph.of(adjacency, x.size(0))
    if lam > graph.safe_lambda and lam >= graph.largest_lambda:
        digits = 3 - math.floor(math.log10(graph.largest_lambda))
        largest = math.floor(graph.largest_lambda * (1 - 1e-6) * 10**digits) / 10**digits
        problem = f"lam is {lam}, for which Eq. 6 is unbounded below: the repulsion outweighs all else"
        expected = f"at most {largest:.4g}, the largest admissible one for this graph; see largest_lambda"
        raise PairNormError(problem, code="out-of-range", value=lam, expected=expected)
    wide = to_accumulation_dtype(x.flatten(1))
    return graph.hessian(lam, wide.dtype), wide


class _Solve(torch.autograd.Function):
    """The inverse of a Hessian, applied. It is symmetric, hence its own gradient, to any order."""

    @staticmethod
    def forward(ctx: Any, right: Tensor, hessian: _Hessian, tolerance: float) -> Tensor:
        ctx.hessian, ctx.tolerance = hessian, tolerance
        return _conjugate_gradients(hessian, right, tolerance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Solve.apply(grad, ctx.hessian, ctx.tolerance), None, None  # type: ignore[no-untyped-call]


def _conjugate_gradients(hessian: _Hessian, right: Tensor, tolerance: float, steps: int = 2000) -> Tensor:
    """Solve ``hessian @ y = right`` for all columns, each with its own steps, preconditioned by D̃."""
    y = right / hessian.degree
    residual = right - hessian(y)
    goal = tolerance**2 * (right * y).sum(0)
    step = scaled = residual / hessian.degree
    size = (residual * scaled).sum(0)
    for _ in range(steps):
        if not bool((size > goal).any()):  # so that a column with NaN ends at once, as NaN
            return y
        image = hessian(step)
        length = torch.where(size > goal, size / (step * image).sum(0), 0)
        y = y + length * step
        residual = residual - length * image
        scaled = residual / hessian.degree
        previous, size = size, (residual * scaled).sum(0)
        step = scaled + torch.where(previous > 0, size / previous, 0) * step
    raise PairNormError(
        f"lam is {hessian.lam}, too close to the largest admissible one: {steps} steps of conjugate "
        f"gradients miss the tolerance {tolerance:g}",
        code="not-converged",
        value=hessian.lam,
        hint="Choose a smaller lam, a larger tolerance or float64.",
    )


def _largest_ratio(
    forms: Callable[[Tensor], tuple[Tensor, Tensor]],
    nodes: int,
    device: torch.device,
    block: int = 4,
    steps: int = 5000,
    tolerance: float = 1e-5,
) -> float:
    """Return the maximum of zᵀPz / zᵀNz, for operators P and N that ``forms`` applies together.

    Locally optimal block gradient ascent (LOBPCG): the best vectors in the span of the present ones, the
    previous ones and the gradient. The norm of the gradient bounds the error of the ratio.
    """
    generator = torch.Generator().manual_seed(0)
    present = torch.randn(nodes, block, dtype=torch.float64, generator=generator).to(device)
    basis, ratio = present, 0.0
    for _ in range(steps):
        basis = torch.linalg.qr(basis).Q
        above, below = forms(basis)
        root = torch.linalg.cholesky(basis.T @ below)
        inner = torch.linalg.solve_triangular(root, basis.T @ above, upper=False)
        inner = torch.linalg.solve_triangular(root, inner.T, upper=False)
        values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
        weights = torch.linalg.solve_triangular(root.T, vectors[:, -block:], upper=True)
        previous, present = present, basis @ weights
        gradient = above @ weights - (below @ weights) * values[-block:]
        ratio = float(values[-1])
        if float(gradient[:, -1].norm()) <= tolerance * ratio * float(present[:, -1].norm()):
            return ratio
        basis = torch.cat([present, gradient, previous], dim=1)
    problem = f"{steps} steps leave the largest admissible lam of this graph less exact than {tolerance:g}"
    raise PairNormError(problem, code="not-converged", value=1 / ratio)


if __name__ == "__main__":
    path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    features = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
    limit = largest_lambda(path)
    print(f"smoothed:  {grls(features, path).flatten().tolist()}")
    print(f"repelled:  {repel(features, path, limit / 2).flatten().tolist()} (lambda {limit / 2:.3g})")
