"""Explain predictions: how much each feature and each neighbor adds to the predicted class."""

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
from pairnorm.classify.candidates.ensemble import smooth
from pairnorm.classify.candidates.label_propagation import ROUNDS, PropagatedLabels
from pairnorm.classify.candidates.networks import Network
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.sgc import FittedSGC, Linear
from pairnorm.nn import Normalization
from pairnorm.nn.propagate import propagate_with_restart

if TYPE_CHECKING:
    import pandas

# A block of contributions to all classes has at most this many entries.
BLOCK_ENTRIES = 2**22
TOP = 5
Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Key = tuple[str, str]
Explainer = Callable[[Integers, Integers], tuple[Floats, Floats]]


class Explanation(NamedTuple):
    """The largest contributions to the predicted class of each node.

    Args:
        nodes: int64 [rows], the node that each row is about.
        sources: where the contribution comes from: ``"node"`` (its own feature), ``"neighborhood"`` (a
            feature averaged over neighbors, or propagated), ``"labels"`` (known labels around it) or
            ``"neighbor"`` (what arrives through one neighbor).
        names: the feature, the class, or the id of the neighbor.
        values: log-odds of the predicted class against the others; for neighbors, the share of what arrives.
        explained: share of the ensemble's weight that these describe; the rest are GCN, GAT, GCNII and APPNP.
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
    """A fitted candidate whose logits are sums over named columns.

    Args:
        keys: source and name of each column.
        explain: takes nodes and a class for each; returns the contributions of the columns to the margin of
            that class, [m, columns], and the rest of the margin, [m]. The margin is the logit minus the mean
            logit of the other classes.
        adjacency: normalization of the last propagation step.
        sent: what each node sends in that step, [n, classes]; None without propagation.
    """

    keys: Sequence[Key]
    explain: Explainer
    adjacency: Normalization = "sym"
    sent: Tensor | None = None


def explain_member(fitted: Fitted, prepared: PreparedGraph, classes: Sequence[str]) -> Member | None:
    """Return the additive form of a fitted candidate; None where it has none.

    Linear models are exact; trees have TreeSHAP values (Lundberg et al., 2020).
    """
    graph, device = prepared.graph, prepared.device
    names = graph.feature_names or [f"feature {number}" for number in range(graph.num_features)]
    if isinstance(fitted, Linear):
        state = prepared.dense
        return Member([("node", name) for name in names], _linear(state, None, fitted.weight, fitted.bias))
    if isinstance(fitted, FittedSGC):
        module = fitted.module
        basis, states, scale = fitted.states(prepared, last=2)
        weight = module.weight[0].detach()
        explain = _linear(states[-1], basis, scale * weight, module.bias[0].detach())
        slopes = _margins(weight).to(device)
        sent = states[0] @ (slopes if basis is None else basis.T @ slopes) if len(states) > 1 else None
        return Member([("neighborhood", name) for name in names], explain, module.adjacency, sent)
    if isinstance(fitted, PropagatedLabels):
        start = fitted.known.one_hot(prepared, fitted.classes)
        matrix = prepared.adjacency("sym")
        sent = propagate_with_restart(matrix, start, [fitted.alpha], ROUNDS)[:, 0]
        return Member([], _nothing, "sym", sent)
    if isinstance(fitted, Trees):
        return Member(fitted.columns.keys(names, classes), _trees(fitted, prepared))
    return None


def _nothing(nodes: Integers, classes: Integers) -> tuple[Floats, Floats]:
    return np.zeros((len(nodes), 0), np.float32), np.zeros(len(nodes), np.float32)


def _margins(values: Tensor | Floats) -> Tensor:
    """Subtract from the values of each class, in the last dimension, the mean of the other classes."""
    values = torch.as_tensor(values).float().cpu()
    count = values.shape[-1]
    return (values - values.mean(-1, keepdim=True)) * (count / max(count - 1, 1))


def _linear(state: Tensor, basis: Tensor | None, weight: Tensor, bias: Tensor) -> Explainer:
    slopes, constants, state = _margins(weight), _margins(bias), state.cpu()

    def explain(nodes: Integers, classes: Integers) -> tuple[Floats, Floats]:
        rows = state[nodes] if basis is None else state[nodes] @ basis.cpu().T
        return (rows * slopes[:, classes].T).numpy(), constants[classes].numpy()

    return explain


def _trees(fitted: Trees, prepared: PreparedGraph) -> Explainer:
    import lightgbm

    table, known = fitted.columns.table(prepared), fitted.ensemble.classes
    booster = lightgbm.Booster(model_str=fitted.ensemble.text)
    numbers = torch.zeros(fitted.columns.classes, dtype=torch.int64).index_put(
        (known,), torch.arange(len(known))
    )

    def explain(nodes: Integers, classes: Integers) -> tuple[Floats, Floats]:
        rows = table.take(torch.from_numpy(nodes)).rows()
        raw = np.asarray(booster.predict(rows, pred_contrib=True)).reshape(len(rows), -1, rows.shape[1] + 1)
        parts = torch.from_numpy(raw).float()
        parts = torch.cat([-parts / 2, parts / 2], 1) if parts.shape[1] == 1 else parts
        margins = _margins(parts[:, : len(known)].transpose(1, 2))
        own = margins[torch.arange(len(rows)), :, numbers[classes]].numpy()
        return own[:, :-1], own[:, -1]

    return explain


def explain_predictions(
    model: Average,
    prepared: PreparedGraph,
    predicted: Integers,
    classes: Sequence[str],
    nodes: Integers | None = None,
    top: int = TOP,
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
) -> Iterator[tuple[Integers, NDArray[np.str_], NDArray[np.object_], Floats]]:
    """Yield, a block of nodes at a time, the largest contributions of features."""
    from scipy.sparse import csr_array

    keys = {
        key: number for number, key in enumerate(dict.fromkeys(key for _, one in members for key in one.keys))
    }
    if not keys:
        return
    members = [(weight, one) for weight, one in members if one.keys]
    total, top = sum(weight for weight, _ in members), min(top, len(keys))
    sources, names = (np.array(part, dtype=object) for part in zip(*keys, strict=True))
    # Several columns may have one name: the means after one and after three steps, for instance.
    sums = []
    for weight, one in members:
        entries = [keys[key] for key in one.keys], range(len(one.keys))
        shape = len(keys), len(one.keys)
        sums.append(csr_array((np.full(shape[1], weight / total, dtype=np.float32), entries), shape=shape))
    length = max(1, BLOCK_ENTRIES // (len(keys) * classes))
    for start in range(0, len(nodes), length):
        some = nodes[start : start + length]
        values = sum(
            (matrix @ member.explain(some, predicted[some])[0].T).T
            for matrix, (_, member) in zip(sums, members, strict=True)
        )
        order = np.argpartition(-np.abs(values), top - 1, axis=1)[:, :top]
        order = np.take_along_axis(
            order, np.argsort(-np.abs(np.take_along_axis(values, order, 1)), axis=1), 1
        )
        values = np.take_along_axis(values, order, 1)
        shown = values.ravel() != 0
        yield (
            some.repeat(top)[shown],
            sources[order.ravel()][shown].astype(str),
            names[order.ravel()][shown],
            values.ravel()[shown],
        )


def _evidence(
    model: Average, members: Sequence[tuple[int, Member]], prepared: PreparedGraph
) -> Iterator[tuple[float, Normalization, Tensor]]:
    """Yield a weight, the normalization of a propagation step, and what nodes send in it, [n, classes]."""
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
) -> tuple[Integers, NDArray[np.str_], NDArray[np.object_], Floats]:
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
