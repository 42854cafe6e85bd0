"""Which features are missing: the masks of SSNC-MV and its relatives. A mask is data and edits nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pairnorm.data.features import stored_values
from pairnorm.data.graph import Graph
from pairnorm.data.keys import Stream
from pairnorm.errors import PairNormError


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
    return _drawn("vectors", ~graph.train, rate, trials, seed)


def missing_nodes(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the nodes that lose their vectors from all nodes, those of the training set included.

    Args:
        graph: whose nodes.
        rate: the fraction of nodes, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _drawn("nodes", torch.ones_like(graph.train), rate, trials, seed)


def missing_entries(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw single entries: of sparse features among the stored ones, for a zero that is lost stays zero.

    Args:
        graph: whose features.
        rate: the fraction of entries, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    stored = stored_values(graph.features).flatten()
    return _drawn("entries", torch.ones_like(stored, dtype=torch.bool), rate, trials, seed)


def given_missing(graph: Graph, trials: int = 1) -> Missing:
    """Return the vectors that the data itself lacks. (Single entries it lacks are zero already.)

    Args:
        graph: whose nodes.
        trials: how often to repeat the mask.
    """
    mask = graph.missing_vectors
    rate = float(mask.double().mean()) if len(mask) else 0.0
    return Missing("given", rate, None, mask[:, None].repeat(1, _positive(trials)))


def _drawn(kind: str, among: Tensor, rate: float, trials: int, seed: int) -> Missing:
    """Mark the ``rate`` of candidates whose keys are smallest, anew for each trial."""
    if not 0 <= rate <= 1:
        raise PairNormError(f"rate is {rate}; expected a fraction from 0 to 1.")
    candidates = np.flatnonzero(among.cpu().numpy())
    count = round(rate * len(candidates))
    mask = np.zeros((len(among), _positive(trials)), dtype=bool)
    for trial in range(trials):
        # Every node draws a key, so that the key of a node does not depend on who is in the training set.
        keys = Stream(seed + trial, f"missing {kind}").keys(len(among))[candidates]
        mask[candidates[np.argsort(keys, kind="stable")[:count]], trial] = True
    return Missing(kind, float(rate), seed, torch.from_numpy(mask).to(among.device))


def _positive(trials: int) -> int:
    if trials < 1:
        raise PairNormError(f"trials is {trials}; expected at least 1.")
    return trials
