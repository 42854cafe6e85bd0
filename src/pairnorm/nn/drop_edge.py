"""DropEdge: in every training step each model averages over a random part of the edges."""

from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.dropout import keep_entries
from pairnorm.nn.sparse import SparseMatrix


def drop_edges(adjacency: SparseMatrix, rate: float, keys: Tensor) -> SparseMatrix:
    r"""Drop edges of every model, and divide what is left of each row by its sum.

    Rong et al. (2020, "DropEdge: Towards Deep Graph Convolutional Networks on Node Classification"). With
    $m_{ij} \in \{0, 1\}$, which is 1 on the diagonal and otherwise 0 with probability ``rate``:

    $$
    m_{ij} \tilde{a}_{ij} \Big/ \textstyle\sum_k m_{ik} \tilde{a}_{ik}
    $$

    As in the authors' code, the two directions of an edge are drawn apart.

    Args:
        adjacency: The one with rows of sum 1, ``normalized_adjacency(..., "rw")``.
        rate: In steps of 2⁻¹⁶.
        keys: int32 ``[models]``; equal keys drop equal edges. See ``pairnorm.nn.ops.dropout``.
    """
    pattern = adjacency.pattern
    if adjacency.values.dim() != 1 or pattern.shape[0] != pattern.shape[1]:
        problem = f"edges are dropped of {adjacency!r}"
        expected = "a square matrix with the same values for all models"
        raise PairNormError(problem, code="wrong-shape", value=list(pattern.shape), expected=expected)
    count = pattern.num_entries
    if "loops" not in pattern.derived:
        pattern.derived["loops"] = pattern.row == pattern.column
    kept = keep_entries(keys, 0, count, count, rate).masked_fill_(pattern.derived["loops"], 1)
    left = SparseMatrix(pattern, kept.to(adjacency.values.dtype) * adjacency.values)
    ones = left.values.new_ones(pattern.shape[1], len(keys), 1)
    sums = (left @ ones).squeeze(-1).t()  # the product, whose sums have an order, where index_add has none
    return SparseMatrix(pattern, left.values / sums.index_select(1, pattern.row))
