"""A node as a row of a table: its own columns, those of its neighbors, its degree, and labels near it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import whole_number
from pairnorm.classify.candidates.sgc import FittedSGC, SGCFamily
from pairnorm.classify.candidates.task import Candidate, KnownLabels, SavedState, State, Task
from pairnorm.classify.scaling import PreparedGraph, random_walk
from pairnorm.data.adjacency import along_and_against, csr_matrix
from pairnorm.data.features import stored_rows
from pairnorm.impute.methods import broadcast_mask, known_values
from pairnorm.nn import SparseMatrix
from pairnorm.nn.propagate import propagate_with_restart

NUM_FOLDS = 10
ALPHA, PROPAGATION_STEPS = 0.9, 20
MAX_HOPS = 10
# Of more features than this, the leading principal components are used.
MAX_FEATURES = 64
EXTRAS = ("SGC", "structure", "missing", "extremes", "eigenvectors")
DIRECTIONS = ("out-neighbors", "in-neighbors")
NUM_EIGENVECTORS, RETURN_STEPS, PAGERANK_STEPS, MAX_CORE_ROUNDS = 16, (2, 3, 4), 50, 1000
# The product of the transition matrix with itself has at most this many entries.
MAX_PRODUCT_ENTRIES = 10**7
# Depths, scales and folds of the SGC whose out-of-fold probabilities are columns.
SGC_DEPTHS, SGC_SCALES, SGC_FOLDS = (1, 2, 4), (3.0, 10.0, 30.0, 100.0), 5
Key = tuple[str, str]
"""The source and the name of a column."""


class NodeTable(NamedTuple):
    """A table with a row per node. Its columns are in named blocks: matrices with n rows."""

    blocks: Mapping[str, Tensor]

    def take(self, nodes: Tensor) -> NodeTable:
        """Return the table of the given nodes, on the CPU."""
        return NodeTable({name: block[nodes.to(block.device)].cpu() for name, block in self.blocks.items()})

    def rows(self, nodes: slice = slice(None), names: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return the rows of a slice of nodes, with the named blocks side by side; default: all blocks."""
        blocks = self.blocks.values() if names is None else [self.blocks[name] for name in names]
        return torch.cat([block[nodes] for block in blocks], 1).cpu().numpy()


class NodeValues(NamedTuple):
    """Values of nodes, [m, columns], matched in any graph by the nodes' ``fingerprints``, int64 [m]."""

    names: Tensor
    values: Tensor

    def in_graph(self, prepared: PreparedGraph) -> Tensor:
        """Return the values of a graph's nodes, [n, columns]; NaN where not known."""
        row = KnownLabels(self.names, torch.arange(len(self.names))).labels_in(prepared)
        values = torch.where((row >= 0)[:, None], self.values[row.clamp(min=0)], torch.nan)
        return values.to(prepared.device)


class NodeColumns(NamedTuple):
    """Settings and known labels, from which the columns of the nodes of any graph are computed.

    Args:
        hops: how many hops around a node its columns cover.
        features: number of features, or of principal components, where there are axes, [d, features].
        directed: whether in-neighbors and out-neighbors have separate columns, too.
        extras: names of further blocks: ``"extremes"`` (least and largest value of the neighbors),
            ``"structure"`` (PageRank, core number, return probabilities), ``"missing"`` (own missing values,
            and the share of neighbors whose value is known), ``"eigenvectors"`` (of the Laplacian, for the
            nodes of the fitted graph), ``"SGC"`` (its probabilities; out-of-fold for training nodes).
        stored: the eigenvectors of the fitted nodes, and the out-of-fold probabilities of training nodes.
        sgc: the fitted SGC.
    """

    hops: int
    known: KnownLabels
    classes: int
    features: int
    axes: Tensor | None = None
    directed: bool = False
    extras: tuple[str, ...] = ()
    stored: Mapping[str, NodeValues] = {}
    sgc: FittedSGC | None = None

    @classmethod
    def of(cls, task: Task, hops: int, directed: bool = False, extras: Sequence[str] = ()) -> Self:
        """Return the columns of a task's nodes, given the labels of its training nodes."""
        features, axes = task.features.shape[1], None
        if features > MAX_FEATURES:
            axes = task.prepared.principal_axes(MAX_FEATURES)
            features = axes.shape[1]
        stored, sgc = {}, None
        if "eigenvectors" in extras:
            names = torch.from_numpy(task.prepared.node_fingerprints)
            stored["eigenvectors"] = NodeValues(names, laplacian_eigenvectors(task.prepared))
        if "SGC" in extras:
            sgc, stored["SGC"] = _stack_sgc(task)
        known = KnownLabels.of(task)
        return cls(hops, known, task.classes, features, axes, directed, tuple(extras), stored, sgc)

    def state(self) -> State:
        """Return settings and tensors, from which ``restore`` builds the columns again."""
        settings: dict[str, Any] = {"hops": self.hops}
        settings |= ({"directed": True} if self.directed else {}) | (
            {"extras": list(self.extras)} if self.extras else {}
        )
        tensors = self.known._asdict() | ({} if self.axes is None else {"axes": self.axes})
        for block, (names, values) in self.stored.items():
            tensors |= {f"{block}.names": names, f"{block}.values": values}
        if self.sgc is not None:
            sgc_settings, weights = self.sgc.state()
            settings["sgc"] = sgc_settings | {"depth": self.sgc.depth}
            tensors |= {f"sgc.{name}": tensor for name, tensor in weights.items()}
        return settings, tensors

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read and validate the result of ``state``."""
        hops = whole_number("hops", saved.settings.get("hops", 1), least=1, most=MAX_HOPS)
        features, axes = saved.width, saved.axes
        if axes is not None and features > MAX_FEATURES:
            raise ValueError(f"there are {features} axes, more than {MAX_FEATURES}")
        known, directed = KnownLabels.restore(saved.tensors, saved.classes), saved.settings.get("directed")
        extras = tuple(saved.settings.get("extras", ()))
        if not set(extras) <= set(EXTRAS) or len(set(extras)) < len(extras):
            raise ValueError("the trees have unknown blocks of columns")
        stored, sgc = {}, None
        for block, width in {"eigenvectors": NUM_EIGENVECTORS, "SGC": saved.classes}.items():
            if block in extras:
                names = saved.tensors[f"{block}.names"]
                if names.dim() != 1 or names.dtype != torch.int64 or not len(names):
                    raise ValueError("names are not fingerprints")
                stored[block] = NodeValues(names, saved.tensor(f"{block}.values", len(names), width))
        if "SGC" in extras:
            options = saved.settings["sgc"]
            depth = whole_number("depth", options["depth"], least=1, most=max(SGC_DEPTHS))
            tensors = {name[4:]: tensor for name, tensor in saved.tensors.items() if name.startswith("sgc.")}
            candidate = Candidate("SGC", "PN", depth)
            sgc = FittedSGC.restore(saved._replace(candidate=candidate, settings=options, tensors=tensors))
        return cls(hops, known, saved.classes, features, axes, directed is True, extras, stored, sgc)

    @property
    def blocks(self) -> dict[str, int]:
        """The names of the blocks, in order, and how many columns each has."""
        keys = self._keys_by_block([""] * self.features, [""] * self.classes)
        return {name: len(block) for name, block in keys.items()}

    def table(self, prepared: PreparedGraph) -> NodeTable:
        """Compute the table of all nodes of a graph."""
        labels, unprojected = label_columns(prepared, self.known, self.classes), prepared
        prepared = prepared.projected(self.axes)
        columns = [*feature_columns(prepared, self.hops), labels]
        if self.directed:
            columns.append(direction_columns(prepared, self.known, self.classes))
        for name in self.extras:
            if name in EXTRA_COLUMNS:
                block = prepared.cached(("extra columns", name), partial(EXTRA_COLUMNS[name], prepared))
            else:
                block = self.stored[name].in_graph(unprojected)
            if name == "SGC" and self.sgc is not None:
                block = block.where(~block.isnan(), self.sgc.logits(unprojected).softmax(-1)[:, 0])
            columns.append(block)
        return NodeTable(dict(zip(self.blocks, columns, strict=True)))

    def keys(self, features: Sequence[str], classes: Sequence[str]) -> list[Key]:
        """Return the source of each column (``"node"``, ``"neighborhood"`` or ``"labels"``) and its name."""
        if self.axes is not None:
            leading = self.axes.abs().topk(min(2, len(features)), 0).indices.T.tolist()
            features = [
                f"principal component {number} ({', '.join(features[feature] for feature in pair)}, …)"
                for number, pair in enumerate(leading)
            ]
        return [key for block in self._keys_by_block(features, classes).values() for key in block]

    def _keys_by_block(self, features: Sequence[str], classes: Sequence[str]) -> dict[str, list[Key]]:
        keys = {"own": _column_keys("node", "{}", features)}
        keys |= {
            f"hop {hop}": _column_keys("neighborhood", "{}", features) for hop in range(1, self.hops + 1)
        }
        keys["degree"] = [("node", "number of neighbors")]
        keys["labels"] = _column_keys("labels", "neighbors labeled {}", classes)
        keys["labels"] += _column_keys("labels", "number of {}", ["labeled neighbors"])
        keys["labels"] += _column_keys("labels", "{} around it", classes)
        if self.directed:
            keys["directions"] = []
        for direction in DIRECTIONS if self.directed else ():
            keys["directions"] += _column_keys("neighborhood", f"{{}} of {direction}", features)
            keys["directions"] += [("node", f"number of {direction}")]
            keys["directions"] += _column_keys("labels", f"{direction} labeled {{}}", classes)
            keys["directions"] += [("labels", f"number of labeled {direction}")]
        returns = [f"return after {steps} steps" for steps in RETURN_STEPS]
        extremes = (_column_keys("neighborhood", f"{end} {{}}", features) for end in ("least", "largest"))
        extra = {
            "extremes": [key for end in extremes for key in end],
            "structure": _column_keys("node", "{}", ("PageRank", "core number", *returns)),
            "missing": [
                *_column_keys("node", "{} is missing", features),
                *_column_keys("neighborhood", "share that has {}", features),
            ],
            "eigenvectors": _column_keys("node", "Laplacian eigenvector {}", range(1, NUM_EIGENVECTORS + 1)),
            "SGC": _column_keys("neighborhood", "SGC's probability of {}", classes),
        }
        return keys | {name: extra[name] for name in self.extras}


def _column_keys(source: str, text: str, names: Iterable[Any]) -> list[Key]:
    return [(source, text.format(name)) for name in names]


def feature_columns(prepared: PreparedGraph, hops: int) -> Sequence[Tensor]:
    """Return a node's own features and, for each hop, the mean of known values that far away; NaN if none.

    The mean after k hops is over the ends of all random walks of k steps. The last column is the logarithm of
    1 + degree: hops + 1 times [n, d], then [n, 1].
    """
    for more in range(hops, MAX_HOPS + 1):
        if (columns := prepared.peek(("feature columns", more))) is not None:
            return [*columns[: hops + 1], columns[-1]]

    def compute() -> list[Tensor]:
        features, known = prepared.dense, _known_mask(prepared)
        matrix, degree = prepared.random_walk
        means = _known_means(matrix, features, known, hops)
        return [torch.where(known, features, torch.nan), *means, degree.log1p().unsqueeze(1)]

    return prepared.cached(("feature columns", hops), compute)


def _known_mask(prepared: PreparedGraph) -> Tensor:
    return ~broadcast_mask(prepared.dense, prepared.graph.missing.to(prepared.device))


def _known_means(matrix: SparseMatrix, features: Tensor, known: Tensor, hops: int) -> Iterator[Tensor]:
    """Yield, for 1 to ``hops`` hops, the mean of the known values that far away; NaN where there is none."""
    values, share = known_values(features, ~known), known.float()
    for _ in range(hops):
        values, share = matrix @ values, matrix @ share
        yield _divide_or_nan(values, share)


def _divide_or_nan(values: Tensor, total: Tensor) -> Tensor:
    return torch.where(total > 1e-12, values / total.clamp(min=1e-12), torch.nan)


def direction_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return columns of the neighbors along a node's edges, then against them: [n, 2 (d + classes + 2)].

    Of each direction: the mean of known features, the logarithm of 1 + degree, the shares of classes among
    labeled neighbors, and the logarithm of 1 + the number of these. Where all edges of the graph go both
    ways, both directions have the same columns.
    """
    graph, one_hot = prepared.graph, known.one_hot(prepared, classes)
    columns: list[Tensor] = []
    for adjacency in along_and_against(graph.adjacency, graph.directed):
        matrix, degree = random_walk(adjacency, prepared.device)
        columns += _known_means(matrix, prepared.dense, _known_mask(prepared), 1)
        columns += [degree.log1p().unsqueeze(1), *_neighbor_shares(matrix, degree, one_hot)]
    return torch.cat(columns, 1)


def label_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return class shares of labeled neighbors, the number of these, and class shares by label propagation.

    No column of a node depends on its own label, else a model would learn to copy it: a node is not its own
    neighbor, and label propagation starts from the labels of other folds, to which nodes belong by name. So a
    known node has the same columns whether it trains a model or is predicted. [n, 2 classes + 1].
    """
    one_hot = known.one_hot(prepared, classes)

    def compute() -> Tensor:
        device, nodes = one_hot.device, torch.arange(len(one_hot), device=one_hot.device)
        folds = torch.from_numpy(prepared.node_fingerprints % NUM_FOLDS).to(device)
        folds = folds.where(one_hot.any(1), NUM_FOLDS)
        # One set of columns per fold, from the labels outside it, and one from all labels, for other nodes.
        outside = (folds[:, None] != torch.arange(NUM_FOLDS + 1, device=device)).float()
        start = (outside[:, :, None] * one_hot[:, None]).flatten(1)
        state = propagate_with_restart(prepared.adjacency("rw"), start, [ALPHA], PROPAGATION_STEPS)
        far = state.view(len(one_hot), NUM_FOLDS + 1, classes)[nodes, folds]
        shares = _divide_or_nan(far, far.sum(1, keepdim=True))
        return torch.cat([*_neighbor_shares(*prepared.random_walk, one_hot), shares], 1)

    return prepared.cached(("label columns", one_hot.bool().cpu().numpy().tobytes()), compute)


def _neighbor_shares(matrix: SparseMatrix, degree: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of classes among labeled neighbors, and the logarithm of 1 + their number."""
    near = (matrix @ one_hot) * degree[:, None]
    count = near.sum(1, keepdim=True)
    return _divide_or_nan(near, count), count.log1p()


def _extremes(prepared: PreparedGraph) -> Tensor:
    """Return the smallest and the largest known value of a node's neighbors, [n, 2 d]; NaN without any."""
    features, known = prepared.dense, _known_mask(prepared).expand_as(prepared.dense)
    adjacency = prepared.graph.adjacency.to(prepared.device)
    row, column = stored_rows(adjacency), adjacency.col_indices().long()
    columns = []
    for reduce, empty in (("amin", torch.inf), ("amax", -torch.inf)):
        for values in torch.where(known, features, empty).unbind(1):  # one at a time, to save memory
            start = torch.full_like(values, empty)
            columns.append(start.scatter_reduce(0, row, values[column], reduce))
    extremes = torch.stack(columns, 1)
    return extremes.where(extremes.isfinite(), torch.nan)


def _structure(prepared: PreparedGraph) -> Tensor:
    """Return the logarithm of n · PageRank, the core number, and return probabilities: [n, 5]."""
    from scipy.sparse import diags_array

    adjacency = csr_matrix(prepared.graph.adjacency)
    nodes, degree = adjacency.shape[0], np.asarray(adjacency.sum(1)).ravel()
    walk = diags_array(1 / np.maximum(degree, 1e-12)) @ adjacency
    rank = np.full(nodes, 1 / nodes)
    for _ in range(PAGERANK_STEPS):
        rank = 0.85 * (walk.T @ rank) + 0.15 / nodes
    pattern, core, active, level = adjacency > 0, np.zeros(nodes), np.ones(nodes, bool), 0.0
    degrees = np.asarray(pattern.sum(1)).ravel().astype(float)
    for _ in range(MAX_CORE_ROUNDS):  # each removes the nodes of least degree
        if not active.any():
            break
        level = max(level, degrees[active].min())
        removed = active & (degrees <= level)
        core[removed], active = level, active & ~removed
        degrees -= pattern @ removed.astype(float)
    core[active] = level
    returns = np.full((nodes, len(RETURN_STEPS)), np.nan)
    if int((np.diff(adjacency.indptr).astype(float) ** 2).sum()) <= MAX_PRODUCT_ENTRIES:
        two = walk @ walk
        powers = {2: two.diagonal(), 3: two.multiply(walk.T).sum(1), 4: two.multiply(two.T).sum(1)}
        returns = np.stack([np.asarray(powers[steps]).ravel() for steps in RETURN_STEPS], 1)
    columns = np.column_stack([np.log(nodes * rank), core, returns]).astype(np.float32)
    return torch.from_numpy(columns).to(prepared.device)


def _missing(prepared: PreparedGraph) -> Tensor:
    """Return which values of a node are missing, and the share of its neighbors that have each: [n, 2 d]."""
    known = _known_mask(prepared).expand_as(prepared.dense).float()
    return torch.cat([1 - known, prepared.random_walk[0] @ known], 1)


EXTRA_COLUMNS: dict[str, Callable[[PreparedGraph], Tensor]] = {
    "extremes": _extremes,
    "structure": _structure,
    "missing": _missing,
}


def laplacian_eigenvectors(prepared: PreparedGraph) -> Tensor:
    """Return the eigenvectors of the smallest eigenvalues of the normalized Laplacian, [n, 16]."""

    from scipy.sparse import diags_array
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    def compute() -> Tensor:
        matrix = csr_matrix(prepared.graph.adjacency).astype(np.float64)
        scale = diags_array(1 / np.sqrt(np.maximum(np.asarray(matrix.sum(1)).ravel(), 1e-12)))
        nodes = matrix.shape[0]
        vectors = np.zeros((nodes, NUM_EIGENVECTORS), np.float32)
        count = min(NUM_EIGENVECTORS, nodes - 2)
        if count > 0:
            start = np.random.default_rng(0).standard_normal(nodes)
            try:
                _, columns = eigsh(scale @ matrix @ scale, count, which="LA", tol=1e-3, v0=start, maxiter=500)
            except ArpackNoConvergence as error:
                columns = error.eigenvectors
            vectors[:, : columns.shape[1]] = columns[:, ::-1] * np.sqrt(nodes)
        return torch.from_numpy(vectors)

    return prepared.cached("eigenvectors", compute, edges_only=True)


def _stack_sgc(task: Task) -> tuple[FittedSGC, NodeValues]:
    """Fit an SGC, and return it with its out-of-fold probabilities of training nodes."""
    train = task.graph.train
    fold = torch.from_numpy(task.prepared.node_fingerprints % SGC_FOLDS).to(train.device)
    masks = [mask for number in range(SGC_FOLDS) if (mask := train & (fold == number)).any()]
    graph = task.graph.replace(validation=train & False)
    inner = replace(task, graph=graph, fold_masks=masks, feature_mask=None, pseudo_labels=None)
    inner = replace(inner, time_limit=inf)  # evaluate all
    results = SGCFamily(["PN"], SGC_DEPTHS, SGC_SCALES).fit(inner, lambda step: None)
    best = min(results, key=lambda result: result.validation_loss)
    fitted = best.fit(inner.with_all_folds)
    assert isinstance(fitted, FittedSGC)
    nodes = torch.cat([mask.nonzero().squeeze(1) for mask in masks]).cpu()
    names = torch.from_numpy(task.prepared.node_fingerprints)[nodes]
    return fitted, NodeValues(names, best.probabilities)
