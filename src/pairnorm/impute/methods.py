"""All fills by name, each with the adjacency it was published with."""

from typing import NamedTuple

from torch import Tensor

from pairnorm.base.errors import one_of
from pairnorm.impute.constant import mean, zero
from pairnorm.impute.feature_propagation import feature_propagation
from pairnorm.impute.known import Fill
from pairnorm.impute.mask import mask
from pairnorm.impute.mass import mass
from pairnorm.impute.pcfi import pcfi
from pairnorm.nn import Normalization, SparseMatrix, normalized_adjacency


class Method(NamedTuple):
    """A fill, and the kind of ``normalized_adjacency`` it was published with.

    Args:
        fill: the function.
        kind: ``"rw"`` or ``"sym"``.
    """

    fill: Fill
    kind: Normalization


FILLS = {
    "zero": Method(zero, "rw"),
    "mean": Method(mean, "rw"),
    "mass": Method(mass, "rw"),
    "fp": Method(feature_propagation, "sym"),
    "pcfi": Method(pcfi, "rw"),
    "mask": Method(mask, "rw"),
}


def fill_missing(name: str, adjacency: Tensor | SparseMatrix, features: Tensor, known: Tensor) -> Tensor:
    """Return features in which something stands in for what is missing, [n, d] or [n, trials, d].

    >>> import torch
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> features, known = torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([True, False, True])
    >>> fill_missing("mass", path, features, known).round(decimals=3)
    tensor([[1.],
            [2.],
            [3.]])

    Args:
        name: one of ``FILLS``.
        adjacency: as ``normalized_adjacency`` takes it.
        features: [n, d], dense or ``torch.sparse_csr``; what stands at missing places, NaN too, is not read.
        known: bool. Whole vectors: [n], or [n, trials, 1] with a mask for each trial. Single entries: [n, d],
            or [n, trials, d].
    """
    fill, kind = FILLS[one_of("fill", name, tuple(FILLS))]
    return fill(normalized_adjacency(adjacency, kind, num_nodes=len(features)), features, known)
