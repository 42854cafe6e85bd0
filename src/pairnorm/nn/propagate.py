"""Read the adjacency of a graph from any of its usual forms, normalize it, and propagate features over it."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeGuard, get_args

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, wrong_shape
from pairnorm.nn.ops.dropout import keep_mask
from pairnorm.nn.ops.kernels import disable_dynamo
from pairnorm.nn.ops.pair_norm import to_accumulation_dtype
from pairnorm.nn.ops.sparse_product import Pattern, check_range, row_starts
from pairnorm.nn.sparse import SparseMatrix

Normalization = Literal["rw", "sym"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)


@disable_dynamo
def normalized_adjacency(
    adjacency: Tensor | SparseMatrix, normalization: Normalization = "rw", num_nodes: int | None = None
) -> SparseMatrix:
    r"""Normalize an adjacency matrix with self-loops, $\tilde{\mathbf{A}} = \mathbf{A} + \mathbf{I}$.

    $$
    \tilde{\mathbf{A}}_{rw} = \tilde{\mathbf{D}}^{-1} \tilde{\mathbf{A}} \qquad
    \tilde{\mathbf{A}}_{sym} = \tilde{\mathbf{D}}^{-1/2} \tilde{\mathbf{A}} \tilde{\mathbf{D}}^{-1/2}
    $$

    Args:
        adjacency: A matrix ``[nodes, nodes]``, sparse or dense, whose row i has an entry for every node that
            node i receives from. Or an ``edge_index`` ``[2, edges]`` of (source, target) pairs as in PyG.
            Weights count, and their gradients flow back. A self-loop of the graph keeps its weight. In a
            directed graph every node averages over the nodes that point at it.
        normalization: ``"rw"`` (as in the paper's experiments) or ``"sym"``.
        num_nodes: Needed with an ``edge_index`` when the last nodes are isolated.

    Returns:
        The normalized matrix: float64 where the adjacency is, float32 otherwise.

    Raises:
        PairNormError: where indices are out of range, or the weights of a node do not have a positive sum.

    Example:
        >>> matrix = normalized_adjacency(torch.tensor([[0, 1], [1, 0]]))
        >>> matrix @ torch.tensor([[1.0], [3.0]])
        tensor([[2.],
                [2.]])
    """
    one_of("normalization", normalization, NORMALIZATIONS)
    with torch.inference_mode(False):  # else training could not use the result later
        matrix = _add_self_loops(_sorted(adjacency, num_nodes))
        pattern, weight, degree = matrix.pattern, matrix.values, _row_sums(matrix)
        if weight.requires_grad:
            factor = 1 / degree if normalization == "rw" else degree.rsqrt()
            weight = weight * factor[pattern.row]
            return SparseMatrix(pattern, weight if normalization == "rw" else weight * factor[pattern.column])
        for _, entries, row in pattern.blocks():  # in place, because large graphs fill the memory
            if normalization == "rw":
                weight[entries] /= degree[row]
            else:
                roots = degree[row].rsqrt() * degree[pattern.column[entries]].rsqrt()
                weight[entries] *= roots
        return matrix


def degrees(adjacency: Tensor | SparseMatrix) -> Tensor:
    """Return the row sums of an adjacency matrix with self-loops, ``[nodes]``."""
    return _row_sums(_add_self_loops(_sorted(adjacency, None)))


def check_degrees(degree: Tensor) -> Tensor:
    """Return ``degree``, or raise an error unless it is a positive finite number for each node."""
    if degree.dim() == 1 and bool((degree > 0).all() & degree.isfinite().all()):
        return degree
    smallest = float(degree.min())
    problem = f"degree has shape {list(degree.shape)} and values from {smallest:g}"
    expected = "a positive finite number for each node"
    hint = "Count self-loops: without them an isolated node has none."
    raise PairNormError(problem, code="out-of-range", value=smallest, expected=expected, hint=hint)


def _row_sums(matrix: SparseMatrix) -> Tensor:
    degree = matrix.values.new_zeros(matrix.num_rows)
    for _, entries, row in matrix.pattern.blocks():
        degree = degree.index_add_(0, row, matrix.values[entries])
    for node in (~((degree > 0) & degree.isfinite())).nonzero()[:1, 0].tolist():
        problem = f"the weights of node {node} add up to {degree[node]:g}"
        expected = "a positive finite sum"
        raise PairNormError(problem, code="out-of-range", value=float(degree[node]), expected=expected)
    return degree


def _sorted(adjacency: Tensor | SparseMatrix, num_nodes: int | None) -> SparseMatrix:
    """Return the matrix with the columns of every row in order, each once: parallel edges add up."""
    adjacency = _without_subclass(adjacency)
    if not is_edge_index(adjacency):
        adjacency = _as_square_matrix(adjacency)
        if _is_sorted(adjacency.pattern):
            return adjacency
    nodes, row, column, weight = entries(adjacency, num_nodes)
    key = row * nodes
    key += column
    del row, column
    if isinstance(adjacency, SparseMatrix):
        key, inverse = torch.unique(key, return_inverse=True)
        weight = to_accumulation_dtype(weight)
        weight = weight.new_zeros(key.numel()).index_add_(0, inverse, weight)
    else:
        del weight  # of every edge one
        if key.device.type == "cpu":
            key.numpy().sort()  # in place
        else:
            key = key.sort().values
        key, count = torch.unique_consecutive(key, return_counts=True)
        weight = count.float()
        del count
    column = torch.remainder(key, max(nodes, 1)).int()
    row = key.div_(max(nodes, 1), rounding_mode="floor")
    crow = row_starts(torch.bincount(row, minlength=nodes))
    return SparseMatrix(Pattern(crow, column, (nodes, nodes)), weight)


def _is_sorted(pattern: Pattern) -> bool:
    for _, place, row in pattern.blocks():
        column = pattern.column[place]
        if ((column[1:] <= column[:-1]) & (row[1:] == row[:-1])).any():
            return False
    return True


def _add_self_loops(matrix: SparseMatrix) -> SparseMatrix:
    """Return the matrix, whose rows are sorted, with a self-loop of weight one where there is none."""
    pattern, values = matrix.pattern, to_accumulation_dtype(matrix.values)
    missing = torch.ones(pattern.shape[0], dtype=torch.bool, device=values.device)
    for _, place, row in pattern.blocks():
        missing[row[pattern.column[place] == row]] = False
    crow = row_starts(pattern.crow.diff() + missing)
    column = pattern.column.new_empty(pattern.num_entries + int(missing.sum()))
    weight = values.new_ones(column.numel())
    for rows, place, row in pattern.blocks():
        old = pattern.column[place]
        shift = crow[rows] - pattern.crow[rows]
        entry = torch.arange(place.start, place.stop, device=row.device) + shift[row - rows.start]
        entry += missing[row] & (old > row)
        column[entry], weight[entry] = old, values[place]
        before = torch.zeros_like(shift).index_add_(0, row - rows.start, (old < row).to(shift.dtype))
        loops = missing[rows].nonzero().squeeze(1)
        column[crow[rows][loops] + before[loops]] = (loops + rows.start).int()
    return SparseMatrix(Pattern(crow, column, pattern.shape), weight)


def sgc_iterates(
    x: Tensor | SparseMatrix, adjacency: SparseMatrix, norm: Callable[[Tensor], Tensor] | None = None,
    propagate: Callable[[SparseMatrix, Tensor], Tensor] = operator.matmul,
) -> Iterator[Tensor]:  # fmt: skip
    """Yield the state of SGC after 0, 1, 2, ... propagation steps, each normalized.

    Args:
        x: Features ``[nodes, features]`` or ``[nodes, models, features]``; sparse ones become
            ``[nodes, 1 or models, features]``.
        adjacency: The normalized adjacency.
        norm: Applied to the input and after every step, a ``PairNorm`` for instance; None for no norm.
        propagate: A propagation step; default: the product.

    Example:
        >>> matrix = normalized_adjacency(torch.tensor([[0, 1], [1, 0]]))
        >>> iterates = sgc_iterates(torch.tensor([[1.0], [3.0]]), matrix)
        >>> [next(iterates).flatten().tolist() for depth in range(2)]
        [[1.0, 3.0], [2.0, 2.0]]
    """
    if isinstance(x, SparseMatrix):
        x = x.to_dense()
        x = x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1).contiguous()
    while True:
        x = x if norm is None else norm(x)
        yield x
        x = propagate(adjacency, x)


@torch.no_grad()
def propagate_with_restart(
    matrix: SparseMatrix, start: Tensor, alphas: Sequence[float], steps: int,
    between: tuple[float, float] | None = None,
) -> Tensor:  # fmt: skip
    """Repeat Z ← α P Z + (1 − α) Z₀, clamped ``between`` bounds: ``[nodes, alphas, columns]``."""
    alpha = torch.tensor(alphas, dtype=start.dtype, device=start.device).unsqueeze(1)
    state, back = start.unsqueeze(1).expand(-1, len(alphas), -1), (1 - alpha) * start.unsqueeze(1)
    for _ in range(steps):
        product = matrix @ state
        state = torch.addcmul(back, alpha, product, out=product)  # fresh memory costs as much as the sum
        state = state if between is None else state.clamp_(*between)
    return state


@torch.no_grad()
def dominant_eigenvectors(matrix: SparseMatrix, count: int) -> Tensor:
    """Return eigenvectors of a symmetric matrix by largest absolute eigenvalue, ``[nodes, count]``, float64.

    Columns beyond the number of nodes are zero. Accurate to (λ_m / λ_k)^200, m = 2 count.
    """
    matrix, nodes = matrix.to("cpu").cast(torch.float64), matrix.num_rows
    width = min(nodes, 2 * count)
    start = torch.randn(nodes, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.linalg.qr(start).Q
    for _ in range(200):
        basis = torch.linalg.qr(matrix @ basis).Q
    values, rotation = torch.linalg.eigh(basis.T @ (matrix @ basis))
    order = values.abs().argsort(descending=True)[:count]
    vectors = basis @ rotation[:, order]
    vectors *= vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign() if nodes else 1
    return torch.nn.functional.pad(vectors, (0, count - vectors.size(1)))


def drop_edges(adjacency: SparseMatrix, rate: float, keys: Tensor) -> SparseMatrix:
    r"""Drop random edges for every model, and divide what remains of each row by its sum (DropEdge).

    Rong et al. (2020, "DropEdge: Towards Deep Graph Convolutional Networks on Node Classification"). With
    $m_{ij} \in \{0, 1\}$, which is 1 on the diagonal and otherwise 0 with probability ``rate``:

    $$
    m_{ij} \tilde{a}_{ij} \Big/ \textstyle\sum_k m_{ik} \tilde{a}_{ik}
    $$

    As in the authors' code, the two directions of an edge are drawn independently.

    Args:
        adjacency: The one with rows of sum 1, ``normalized_adjacency(..., "rw")``.
        rate: In steps of 2⁻¹⁶.
        keys: int32 ``[models]``; equal keys drop equal edges. See ``pairnorm.nn.ops.dropout``.
    """
    pattern = adjacency.pattern
    if adjacency.values.dim() != 1 or pattern.shape[0] != pattern.shape[1]:
        problem = f"edges are dropped from {adjacency!r}"
        expected = "a square matrix with the same values for all models"
        raise PairNormError(problem, code="wrong-shape", value=list(pattern.shape), expected=expected)
    count = pattern.num_entries
    if "loops" not in pattern.derived:
        pattern.derived["loops"] = pattern.row == pattern.column
    mask = keep_mask(keys, 1, count, rate)[0].masked_fill_(pattern.derived["loops"], 1)
    kept = SparseMatrix(pattern, mask.to(adjacency.values.dtype) * adjacency.values)
    ones = kept.values.new_ones(pattern.shape[1], len(keys), 1)
    sums = (kept @ ones).squeeze(-1).t()  # the product, whose sums have an order, where index_add has none
    return SparseMatrix(pattern, kept.values / sums.index_select(1, pattern.row))


def entries(
    adjacency: Tensor | SparseMatrix, num_nodes: int | None = None
) -> tuple[int, Tensor, Tensor, Tensor]:
    """Return the number of nodes, and row (target), column (source) and weight of every entry."""
    adjacency = _without_subclass(adjacency)
    if not is_edge_index(adjacency):
        matrix = _as_square_matrix(adjacency)
        pattern = matrix.pattern
        return pattern.shape[0], pattern.row.long(), pattern.column.long(), matrix.values
    if num_nodes is None:
        num_nodes = int(adjacency.max()) + 1 if adjacency.numel() else 0
    check_range("edge_index", adjacency, num_nodes, "nodes")
    source, target = adjacency.long()
    return num_nodes, target, source, torch.ones(source.numel(), device=adjacency.device)


def _without_subclass(adjacency: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Return the plain tensor of PyG's ``EdgeIndex``; other values unchanged."""
    unwrap = getattr(adjacency, "as_tensor", None)
    return adjacency if unwrap is None else unwrap()  # type: ignore[no-any-return]


def _as_square_matrix(adjacency: Tensor | SparseMatrix) -> SparseMatrix:
    matrix: object = adjacency
    if isinstance(adjacency, Tensor) and adjacency.dim() == 2:
        is_matrix = adjacency.layout != torch.strided or adjacency.is_floating_point()
        matrix = SparseMatrix.from_torch(adjacency) if is_matrix else adjacency
    if isinstance(matrix, SparseMatrix) and matrix.values.dim() == 1 and len({*matrix.pattern.shape}) == 1:
        matrix.pattern.check_unchanged()
        return matrix
    expected = "a floating-point matrix [nodes, nodes], sparse or dense, or an integer edge_index [2, edges]"
    if isinstance(adjacency, Tensor):
        raise wrong_shape("adjacency", adjacency.shape, expected, adjacency.dtype)
    shape = list(matrix.pattern.shape) if isinstance(matrix, SparseMatrix) else []
    raise PairNormError(f"adjacency is {adjacency!r}", code="wrong-shape", value=shape, expected=expected)


def is_edge_index(value: object) -> TypeGuard[Tensor]:
    """Return whether ``value`` is a dense integer tensor [2, edges].

    >>> is_edge_index(torch.tensor([[0, 1], [1, 2]])), is_edge_index(torch.eye(2))
    (True, False)
    """
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return value.dim() == 2 and len(value) == 2 and value.dtype in (torch.int64, torch.int32)
