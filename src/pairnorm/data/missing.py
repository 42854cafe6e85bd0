"""Which features are missing: the masks of SSNC-MV and its relatives. A mask is data and edits nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.features import SCALINGS, row_normalise, stored_rows, stored_values, with_values
from pairnorm.data.graph import Graph
from pairnorm.data.random import Stream
from pairnorm.errors import PairNormError, one_of, real_number, whole_number


@dataclass(frozen=True, eq=False)
class Features:
    """Features shared by all trials, and which of them each trial keeps.

    Args:
        values: [n, d], scaled, dense or ``torch.sparse_csr``.
        keep: bool, what survives in each trial: [nnz, trials] (stored entries) where ``values`` is sparse;
            [n, trials] (whole rows) or [n, trials, d] (single entries) where it is dense.
    """

    values: Tensor
    keep: Tensor

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return self.keep.shape[1]

    def trial(self, number: int) -> Tensor:
        """Return what one trial sees, [n, d], of the same kind as ``values``; what is erased is zero."""
        keep = self.keep[:, number]
        if self.values.layout == torch.sparse_csr:
            return with_values(self.values, self.values.values() * keep)
        return self.values * (keep if keep.dim() == 2 else keep[:, None])

    def dense(self) -> Tensor:
        """Return what every trial sees as one dense tensor, [n, trials, d]."""
        if self.values.layout == torch.sparse_csr:
            return torch.stack([self.trial(number).to_dense() for number in range(self.trials)], 1)
        return self.values[:, None] * (self.keep if self.keep.dim() == 3 else self.keep[..., None])


def features_after(graph: Graph, missing: Missing | None = None, scaling: str = "rows") -> Features:
    """Return a graph's features, scaled, then erased where missing. The graph is not changed.

    Args:
        graph: whose features.
        missing: what to erase, in each trial. Default: nothing, one trial.
        scaling: ``"rows"`` for ``row_normalise``, ``"none"`` for features as they are.
    """
    values, device = graph.features, graph.device
    if one_of("scaling", scaling, SCALINGS) == "rows":
        values = row_normalise(values)
    sparse = values.layout == torch.sparse_csr
    entries = values.values().numel() if sparse else values.numel()
    if missing is None:
        keep = torch.ones(entries if sparse else graph.num_nodes, 1, dtype=torch.bool, device=device)
        return Features(values, keep)

    keep = ~missing.mask.to(device)
    expected = entries if missing.kind == "entries" else graph.num_nodes
    if len(keep) != expected:
        problem = f"missing is about {len(keep):,} {missing.unit}, but graph {graph.name!r} has {expected:,}"
        raise PairNormError(
            problem, code="wrong-shape", value=len(keep), remedy="Draw it anew for this graph."
        )
    if sparse and missing.kind != "entries":
        keep = keep[stored_rows(values)]
    elif not sparse and missing.kind == "entries":
        keep = keep.view(graph.num_nodes, graph.num_features, -1).transpose(1, 2)
    return Features(values, keep)


@dataclass(frozen=True, eq=False, repr=False)
class Missing:
    """What is missing, in each trial.

    Args:
        kind: ``'vectors'`` (outside the training set), ``'nodes'`` (anywhere), ``'entries'``, or ``'given'``.
        rate: the fraction that is missing.
        seed: of trial 0; trial t was drawn with seed + t. None where nothing was drawn.
        mask: bool, True where missing: [n, trials], or [entries, trials] for ``'entries'``: the stored ones
            of sparse features, all n d of dense ones, row by row.
    """

    kind: str
    rate: float
    seed: int | None
    mask: Tensor

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return self.mask.shape[1]

    @property
    def unit(self) -> str:
        """What the mask is about: nodes or entries."""
        return "entries" if self.kind == "entries" else "nodes"

    def __repr__(self) -> str:
        counts = self.mask.sum(0)
        low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        found = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"Missing(kind={self.kind!r}, rate={self.rate:g}, seed={self.seed}, trials={self.trials}: "
            f"{found} of {len(self.mask):,} {self.unit})"
        )


def missing_vectors(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the missing vectors of SSNC-MV: a fraction p = |M| / |V_u| of the nodes outside the training set.

    Trial t depends on seed + t alone. What is missing at one rate is missing at every higher rate too.

    Args:
        graph: whose nodes; those in ``graph.train`` keep their vectors.
        rate: p, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _uniform("vectors", ~graph.train, rate, trials, seed)


def missing_nodes(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the nodes that lose their vectors from all nodes, those of the training set included.

    Args:
        graph: whose nodes.
        rate: the fraction of nodes, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _uniform("nodes", torch.ones_like(graph.train), rate, trials, seed)


def missing_entries(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw single entries: of sparse features among the stored ones, for a zero that is lost stays zero.

    Args:
        graph: whose features.
        rate: the fraction of entries, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    stored = stored_values(graph.features).flatten()
    return _uniform("entries", torch.ones_like(stored, dtype=torch.bool), rate, trials, seed)


def given_missing(graph: Graph, trials: int = 1) -> Missing:
    """Return the vectors that the data itself lacks. (Single entries it lacks are zero already.)

    Args:
        graph: whose nodes.
        trials: how often to repeat the mask.
    """
    mask = graph.missing_vectors
    rate = float(mask.double().mean()) if len(mask) else 0.0
    return Missing("given", rate, None, mask[:, None].repeat(1, whole_number("trials", trials, least=1)))


def drawn(
    kind: str,
    among: Tensor,
    rate: float,
    trials: int,
    seed: int,
    purpose: str,
    keys: Callable[[Stream], NDArray[Any]],
) -> Missing:
    """Mark the ``rate`` of candidates whose keys are smallest, anew for each trial."""
    rate = real_number("rate", rate, least=0, most=1)
    candidates = np.flatnonzero(among.cpu().numpy())
    count = round(rate * len(candidates))
    mask = np.zeros((len(among), whole_number("trials", trials, least=1)), dtype=bool)
    for trial in range(trials):
        # Every node draws a key, so that the key of a node does not depend on who is in the training set.
        chosen = keys(Stream(seed + trial, purpose))[candidates]
        mask[candidates[np.argsort(chosen, kind="stable")[:count]], trial] = True
    return Missing(kind, rate, seed, torch.from_numpy(mask).to(among.device))


def _uniform(kind: str, among: Tensor, rate: float, trials: int, seed: int) -> Missing:
    return drawn(kind, among, rate, trials, seed, f"missing {kind}", lambda stream: stream.keys(len(among)))
