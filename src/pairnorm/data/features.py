"""Operations on feature matrices, dense or sparse: scaling, missing values, structural features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.adjacency import components, csr_matrix, csr_tensor

SCALINGS = ("rows", "none")
# What a node's place among the edges tells, at a cost linear in them; for a graph that has no features.
STRUCTURE = (
    "log degree",
    "mean log degree of neighbors",
    "deviation of log degree of neighbors",
    "log core number",
    "log size of component",
)


def row_normalize(features: Tensor) -> Tensor:
    """Divide each row by its L1 norm, x_i / sum_j |x_ij|; a row of zeros stays zero.

    >>> row_normalize(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])

    Args:
        features: [n, d], dense or ``torch.sparse_csr``; the result is of the same kind.
    """
    if features.layout != torch.sparse_csr:
        norms = features.abs().sum(1, keepdim=True)
        return features / torch.where(norms > 0, norms, 1)
    values, stored = features.values(), features.crow_indices().diff()
    # Adds in order, so that the result is the same every time on CUDA too, which index_add does not promise.
    norms = torch.segment_reduce(values.abs(), "sum", lengths=stored, initial=0)
    return with_values(features, values / torch.where(norms > 0, norms, 1).repeat_interleave(stored))


def stored_values(features: Tensor) -> Tensor:
    """Return the stored entries of a CSR tensor, [nnz], or all entries of a dense one, [n, d]."""
    return features.values() if features.layout == torch.sparse_csr else features


def stored_rows(features: Tensor) -> Tensor:
    """Return the row of each stored entry of a CSR tensor, int64 [nnz]."""
    numbers = torch.arange(features.shape[0], device=features.device)
    return torch.repeat_interleave(numbers, features.crow_indices().diff())


def with_values(features: Tensor, values: Tensor) -> Tensor:
    """Return a CSR tensor with the same pattern as ``features`` and other values."""
    return sparse_csr(features.crow_indices(), features.col_indices(), values, features.shape)


def without_rows(features: Tensor, rows: Tensor) -> Tensor:
    """Return features that are zero in some rows.

    Args:
        features: [n, d], dense or ``torch.sparse_csr``.
        rows: bool [n].
    """
    kept = ~rows.to(features.device)
    if features.layout != torch.sparse_csr:
        return features * kept[:, None]
    return with_values(features, features.values() * kept[stored_rows(features)])


def take_columns(features: Tensor, places: Sequence[int]) -> Tensor:
    """Return the columns at ``places``, zeros for -1.

    Args:
        features: [n, d], dense or ``torch.sparse_csr``; the result is of the same kind.
        places: a column of ``features`` for each of the result, none of them twice.
    """
    if features.layout != torch.sparse_csr:
        padded = torch.cat([features, features.new_zeros(len(features), 1)], 1)
        return padded[:, torch.tensor(places, dtype=torch.int64, device=features.device)]
    from scipy.sparse import coo_array

    wanted = np.flatnonzero(np.asarray(places) >= 0)
    chosen = (np.ones(len(wanted), dtype=np.float32), (np.asarray(places)[wanted], wanted))
    moved = (csr_matrix(features) @ coo_array(chosen, shape=(features.shape[1], len(places))).tocsr()).tocsr()
    moved.sort_indices()
    return csr_tensor(moved).to(features.device)


def all_finite(features: Tensor) -> bool:
    """Say whether no entry is infinite or NaN."""
    values = stored_values(features)
    # A finite sum proves it ten times faster than a look at every entry; an infinite one may be an overflow.
    return bool(values.sum().isfinite() or values.isfinite().all())


def check_infinite(features: Tensor, node_names: Any, feature_names: Sequence[str] | None) -> None:
    """Raise an error that names the first feature that is infinite."""
    if not (infinite := stored_values(features).isinf()).any():
        return
    place = infinite.nonzero()[0].tolist()
    if features.layout == torch.sparse_csr:
        place = [int(stored_rows(features)[place[0]]), int(features.col_indices()[place[0]])]
    node, column = place
    feature = column if feature_names is None else quoted(feature_names[column])
    problem = f"feature {feature} of node {quoted(node_names.tolist()[node])} is not finite or beyond float32"
    hint = "Correct it, or make it NaN if it is missing."
    raise PairNormError(problem, code="not-finite", value=(node, column), hint=hint)


def nan_as_missing(features: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Return features with zero in place of NaN, and what is missing with the places of NaN added.

    >>> nan_as_missing(torch.tensor([[1.0, 2.0], [torch.nan, torch.nan]]), torch.tensor([False, False]))
    (tensor([[1., 2.],
            [0., 0.]]), tensor([False,  True]))
    """
    sparse = features.layout == torch.sparse_csr
    empty = stored_values(features).isnan()
    filled = stored_values(features).masked_fill(empty, 0)
    entries = with_values(features, empty.float()).to_dense() > 0 if sparse else empty
    entries = entries | (missing if missing.dim() == 2 else missing[:, None])
    whole = entries.all(1)
    missing = whole if torch.equal(whole, entries.any(1)) else entries
    return with_values(features, filled) if sparse else filled, missing


def structural_features(adjacency: Tensor) -> Tensor:
    """Return the columns of ``STRUCTURE``, [n, 5]; logarithms are of 1 + x, and 0 without neighbors."""
    matrix = csr_matrix(adjacency.cpu())
    matrix.data = np.ones_like(matrix.data)
    degrees = np.diff(matrix.indptr)
    logs = np.log1p(degrees)
    each = np.maximum(degrees, 1)
    mean = matrix @ logs / each
    variance = matrix @ logs**2 / each - mean**2
    members = components(adjacency).numpy()
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
