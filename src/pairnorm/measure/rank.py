"""How many dimensions a representation still uses."""

import torch
from torch import Tensor

from pairnorm.measure.states import over_trials


@torch.no_grad()
def effective_rank(x: Tensor) -> Tensor:
    """Return exp(−Σ_k p_k ln p_k), p_k = σ_k / Σ_l σ_l, over the singular values σ of X.

    The convention is that of Roy & Vetterli (2007, "The effective rank"): the singular values, not their
    squares, of ``x`` as it is, not centred. Zhang et al. (2025, "Are We Measuring Oversmoothing in Graph
    Neural Networks Correctly?") propose the effective rank as a measure of oversmoothing. The value lies in
    [1, min(n, d)], 1 if all rows are parallel; that of a zero or empty matrix is 0.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].

    >>> effective_rank(torch.eye(3))
    tensor(3.)
    """
    return over_trials(x, _effective_rank)


def _effective_rank(x: Tensor) -> Tensor:
    if not bool(x.isfinite().all()):
        return x.new_tensor(torch.nan)  # the decomposition would raise; a measure of NaN is NaN
    tall = x if x.shape[0] >= x.shape[1] else x.T
    values = torch.linalg.svdvals(torch.linalg.qr(tall, mode="r").R)
    total = values.sum()
    entropy = torch.special.entr(values / total.where(total > 0, 1)).sum()
    return torch.where(total > 0, entropy.exp(), 0)
