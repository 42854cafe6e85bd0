"""The target population: what the nodes to predict lack, and held-out nodes masked to resemble them."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data import Graph
from pairnorm.data.adjacency import hops
from pairnorm.data.features import stored_rows, with_values
from pairnorm.data.split import Stream

# Shares of missing features that differ by less are taken as equal.
MIN_DIFFERENCE = 0.05
# Nodes farther than this many hops, or unreachable, share a stratum.
MAX_HOPS = 3
# A stratum of fewer held-out nodes does not state an accuracy.
MIN_STRATUM = 5
NORMAL_95 = 1.959964


@dataclass(frozen=True, eq=False)
class Target:
    """The nodes that a model is fitted for, and what they lack.

    Args:
        source: which nodes these are, in words.
        nodes: bool [n]; none of the graph's nodes where the target was given as a share.
        missing: what each of them lacks, bool [m] (whole vectors) or [m, d] (single features).
    """

    source: str
    nodes: Tensor
    missing: Tensor

    @classmethod
    def estimate(cls, graph: Graph, given: str | float = "auto") -> Target | None:
        """Estimate the target population of a graph. Returns None where held-out nodes need no mask."""
        if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1:
            missing = torch.arange(1000, device=graph.device) < round(1000 * given)
            return cls("nodes as given by target", torch.zeros_like(graph.labeled), missing)
        if given not in ("auto", "labeled"):
            problem = f"target is {quoted(given)}"
            expected = "'auto', 'labeled', or a share between 0 and 1"
            raise PairNormError(problem, code="unknown-choice", value=given, expected=expected)
        nodes, source = ~graph.labeled, "unlabeled nodes"
        if not nodes.any():
            nodes, source = graph.test, "test nodes"
        if given == "labeled" or not nodes.any():
            return None
        return cls(source, nodes, graph.missing[nodes])

    @property
    def missing_vectors(self) -> Tensor:
        """bool [m]: the target nodes without any feature."""
        return self.missing if self.missing.dim() == 1 else self.missing.all(1)

    def mask(self, graph: Graph, held_out: Tensor, seed: int = 0) -> Tensor | None:
        r"""Draw the known features to hide from held-out nodes, so that these lack what the target lacks.

        Whole vectors come first, until the shares of nodes without any feature agree. Then every other node
        copies what a target node drawn at random lacks. With $q_j$ and $p_j$ the shares of target and of
        held-out nodes that lack feature $j$, a gap is copied with the probability
        $(q_j - p_j) / (q_j (1 - p_j))$: the held-out share becomes $q_j$, and gaps that go together in the
        target go together here. Held-out nodes that lack more than the target stay as they are.

        Returns:
            bool [n] or [n, d], as ``graph.missing`` is; None where nothing is to be hidden.
        """
        if not held_out.any():
            return None
        hidden = self._mask_vectors(graph, held_out, seed)
        if graph.missing.dim() == 2:
            hidden = self._mask_columns(graph, held_out & ~hidden & ~graph.missing_vectors, seed) | (
                hidden[:, None] & ~graph.missing
            )
        return hidden if hidden.any() else None

    def _mask_vectors(self, graph: Graph, held_out: Tensor, seed: int) -> Tensor:
        there = held_out & ~graph.missing_vectors
        excess = float(self.missing_vectors.float().mean() - graph.missing_vectors[held_out].float().mean())
        hidden = torch.zeros_like(held_out)
        if excess >= MIN_DIFFERENCE:
            order = torch.from_numpy(Stream(seed, "classify target").order(graph.num_nodes)).to(graph.device)
            hidden[order[there[order]][: round(excess * int(held_out.sum()))]] = True
        return hidden

    def _mask_columns(self, graph: Graph, nodes: Tensor, seed: int) -> Tensor:
        hidden = torch.zeros_like(graph.missing)
        patterns = self.missing[~self.missing_vectors] if self.missing.dim() == 2 else self.missing[:0]
        rows = nodes.nonzero().squeeze(1)
        if not len(patterns) or not len(rows):
            return hidden
        target, own = patterns.double().mean(0), graph.missing[rows].double().mean(0)
        keep = ((target - own) / (target * (1 - own)).clamp(min=1e-12)).clamp(0, 1)
        keep = keep.where(target - own >= MIN_DIFFERENCE, 0)
        stream = Stream(seed, "classify target columns")
        donors = torch.from_numpy(np.resize(stream.order(len(patterns)), len(rows))).to(graph.device)
        # One number per node: columns that are always missing together are hidden together.
        draw = torch.from_numpy(stream.uniform(len(rows))).to(graph.device)
        hidden[rows] = patterns[donors] & (draw[:, None] < keep) & ~graph.missing[rows]
        return hidden


def hide(graph: Graph, hidden: Tensor | None) -> Graph:
    """Return the graph without some of its features."""
    if hidden is None:
        return graph
    missing, cells = graph.missing, hidden
    if missing.dim() != cells.dim():
        missing, cells = (one if one.dim() == 2 else one[:, None] for one in (missing, cells))
    missing = missing | cells
    return graph.replace(features=hide_features(graph.features, hidden), missing=missing)


def hide_features(features: Tensor, hidden: Tensor) -> Tensor:
    """Return features that are zero where they are hidden."""
    visible = ~hidden.to(features.device)
    if features.layout != torch.sparse_csr:
        return features * (visible[:, None] if visible.dim() == 1 else visible)
    rows = stored_rows(features)
    stored = visible[rows] if visible.dim() == 1 else visible[rows, features.col_indices()]
    return with_values(features, features.values() * stored)


def lacks_most(graph: Graph) -> NDArray[np.bool_]:
    """Return bool [n]: the nodes that lack more than half of their features."""
    missing = graph.missing.cpu()
    most = missing if missing.dim() == 1 else missing.float().mean(1) > 0.5
    return np.asarray(most.numpy())


def strata(graph: Graph, labeled: Tensor) -> NDArray[np.int64]:
    """Return int64 [n]: nodes of one stratum are as far from a known label and from a node with features.

    Distances are hops; all beyond ``MAX_HOPS`` and all unreachable ones count as equal.
    """
    strata = np.zeros(graph.num_nodes, dtype=np.int64)
    for sources in (labeled.cpu().numpy(), ~lacks_most(graph)):
        distance = hops(graph.adjacency.cpu(), sources)
        far = (distance < 0) | (distance > MAX_HOPS)
        strata = strata * (MAX_HOPS + 2) + np.where(far, MAX_HOPS + 1, distance)
    return strata


class Standardized(NamedTuple):
    """The accuracy that held-out nodes suggest for the target, after weighting by stratum.

    Args:
        accuracy: over the strata that have enough held-out nodes.
        low: lower end of its 95% interval.
        high: upper end.
        unmatched: share of the target in strata without enough held-out nodes, which no figure describes.
    """

    accuracy: float
    low: float
    high: float
    unmatched: float


def standardize(
    right: NDArray[np.bool_], held_out: NDArray[np.int64], target: NDArray[np.int64]
) -> Standardized:
    r"""Weight the accuracy of every stratum by its share of the target (direct standardization).

    $\hat a = \sum_s w_s a_s$, with Wilson's interval for the effective number of nodes
    $1 / \sum_s (w_s^2 / n_s)$ (Kish, 1965).
    """
    names, counts = np.unique(target, return_counts=True)
    sizes = np.array([np.count_nonzero(held_out == name) for name in names])
    enough = sizes >= MIN_STRATUM
    unmatched = float(counts[~enough].sum() / max(counts.sum(), 1))
    if not enough.any():
        return Standardized(nan, nan, nan, unmatched)
    weights = counts[enough] / counts[enough].sum()
    hits = np.array([right[held_out == name].sum() for name in names[enough]])
    p, nodes = float(weights @ (hits / sizes[enough])), 1 / float(weights**2 @ (1 / sizes[enough]))
    pull = NORMAL_95**2 / nodes
    center, half = p + pull / 2, sqrt(pull * (p * (1 - p) + pull / 4))
    return Standardized(p, (center - half) / (1 + pull), (center + half) / (1 + pull), unmatched)
