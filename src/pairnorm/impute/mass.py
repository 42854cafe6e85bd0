"""Propagation divided by the known mass it brought: a mean over the known values alone."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pairnorm.base.errors import whole_number
from pairnorm.impute.known import divided, in_blocks, mask_of, observed, through_weights
from pairnorm.nn import SparseMatrix


def mass_states(matrix: SparseMatrix, features: Tensor, known: Tensor, *, steps: int) -> Iterator[Tensor]:
    r"""Yield what SGC sees at each depth from 0 to ``steps``, divided by the known mass that arrived.

    $$\mathbf{H}_k = \mathbf{P}^k (\mathbf{M} \circ \mathbf{X}) \,/\, \mathbf{P}^k \mathbf{M}$$

    It is zero where no known value arrives within k steps. One step is the convolution of PaGNN (Jiang and
    Zhang, 2020) if the rows of P add up to one.

    Args:
        matrix: P, ``normalized_adjacency(adjacency)``.
        features: [n, d], dense or ``torch.sparse_csr``; or any block of its columns.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
        steps: the depth of the last state.
    """
    mask = mask_of(features, known)
    values, mass = observed(features, mask), mask.to(features.dtype)
    yield values
    for _ in range(whole_number("steps", steps)):
        values, mass = matrix @ values, matrix @ mass
        yield divided(values, mass)


def mass(matrix: SparseMatrix, features: Tensor, known: Tensor, *, steps: int = 10) -> Tensor:
    """Put the last of ``mass_states`` in place of what is missing; zero where no known value is in reach.

    Args:
        matrix: P, ``normalized_adjacency(adjacency)``.
        features: [n, d], dense or ``torch.sparse_csr``; or any block of its columns.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
        steps: how far to look.
    """
    whole_number("steps", steps)
    mask = mask_of(features, known)
    mass = mask.to(features.dtype)
    for _ in range(steps):
        mass = matrix @ mass

    def walk(values: Tensor, mask: Tensor, mass: Tensor) -> Tensor:
        spread = values
        for _ in range(steps):
            spread = matrix @ spread
        return torch.where(mask, values, divided(spread, mass))

    return through_weights(lambda values: in_blocks(walk, values, mask, mass), features, mask)
