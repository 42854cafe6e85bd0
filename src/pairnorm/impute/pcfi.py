"""Pseudo-confidence-based feature imputation (PCFI; Um et al., 2023): closer known values count for more."""

import torch
from torch import Tensor

from pairnorm.base.errors import real_number, whole_number
from pairnorm.impute.known import diffuse, divided, mask_of, through_weights
from pairnorm.nn import SparseMatrix


def pcfi(
    matrix: SparseMatrix,
    features: Tensor,
    known: Tensor,
    *,
    alpha: float = 0.9,
    beta: float = 1.0,
    steps: int = 100,
) -> Tensor:
    r"""Diffuse known features with confidence $\alpha^h$, h hops away from them, then between channels.

    $$
    \mathbf{X} \leftarrow \mathbf{M} \circ \mathbf{X}_0 + (1 - \mathbf{M}) \circ
    \mathbf{P} (\mathbf{C} \circ \mathbf{X}) \,/\, \mathbf{P} \mathbf{C} \qquad
    \hat{\mathbf{X}} = \mathbf{X} + \beta (1 - \mathbf{C}) \circ
    (\mathbf{C} \circ (\mathbf{X} - \bar{\mathbf{x}})) \mathbf{R}
    $$

    C is the confidence, R the correlation of the columns over all nodes, with a diagonal of zeros. The
    published weight $\alpha^{h_j - h_i + 1}$ of node j for node i is divided by the sum over j, so that what
    depends on i cancels and $\alpha^{h_j}$ is left: all columns share one sparse product. A node that is
    connected with no known value gets zero.

    The second part takes all columns at once, n d² operations and d² numbers: where they are too many, pass
    blocks of them with ``beta=0``, which leaves it out.

    Args:
        matrix: P, ``normalized_adjacency(adjacency)``.
        features: [n, d], dense or ``torch.sparse_csr``.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
        alpha: the confidence lost by a hop is 1 - alpha.
        beta: how much the other channels say.
        steps: how many steps.
    """
    alpha = real_number("alpha", alpha, above=0, most=1)
    beta = real_number("beta", beta)
    whole_number("steps", steps)
    mask = mask_of(features, known)
    confidence = _confidence(matrix, mask, alpha, features.dtype)
    # Of C ∘ X instead of X a step is one product and one gate.
    gate = ~mask * divided(confidence, matrix @ confidence)
    filled = through_weights(
        lambda values: divided(diffuse(matrix, values, gate, steps), confidence), features, mask
    )
    if not beta:
        return filled
    if filled.dim() == 2:
        told = _from_other_channels(filled, confidence)
    else:
        trials = zip(filled.unbind(1), confidence.unbind(1), strict=True)
        told = torch.stack([_from_other_channels(*trial) for trial in trials], 1)
    return filled + beta * (1 - confidence) * told


def _confidence(matrix: SparseMatrix, mask: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """Return alpha^h by a search in breadth from all known places at once; zero where it does not arrive."""
    confidence, reached, arrived, hop = mask.to(dtype), mask, mask, 0
    while arrived.any():
        hop += 1
        arrived = (matrix @ reached.to(dtype) > 0) & ~reached
        confidence, reached = confidence.masked_fill(arrived, alpha**hop), reached | arrived
    return confidence


def _from_other_channels(filled: Tensor, confidence: Tensor) -> Tensor:
    """Return what each column hears from those it correlates with, (C ∘ (X - mean)) R."""
    centerd = filled - filled.mean(0)
    norm = centerd.norm(dim=0)
    # A constant column differs from its mean by rounding alone, which says nothing about others.
    varies = norm > 100 * torch.finfo(filled.dtype).eps * filled.norm(dim=0)
    unit = centerd * torch.where(varies, 1 / norm, 0)
    correlation = (unit.T @ unit).fill_diagonal_(0)
    return (confidence * centerd) @ correlation
