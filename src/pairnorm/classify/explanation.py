"""Explain predictions by features and neighbors, measure smoothing depth by depth, and suggest a depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates import Average, Fitted
from pairnorm.classify.candidates.boosted_trees import Trees
from pairnorm.classify.candidates.columns import Key
from pairnorm.classify.candidates.ensemble import PROPAGATION_STEPS, PropagatedLabels, smooth
from pairnorm.classify.candidates.networks import Network
from pairnorm.classify.candidates.sgc import FittedSGC
from pairnorm.classify.regression import span
from pairnorm.classify.scaling import PreparedGraph, has_many_nodes
from pairnorm.data import Graph
from pairnorm.data.adjacency import reachable
from pairnorm.measure import col_diff, effective_rank, row_diff
from pairnorm.nn import Normalization, SparseMatrix, normalized_adjacency
from pairnorm.nn.ops.pair_norm import normalize_and_measure
from pairnorm.nn.propagate import propagate_with_restart

if TYPE_CHECKING:
    import pandas

# A block of contributions to all classes has at most this many entries.
BLOCK_ENTRIES = 2**22
DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60)
# Graphs with many nodes are measured up to this depth.
MAX_DEPTH_MANY_NODES = 16
ROW_DIFF_NODES, COL_DIFF_NODES, COL_DIFF_COLUMNS = 400, 50_000, 300
HEADINGS = ("depth", "row-diff", "with PN", "col-diff", "with PN", "effective rank", "with PN")
TINY = 1e-30
# Random signs that estimate the number of nodes that an average is over.
NUM_SIGNS = 64
# An average over fewer nodes is noise; the depths that this gives are near the best ones of the paper.
MIN_SOURCES = 20
# A depth that reaches this share of the largest number of sources is deep enough.
SUFFICIENT_SHARE = 0.95
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Rows = tuple[Integers, NDArray[np.str_], NDArray[np.object_], Floats]
Explainer = Callable[[Integers, Integers], tuple[Tensor, Tensor]]


class Explanation(NamedTuple):
    """The largest contributions to the predicted class of each node.

    Args:
        sources: where the contribution comes from: ``"node"`` (its own feature), ``"neighborhood"`` (a
            feature averaged over neighbors, or propagated), ``"labels"`` (known labels around it) or
            ``"neighbor"`` (what arrives through one neighbor).
        names: the feature, the class, or the id of the neighbor.
        values: log-odds of the predicted class against the others; for neighbors, the share of what arrives.
        explained: share of the ensemble's weight that these describe; the rest are networks.
    """

    nodes: Integers
    sources: NDArray[np.str_]
    names: NDArray[np.object_]
    values: Floats
    explained: float

    def table(self, ids: NDArray[np.object_], predicted: NDArray[np.object_]) -> pandas.DataFrame:
        """Return the columns id, predicted, source, name and value, node after node."""
        import pandas

        about = {"id": ids[self.nodes], "predicted": predicted[self.nodes]}
        return pandas.DataFrame(about | {"source": self.sources, "name": self.names, "value": self.values})


@dataclass(frozen=True)
class Member:
    """A fitted candidate whose logits are sums over named columns; ``keys`` are their sources and names.

    ``explain`` takes nodes and a class for each; it returns the contributions of the columns to the margin of
    that class, [m, columns], and the rest of the margin, [m]. The margin is the logit minus the mean logit of
    the other classes. ``sent`` is what each node sends in the last propagation step, [n, classes].
    """

    keys: Sequence[Key]
    explain: Explainer | None
    adjacency: Normalization = "sym"
    sent: Tensor | None = None


def explain_member(fitted: Fitted, prepared: PreparedGraph, classes: Sequence[str]) -> Member | None:
    """Return the additive form of a fitted candidate; None where it has none.

    Linear models are exact; trees have TreeSHAP values (Lundberg et al., 2020).
    """
    graph, device = prepared.graph, prepared.device
    names = graph.feature_names or [f"feature {number}" for number in range(graph.num_features)]
    if isinstance(fitted, FittedSGC):
        basis, states = fitted.states(prepared, last=2)
        explain = _linear_explainer(states[-1], basis, fitted.weight, fitted.bias)
        margins = _margins(fitted.weight).to(device)
        sent = states[0] @ (margins if basis is None else basis.T @ margins) if len(states) > 1 else None
        source = "neighborhood" if fitted.depth else "node"
        return Member([(source, name) for name in names], explain, fitted.propagation.normalization, sent)
    if isinstance(fitted, PropagatedLabels):
        start = fitted.known.one_hot(prepared, fitted.classes)
        matrix = prepared.adjacency("sym")
        sent = propagate_with_restart(matrix, start, [fitted.alpha], PROPAGATION_STEPS)[:, 0]
        return Member([], None, "sym", sent)
    if isinstance(fitted, Trees):
        return Member(fitted.columns.keys(names, classes), _tree_explainer(fitted, prepared))
    return None


def _margins(values: Tensor | Floats) -> Tensor:
    """Subtract from the values of each class, in the last dimension, the mean of the other classes."""
    values = torch.as_tensor(values).float().cpu()
    count = values.shape[-1]
    return (values - values.mean(-1, keepdim=True)) * (count / max(count - 1, 1))


def _linear_explainer(state: Tensor, basis: Tensor | None, weight: Tensor, bias: Tensor) -> Explainer:
    weights, constants, state = _margins(weight), _margins(bias), state.cpu()

    def explain(nodes: Integers, classes: Integers) -> tuple[Tensor, Tensor]:
        rows = state[nodes] if basis is None else state[nodes] @ basis.cpu().T
        return rows * weights[:, classes].T, constants[classes]

    return explain


def _tree_explainer(fitted: Trees, prepared: PreparedGraph) -> Explainer:
    import lightgbm

    table, known = fitted.columns.table(prepared), fitted.ensemble.classes
    booster = lightgbm.Booster(model_str=fitted.ensemble.text)
    numbers = torch.zeros(fitted.columns.classes, dtype=torch.int64).index_put(
        (known,), torch.arange(len(known))
    )

    def explain(nodes: Integers, classes: Integers) -> tuple[Tensor, Tensor]:
        rows = table.take(torch.from_numpy(nodes)).rows()
        raw = np.asarray(booster.predict(rows, pred_contrib=True)).reshape(len(rows), -1, rows.shape[1] + 1)
        parts = torch.from_numpy(raw).float()
        parts = torch.cat([-parts / 2, parts / 2], 1) if parts.shape[1] == 1 else parts
        margins = _margins(parts[:, : len(known)].transpose(1, 2))
        margins = margins[torch.arange(len(rows)), :, numbers[classes]]
        return margins[:, :-1], margins[:, -1]

    return explain


def explain_predictions(
    model: Average,
    prepared: PreparedGraph,
    predicted: Integers,
    classes: Sequence[str],
    nodes: Integers | None = None,
    top: int = 5,
) -> Explanation:
    """Return the largest contributions to the predicted class of each node, a weighted mean over members."""
    graph = prepared.graph
    nodes = np.arange(graph.num_nodes) if nodes is None else nodes
    total = sum(weight for weight, _, _ in model.parts)
    members, others = [], 0
    for weight, _, fitted in model.parts:
        member = explain_member(fitted, prepared, classes)
        if member is not None:
            members.append((weight, member))
        elif isinstance(fitted, Network):
            others += weight
    evidence = _evidence(model, members, prepared)
    parts = [*_feature_rows(members, predicted, nodes, top, len(classes))]
    parts.append(_neighbor_rows(evidence, prepared, predicted, nodes, top))
    about, sources, names, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(about, kind="stable")
    return Explanation(about[order], sources[order], names[order], values[order], 1 - others / total)


def _feature_rows(
    members: Sequence[tuple[int, Member]], predicted: Integers, nodes: Integers, top: int, classes: int
) -> Iterator[Rows]:
    """Yield, a block of nodes at a time, the largest contributions of features."""
    explained = [
        (weight, member.keys, member.explain) for weight, member in members if member.explain is not None
    ]
    # Several columns may have one name: the means after one and after three steps, for instance.
    names = list(dict.fromkeys(key for _, keys, _ in explained for key in keys))
    if not names:
        return
    numbers = {key: number for number, key in enumerate(names)}
    total = sum(weight for weight, _, _ in explained)
    sources, texts = (np.array(part, dtype=object) for part in zip(*names, strict=True))
    length = max(1, BLOCK_ENTRIES // (len(names) * classes))
    for start in range(0, len(nodes), length):
        block = nodes[start : start + length]
        values = torch.zeros(len(block), len(names))
        for weight, keys, explain in explained:
            contributions, _ = explain(block, predicted[block])
            values.index_add_(1, torch.tensor([numbers[key] for key in keys]), weight / total * contributions)
        largest = values.abs().topk(min(top, len(names))).indices
        values = values.gather(1, largest)
        shown = (values != 0).numpy()
        column = largest.numpy()[shown]
        yield block[shown.nonzero()[0]], sources[column].astype(str), texts[column], values.numpy()[shown]


def _evidence(
    model: Average, members: Sequence[tuple[int, Member]], prepared: PreparedGraph
) -> Iterator[tuple[float, Normalization, Tensor]]:
    """Yield the weight, adjacency normalization and sent logits, [n, classes], of each propagation step."""
    smoothing = 0.0 if model.smooth is None else model.smooth.alpha
    total = sum(weight for weight, _, _ in model.parts)
    for weight, member in members:
        if member.sent is not None:
            yield (1 - smoothing) * weight / total, member.adjacency, member.sent
    if model.smooth is not None:
        labels = model.known.labels_in(prepared).to(prepared.device)
        mean = replace(model, smooth=None).logits(prepared).exp()[:, 0]
        yield smoothing, "sym", smooth(prepared, mean, labels, [smoothing])[:, 0]


def _neighbor_rows(
    evidence: Iterable[tuple[float, Normalization, Tensor]],
    prepared: PreparedGraph,
    predicted: Integers,
    nodes: Integers,
    top: int,
) -> Rows:
    """Return the neighbors through which most evidence for the predicted class arrives, with their shares."""
    graph, pattern = prepared.graph, prepared.adjacency("sym").pattern
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(pattern.crow.cpu().numpy()))
    columns = pattern.column.cpu().numpy()
    entries = np.flatnonzero(np.isin(rows, nodes))
    rows, columns = rows[entries], columns[entries]
    shares, total = np.zeros(len(entries)), 0.0
    for weight, kind, sent in evidence:
        values = prepared.adjacency(kind).values.cpu().numpy()
        arriving = values[entries] * sent.cpu().numpy()[columns, predicted[rows]]
        sums = np.bincount(rows, np.abs(arriving), graph.num_nodes)[rows]
        shares += weight * np.divide(arriving, sums, out=np.zeros_like(shares), where=sums > 0)
        total += weight
    shares /= max(total, 1e-12)
    others = np.flatnonzero((columns != rows) & (shares != 0))
    order = others[np.lexsort((-np.abs(shares[others]), rows[others]))]
    about = rows[order]
    rank = np.arange(len(order)) - np.searchsorted(about, about)
    order = order[rank < top]
    names = graph.node_names[columns[order]].astype(str).astype(object)
    return rows[order], np.full(len(order), "neighbor"), names, shares[order].astype(np.float32)


@dataclass(frozen=True)
class SmoothingMeasures:
    """Measures of features after ``depth`` propagation steps, with a norm or without."""

    norm: str
    depth: int
    row_diff: float
    col_diff: float
    effective_rank: float


def smoothing(
    graph: Graph,
    features: Tensor,
    in_time: Callable[[], bool] = lambda: True,
    tick: Callable[[str], None] = lambda done: None,
) -> list[SmoothingMeasures]:
    """Measure oversmoothing by depth: propagate features with D̃⁻¹Ã, without PairNorm and with it (PN).

    Measured on at most 400 nodes (row-diff, effective rank), and 300 columns of at most 50,000 nodes
    (col-diff), drawn at random; of a graph with many nodes, at the first depths only.

    Args:
        graph: whose edges.
        features: [n, d], scaled.
        in_time: whether to measure a further depth; the first three are always measured.
        tick: called after every depth.
    """
    depths = [depth for depth in DEPTHS if depth <= MAX_DEPTH_MANY_NODES or not has_many_nodes(graph)]
    matrix, rows = normalized_adjacency(graph.adjacency, "rw").to(features.device), []
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(graph.num_nodes, generator=generator)
    samples = order[:ROW_DIFF_NODES], order[:COL_DIFF_NODES].sort().values
    columns = torch.randperm(graph.num_features, generator=generator)[:COL_DIFF_COLUMNS]
    dense = features.to_dense()
    used, (basis, reduced) = dense[:, columns].any(0), span(dense)
    for depth, (state, length, row) in zip(range(max(depths) + 1), _states(matrix, reduced), strict=False):
        if depth > depths[2] and not in_time():
            break
        if depth not in depths:
            continue
        for norm in ("none", "PN"):
            drawn, many = (state[nodes] if norm == "PN" else length * state[nodes] + row for nodes in samples)
            # A column of zeros stays one: rounding would count as a difference.
            between = col_diff(used * (many[:, columns] if basis is None else many @ basis[columns].T))
            measures = float(row_diff(drawn)), float(between), float(effective_rank(drawn))
            rows.append(SmoothingMeasures(norm, depth, *measures))
        tick(f"propagation, depth {depth}")
    return rows


def _states(matrix: SparseMatrix, state: Tensor) -> Iterator[tuple[Tensor, float, Tensor]]:
    """Yield a state with PairNorm, a length and a row per depth; without PairNorm it is length · state + row.

    Every row of D̃⁻¹Ã sums to one: a centered state and the same state without centering differ by one row
    after a step. PairNorm's state is stored, because small differences are lost next to a large mean.
    """
    row, length = state.new_zeros(state.shape[1]), 1.0
    while True:
        state, (mean, square) = normalize_and_measure(state, 1.0, TINY, "PN")
        row, length = row + length * mean, length * max(float(square.sqrt()), TINY)
        yield state, length, row
        state = matrix @ state


def smoothing_table(rows: Sequence[SmoothingMeasures]) -> list[list[str]]:
    """Format smoothing by depth as table rows with the columns ``HEADINGS``; differences as % of depth 0."""
    plain, normed = ([row for row in rows if row.norm == norm] for norm in ("none", "PN"))

    def share(lines: list[SmoothingMeasures], number: int, measure: str) -> str:
        start = getattr(lines[0], measure)
        return f"{getattr(lines[number], measure) / start:.0%}" if start else "–"

    return [
        [
            str(line.depth),
            *(share(lines, number, name) for name in ("row_diff", "col_diff") for lines in (plain, normed)),
            *(f"{lines[number].effective_rank:.1f}" for lines in (plain, normed)),
        ]
        for number, line in enumerate(plain)
    ]


@dataclass(frozen=True)
class Suggestion:
    """A depth to start from, and why.

    Args:
        depth: the number of graph convolutions.
        sources: the median number of nodes with features that a node averages over at that depth.
        missing: how many nodes have no features.
        unreachable: how many of those no path connects to a node with features.
        deepest: the largest depth that was measured.
    """

    depth: int
    sources: float
    missing: int
    unreachable: int
    deepest: int

    @property
    def reason(self) -> str:
        """The reason, in words."""
        missing, count = self.missing > 0, round(self.sources)
        who = f"half of the nodes {'without features ' if missing else ''}average over at least"
        whom = "with features" if missing else "including themselves"
        text = f"At depth {self.depth} {who} {count} node{'' if count == 1 else 's'} {whom}"
        if self.sources < MIN_SOURCES:
            deeper = "was not measured" if self.depth == self.deepest else "adds hardly any"
            return f"{text}, fewer than the recommended {MIN_SOURCES}; a larger depth {deeper}."
        return f"{text}, enough for a stable average."


def suggest_depth(graph: Graph, deepest: int = max(DEPTHS), seed: int = 0) -> Suggestion:
    r"""Return the smallest depth at which half of the nodes without features average over 20 others or more.

    At depth $K$ a node's state averages over the nodes $j$ with features, with the weights
    $w_j = (\tilde{\mathbf{A}}^K)_{ij}$: over $(\sum_j w_j)^2 / \sum_j w_j^2$ of them, their number if
    the weights are equal. $\sum_j w_j^2$ is the mean square of $\sum_j \pm w_j$ over random signs. Nodes
    without a path to a node with features are left out; where all nodes have features, all count. Where no
    depth reaches enough, it is the smallest depth with nearly as many as any.

    Args:
        graph: whose edges, and which nodes lack features.
        deepest: the most that is suggested.
        seed: of the random signs.
    """
    missing = graph.missing_vectors.cpu()
    known = (~missing).float()
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (graph.num_nodes, NUM_SIGNS), generator=generator).float() * 2 - 1
    matrix = normalized_adjacency(graph.adjacency.cpu(), "rw")
    is_reachable = reachable(graph.adjacency, ~missing)
    nodes = is_reachable & (missing if missing.any() else torch.ones_like(missing))
    state = torch.cat([known[:, None], signs * known[:, None]], 1)
    counts: list[float] = []
    while len(counts) < deepest:
        state = matrix @ state
        total, square = state[nodes, 0].square(), state[nodes, 1:].square().mean(1)
        effective = torch.where(square > 0, total / square.where(square > 0, 1), 0)
        counts.append(float(effective.median()) if len(effective) else 0.0)
        if counts[-1] >= MIN_SOURCES or not len(effective):
            break
    enough = min(MIN_SOURCES, SUFFICIENT_SHARE * max(counts))
    depth = next(depth for depth, sources in enumerate(counts, 1) if sources >= enough)
    unreachable = int((missing & ~is_reachable).sum())
    return Suggestion(depth, counts[depth - 1], int(missing.sum()), unreachable, len(counts))
