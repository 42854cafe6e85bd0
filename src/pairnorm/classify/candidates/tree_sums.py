"""Sums over boosted trees in numba: a row goes down all trees while it is in the cache."""

from typing import Any

import numpy as np

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.threads import share_out

ROWS_PER_TASK = 2**12


def tree_sums(rows: Any, roots: Any, baseline: Any, nodes: tuple[Any, ...]) -> Any:
    """Return what the leaves of a row add up to, float64 [n, trees].

    Args:
        rows: float32 [n, columns].
        roots: int64 [rounds, trees].
        baseline: float64 [trees], what is added to.
        nodes: feature, threshold, missing_left, left, right and value of every node; a leaf is its own child.
    """
    result = np.empty((len(rows), roots.shape[1]))
    result[:] = baseline
    share_out(
        len(rows),
        ROWS_PER_TASK,
        lambda start, stop: _descend(rows[start:stop], roots, *nodes, result[start:stop]),
    )
    return result


@kernel
def _descend(
    rows: Any, roots: Any, feature: Any, threshold: Any, missing_left: Any, left: Any, right: Any, value: Any,
    result: Any,
) -> None:  # fmt: skip
    for row in range(len(rows)):
        for number in range(roots.shape[0]):
            for tree in range(roots.shape[1]):
                node = roots[number, tree]
                while left[node] != node:
                    cell = rows[row, feature[node]]
                    goes_left = missing_left[node] if cell != cell else cell <= threshold[node]
                    node = left[node] if goes_left else right[node]
                result[row, tree] += value[node]
