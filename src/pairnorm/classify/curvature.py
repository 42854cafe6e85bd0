"""Products with the Hessian of logistic regressions in numba: rows are read once, for both ways through them.

Matrix libraries take several times as long, where one matrix has thousands of rows and the other few columns.
"""

from functools import partial
from typing import Any

import numpy as np

from pairnorm.nn.ops.jit import kernel


@partial(kernel, reassociate=True)
def curvature(rows: Any, probabilities: Any, weighted: Any, direction: Any, result: Any) -> None:
    """Write Xᵀ(w·(P - Σ p·P)) with P = X·direction: the Hessian of the cross-entropy times the direction.

    Args:
        rows: X, float64 [m, d].
        probabilities: p, [m, folds, classes].
        weighted: w, likewise.
        direction: [folds, classes, d].
        result: likewise.
    """
    folds, classes, columns = direction.shape
    last, change = len(rows) - 1, np.empty((4, classes))
    result[:] = 0
    for row in range(0, len(rows), 4):
        # Beyond the last row it is the last one again, which then counts for nothing.
        first, second = rows[row], rows[min(row + 1, last)]
        third, fourth = rows[min(row + 2, last)], rows[min(row + 3, last)]
        for fold in range(folds):
            for number in range(classes):
                own = direction[fold, number]
                a = b = c = d = 0.0
                for column in range(columns):
                    a += first[column] * own[column]
                    b += second[column] * own[column]
                    c += third[column] * own[column]
                    d += fourth[column] * own[column]
                change[0, number], change[1, number], change[2, number], change[3, number] = a, b, c, d
            for place in range(4):
                here, mean = min(row + place, last), 0.0
                for number in range(classes):
                    mean += probabilities[here, fold, number] * change[place, number]
                for number in range(classes):
                    weight = weighted[here, fold, number] if row + place <= last else 0.0
                    change[place, number] = weight * (change[place, number] - mean)
            for number in range(classes):
                sums = result[fold, number]
                a, b, c, d = change[0, number], change[1, number], change[2, number], change[3, number]
                for column in range(columns):
                    sums[column] += (
                        a * first[column] + b * second[column] + c * third[column] + d * fourth[column]
                    )
