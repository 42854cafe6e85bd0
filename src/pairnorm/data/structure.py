"""Features for a graph that has none: what a node's place among the edges tells, at a cost linear in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.adjacency import csr_matrix

STRUCTURE = (
    "log degree",
    "mean log degree of neighbours",
    "deviation of log degree of neighbours",
    "log core number",
    "log size of component",
)


def structural_features(adjacency: Tensor) -> Tensor:
    """Return the columns of ``STRUCTURE``, [n, 5]; logarithms are of 1 + x, and 0 without neighbours."""
    from scipy.sparse.csgraph import connected_components

    matrix = csr_matrix(adjacency.cpu())
    matrix.data = np.ones_like(matrix.data)
    degrees = np.diff(matrix.indptr)
    logs = np.log1p(degrees)
    each = np.maximum(degrees, 1)
    mean = matrix @ logs / each
    variance = matrix @ logs**2 / each - mean**2
    members = connected_components(matrix, directed=False)[1]
    sizes = np.bincount(members)[members]
    columns = [logs, mean, np.sqrt(variance.clip(0)), np.log1p(core_numbers(matrix)), np.log1p(sizes)]
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32)).to(adjacency.device)


def core_numbers(matrix: Any) -> NDArray[np.int64]:
    """Return of each node the largest k for which it is in a subgraph whose degrees are all k or more.

    Nodes of the smallest degree are taken away together, again and again (Batagelj & Zaversnik, 2003), each
    edge being looked at twice.
    """
    degrees = np.diff(matrix.indptr).astype(np.int64)
    cores = np.zeros(len(degrees), dtype=np.int64)
    left, core = np.flatnonzero(degrees > 0), 0
    gone = degrees == 0
    while len(left):
        core = max(core, int(degrees[left].min()))
        lowest = left[degrees[left] <= core]
        while len(lowest):
            cores[lowest], gone[lowest] = core, True
            touched, times = np.unique(matrix[lowest].indices, return_counts=True)
            touched, times = touched[~gone[touched]], times[~gone[touched]]
            degrees[touched] -= times
            lowest = touched[degrees[touched] <= core]
        left = left[~gone[left]]
    return cores
