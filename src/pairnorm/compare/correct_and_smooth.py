"""Correct and Smooth (Huang et al., 2021): known labels correct a model's probabilities, then smooth them."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.nn import SparseMatrix
from pairnorm.nn.propagate import restart_walk

STEPS = 50


def correct_and_smooth(
    matrix: SparseMatrix, probabilities: Tensor, labels: Tensor, known: Tensor, correct: float, smooth: float
) -> Tensor:
    r"""Spread the errors of known nodes, as large as those are on average, take them off, then smooth.

    $$
    \mathbf{E} \leftarrow \alpha_1 \mathbf{S E} + (1 - \alpha_1) \mathbf{E}_0, \qquad
    \mathbf{Z}_i = \mathbf{P}_i + \sigma \mathbf{E}_i / \|\mathbf{E}_i\|_1, \qquad
    \mathbf{Z} \leftarrow \alpha_2 \mathbf{S Z} + (1 - \alpha_2) \mathbf{Z}_0
    $$

    Args:
        matrix: S, ``normalized_adjacency(adjacency, "sym")``.
        probabilities: P, [n, classes].
        labels: int64 [n]; those of other nodes than the known are not looked at.
        known: bool [n].
        correct: alpha of the first walk.
        smooth: alpha of the second.
    """
    truth = one_hot(labels[known], probabilities.size(1)).to(probabilities)
    errors = torch.zeros_like(probabilities)
    errors[known] = truth - probabilities[known]
    spread = restart_walk(matrix, errors, [correct], STEPS, (-1, 1)).squeeze(1)
    scale = errors[known].abs().sum() / len(truth) / spread.abs().sum(1, keepdim=True)
    scale = torch.where(scale.isinf() | (scale > 1000), 1, scale)  # next to nothing arrived
    corrected = (probabilities + scale * spread).index_put((known,), truth)
    return restart_walk(matrix, corrected, [smooth], STEPS, (0, 1)).squeeze(1)
