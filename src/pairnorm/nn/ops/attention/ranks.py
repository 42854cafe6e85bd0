"""Attention whose nodes are shared out among ranks: everyone knows all scores, and averages own columns."""

from torch import Tensor

from pairnorm.nn.ops.activation.plain import activate
from pairnorm.nn.ops.attention.plain import attend
from pairnorm.nn.ops.collectives import all_rows, to_columns, to_rows
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.sparse_product.ranks import ShardedMatrix


def attend_rows(
    matrix: ShardedMatrix,
    scores: Tensor,
    z: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    rate: float = 0.0,
    keys: Tensor | None = None,
    norm: Norm | None = None,
) -> Tensor:
    """Return own rows of ``attend``, of own rows; arguments as there, but for the matrix.

    Beside what a product sends, a rank sends its scores to all others: 2 (P - 1)/P numbers a node and trial,
    and as much backward.
    """
    nodes, trials, width = matrix.pattern.shape[0], z.size(1), z.size(2)
    scores = all_rows(scores, nodes, matrix.process_group)
    rows = z.transpose(1, 2).flatten(1)  # features first: a rank has some features of every trial
    columns = to_columns(rows, nodes, matrix.process_group, trials).view(nodes, -1, trials).transpose(1, 2)
    if columns.size(2):
        columns = attend(matrix.pattern, scores, columns.contiguous(), rate=rate, keys=keys)
    else:  # a rank without columns takes part in the gradient of the scores all the same
        columns = columns + 0 * scores.sum()
    rows = to_rows(columns.transpose(1, 2).flatten(1), width * trials, matrix.process_group, trials)
    y = rows.view(-1, width, trials).transpose(1, 2).contiguous()
    y = y if bias is None else activate(y, bias, activation)
    return y if norm is None else norm(y)
