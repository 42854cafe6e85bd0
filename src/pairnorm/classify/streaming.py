"""``fit`` for graphs larger than memory: candidates that stream, and predictions written in batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
from pairnorm.classify.candidates.task import SEARCH_SHARE, Candidate, Tick, evaluate_logits
from pairnorm.classify.evaluation import (
    METRICS,
    Scores,
    apply_tilt,
    fit_temperature,
    fit_tilt,
    mean_probabilities,
)
from pairnorm.classify.holdout import MIN_DIFFERENCE, complete_split
from pairnorm.classify.predictions import PREDICTION_FILES, prediction_rows, write_rows
from pairnorm.classify.regression import (
    LOOSE_TOLERANCE,
    MAX_SELECTION_ROWS,
    MAX_TRAINING_ROWS,
    SCALES,
    TOLERANCE,
    SearchLimits,
    default_norms,
    regressions,
    subsample,
)
from pairnorm.classify.scaling import MANY_NODES
from pairnorm.classify.search_space import (
    IMPUTATIONS,
    MAX_DEPTH,
    MAX_SCALE,
    MIN_SCALE,
    parse_imputation,
    resolve_time_limit,
)
from pairnorm.data import Graph, PackedGraph
from pairnorm.train.block_ops import BlockOps, make_plan
from pairnorm.train.propagation import Propagation, RayBlocks, label_propagation
from pairnorm.train.schedule import BACKENDS

if TYPE_CHECKING:
    import pandas

# Fewer than in memory: a propagation reaches the last of them before any is evaluated.
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
MAX_VALIDATION_ROWS = 10_000
ALPHA, ROUNDS = 0.9, 50
# Probabilities in memory at a time: nodes times classes.
BATCH_ENTRIES = 2**22
DRAFTS = LABELS, LOGITS = "labels", "logits"  # files that no run resumes from
LEFT_OUT = (
    "GCN, GAT, GCNII and APPNP, which keep a state per layer for their gradients",
    "PN-SCS, whose rows are scaled by all columns before they are centered",
    "row scaling: columns are standardized",
)


@dataclass(frozen=True, eq=False)
class Rows:
    """The nodes that train, select and evaluate a model; of the first two, stratified samples.

    ``train_labels`` are the labels of all training nodes, -1 elsewhere; ``prior`` is the share of each class
    among them, above 0.
    """

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    train_labels: NDArray[np.int32]
    prior: NDArray[np.float64]

    @classmethod
    def of(cls, graph: PackedGraph, seed: int) -> Rows:
        """Take the split of the graph, and draw missing parts."""
        labeled = np.flatnonzero(graph.labels >= 0)
        labels, split = graph.labels[labeled].astype(np.int64), graph.split[labeled]
        train, validation, test = (torch.from_numpy(split == part) for part in range(3))
        labeled_nodes = Graph.from_edges(
            np.zeros((2, 0), np.int64), labels=labels, num_nodes=len(labels), name=graph.folder.name,
            class_names=graph.facts.classes, train=train, validation=validation, test=test,
        )  # fmt: skip
        parts = [mask.numpy() for mask in complete_split(labeled_nodes, seed)]
        if not parts[1].any():
            problem = "no labeled node is left to select a model"
            raise PairNormError(problem, code="no-validation", hint="Label more nodes.")
        train_labels = np.full(graph.facts.nodes, -1, np.int32)
        train_labels[labeled[parts[0]]] = labels[parts[0]]
        train_rows, validation_rows = (
            labeled[part][subsample(torch.from_numpy(labels[part]), count).numpy()]
            for part, count in zip(parts, (MAX_TRAINING_ROWS, MAX_VALIDATION_ROWS), strict=False)
        )
        counts = np.bincount(labels[parts[0]], minlength=len(graph.facts.classes)).clip(min=1)
        return cls(train_rows, validation_rows, labeled[parts[2]], train_labels, counts / counts.sum())


class Streamed(NamedTuple):
    """An evaluated candidate: its score by the metric, and its propagation; None for label propagation."""

    candidate: Candidate
    score: float
    propagation: Propagation | None = None

    @property
    def validation_loss(self) -> float:
        """Mean cross-entropy on the validation nodes."""
        return self.candidate.validation_loss

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key, larger for better."""
        return self.candidate.rank_by(self.score)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of ``Streaming.run``: the candidates, the best first, and the logits of the best one.

    The logits, [n, classes], are a mapped file. For the tilt of the decision rule see ``fit_tilt``.
    """

    search: Streaming
    results: list[Streamed]
    logits: NDArray[np.float32]
    temperature: float
    tilt: float

    @property
    def best(self) -> Candidate:
        """The candidate that predicts."""
        return self.results[0].candidate

    @property
    def scores(self) -> Scores:
        """The scores on the test nodes."""
        rows, graph = self.search.rows.test, self.search.graph
        labels = graph.labels[rows].astype(np.int64)
        batches = (rows[batch] for batch in _batches(len(rows), len(graph.facts.classes)))
        predicted = [labels[:0], *(self._predict(batch)[1] for batch in batches)]
        return Scores.of(labels, np.concatenate(predicted), len(graph.facts.classes))

    def _predict(self, nodes: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the probabilities and the predicted classes of the given nodes."""
        logits = torch.from_numpy(np.array(self.logits[nodes]))[:, None]
        _check_finite(self.search.graph, logits)
        probabilities = mean_probabilities(logits, self.temperature).numpy()
        return probabilities, apply_tilt(probabilities, self.search.rows.prior, self.tilt).argmax(1)

    def write(self, folder: Path, parquet: bool = True, spreadsheet_safe: bool = False) -> None:
        """Write the predictions, a batch of nodes at a time, as CSV and, where ``parquet``, as Parquet."""
        writer: Any = None
        with self.search.timed("writing predictions"), ExitStack() as stack:
            csv, table = (folder / name for name in PREDICTION_FILES)
            file = stack.enter_context(open(csv, "w", encoding="utf-8", newline=""))
            for number, frame in enumerate(self._frames()):
                write_rows(frame, file, spreadsheet_safe, header=number == 0)
                if parquet:
                    import pyarrow
                    from pyarrow.parquet import ParquetWriter

                    rows = pyarrow.Table.from_pandas(frame, preserve_index=False)
                    if writer is None:  # pyarrow opens no path that is not UTF-8
                        sink = stack.enter_context(open(table, "wb"))
                        writer = stack.enter_context(ParquetWriter(sink, rows.schema))
                    writer.write_table(rows)

    def _frames(self) -> Iterator[pandas.DataFrame]:
        """Yield the rows of ``predictions.csv``, a batch of nodes at a time."""
        graph, first = self.search.graph, 0
        classes = np.array(graph.facts.classes)
        for names in graph.ids():
            for batch in _batches(len(names), len(classes)):
                rows = slice(first + batch.start, first + batch.stop)
                missing, labeled = graph.missing[rows] == 2, graph.labels[rows] >= 0
                probabilities, predicted = self._predict(rows)
                yield prediction_rows(names[batch], predicted, classes, probabilities, missing, labeled)
            first += len(names)

    @property
    def caveat(self) -> str:
        """A warning where test nodes lack fewer features than the nodes to predict; else empty."""
        missing, unlabeled = self.search.graph.missing == 2, self.search.graph.labels < 0
        if not unlabeled.any() or not len(self.search.rows.test):
            return ""
        target, test = float(missing[unlabeled].mean()), float(missing[self.search.rows.test].mean())
        if target - test < MIN_DIFFERENCE:
            return ""
        return (
            f"The accuracy is optimistic: {target:.0%} of the unlabeled nodes have no features, and "
            f"{test:.0%} of the test nodes. A packed graph is not masked. Name several models (--model "
            "SGC,label-propagation) to fit it in memory, where held-out nodes are masked like unlabeled ones."
        )

    @property
    def best_by_method(self) -> list[Streamed]:
        """The best candidate of each model, norm and imputation, the best first."""
        best: dict[tuple[str, ...], Streamed] = {}
        for result in self.results:
            best.setdefault((result.candidate.model, result.candidate.norm, result.candidate.setting), result)
        return list(best.values())


def _batches(count: int, classes: int) -> Iterator[slice]:
    """Yield ranges of nodes small enough that their class probabilities fit into memory."""
    length = max(1, BATCH_ENTRIES // classes)
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def _choose_methods(
    graph: PackedGraph, imputations: Sequence[str] | None, norms: Sequence[str] | None, usual: Sequence[str]
) -> list[tuple[str, str]]:
    """Return pairs of imputation and norm that propagation in blocks of columns can compute.

    Known neighbor means are propagated next to a state that no norm changes; feature propagation needs one.
    Both need nodes that have all features or none. A named imputation that is impossible is an error.
    """
    vectors, single = graph.facts.missing
    names = [parse_imputation("impute", name) for name in imputations or IMPUTATIONS]
    possible = {
        "zero": list(usual),
        "mass": [norm for norm in norms or ["none"] if norm == "none"],
        "fp": [norm for norm in usual if norm != "none"],
    }
    for name in names if imputations is not None else ():
        if name != "zero" and (single or (vectors and not possible[name])):
            problem = (
                f"imputation {name!r} of a packed graph needs nodes that have all features or none, and "
                f"{'no norm' if name == 'mass' else 'a norm'}"
            )
            hint = "Pass {impute}; or, where the graph fits memory, name several models: {model}"
            options = {"impute": "zero", "model": "SGC,label-propagation"}
            raise PairNormError(problem, code="not-together", value=name, hint=hint, **options)
    if not vectors or single:
        return [("zero", norm) for norm in usual]
    return [(name, norm) for name, modes in possible.items() if name in names for norm in modes]


class Streaming:
    """A search over candidates that stream; its plan and steps are known before any work.

    Args:
        graph: the graph.
        work: a folder for finished parts, from which a killed search resumes.
        memory: the most bytes to use, of the GPU's memory on a GPU. Default: what is free.
        depths: of SGC, like the next three. Default of the norms: those of ``default_norms``.
        norms: ``"none"``, ``"PN"``, ``"PN-SI"``.
        scales: PairNorm's s.
        imputations: of missing vectors. Default: all that are possible; a named one that is not is an error.
        metric: that selects the model, one of ``METRICS``.
        label_propagation: whether to evaluate it too; without features it is the only candidate.
        seed: of a split that is drawn.
        time_limit: as in memory, 0 for none: no propagation or depth starts that is predicted to end after
            half of it. The first propagation always finishes; a cluster computes all of them.
        device: ``"cpu"``, or ``"cuda"``: the GPU propagates blocks of columns, except those of PN-SI.
        backend: ``"here"``, or ``"ray"``: blocks of columns go to the cluster at ``$RAY_ADDRESS``, else to
            the one that this machine is in.
        on_progress: called with the name of every finished step.
    """

    def __init__(
        self,
        graph: PackedGraph,
        work: Path,
        memory: int | None = None,
        *,
        depths: Sequence[int] = DEPTHS,
        norms: Sequence[str] | None = None,
        scales: Sequence[float] = SCALES,
        imputations: Sequence[str] | None = None,
        metric: str = "accuracy",
        label_propagation: bool = True,
        seed: int = 0,
        time_limit: float | str = 0,
        device: str = "cpu",
        backend: str = "here",
        on_progress: Tick = lambda done: None,
    ) -> None:
        if not graph.facts.classes:
            problem = f"{graph.folder}: no node has a class"
            hint = "Pack it again and name the column that holds them: {label}"
            raise PairNormError(problem, code="no-labels", hint=hint, label=...)
        graph.check()
        depths = sorted({whole_number("depth", depth, 1, MAX_DEPTH) for depth in depths})
        scales = [real_number("scale", scale, least=MIN_SCALE, most=MAX_SCALE) for scale in scales]
        self.graph, self.work, self.scales, self.on_progress = graph, work, sorted(scales), on_progress
        self._with_label_propagation = label_propagation
        self.rows = Rows.of(graph, seed)
        stored = np.concatenate([self.rows.train, self.rows.validation])
        self.cluster = RayBlocks() if one_of("backend", backend, BACKENDS) == "ray" else None
        self.device, self.seconds = device, dict[str, float]()
        self.time_limit = resolve_time_limit(time_limit, 0)
        workers_memory = None if self.cluster is None else self.cluster.memory
        self.plan = make_plan(graph.facts, len(stored), len(depths), memory, device, workers_memory)
        many, numbers = graph.facts.nodes >= MANY_NODES, len(self.rows.train) * graph.facts.features
        self.metric = one_of("metric", metric, METRICS)
        self._limits = SearchLimits(many, numbers, self.metric)
        methods = _choose_methods(graph, imputations, norms, norms or default_norms("rw", many))
        self.left_out: tuple[str, ...] = LEFT_OUT
        if graph.facts.missing[1]:
            self.left_out += (
                "imputation by neighbor means and feature propagation, as single features are missing",
            )
        if many and norms is None:
            self.left_out += ("PN-SI, whose states lie on disk: there are many nodes",)
        self.propagations = [
            Propagation(graph, work, stored, tuple(depths), self.plan.width, imputation, norm, on_progress)
            for imputation, norm in (methods if graph.facts.features else [])
        ]

    @property
    def steps(self) -> int:
        """The maximum number of calls of ``on_progress``, without the last steps of a prediction."""
        return sum(propagation.steps + len(propagation.depths) for propagation in self.propagations) + 1

    def run(self) -> Outcome:
        """Evaluate all candidates, and predict with the best."""
        self.work.mkdir(parents=True, exist_ok=True)
        results: list[Streamed] = []
        logits: Any = None
        self._started, longest = time.perf_counter(), 0.0
        if self.cluster is not None:
            self.cluster.run(self.propagations, self.plan.peak(self.plan.width))
        with self.timed("reading the adjacency"):
            ops = BlockOps(self.graph, self.device)
        if self._with_label_propagation or not self.propagations:
            with self.timed("propagating labels"):
                logits, result = self._propagate_labels(ops)
            results.append(result)
        for number, propagation in enumerate(self.propagations):
            start = time.perf_counter()
            if number and not self._allows(longest):
                self.left_out += (f"SGC-{propagation.norm}, {propagation.imputation}: time was up",)
                continue
            on_device = propagation if propagation.norm == "PN-SI" else replace(propagation, ops=ops)
            with self.timed("propagating features"):
                on_device.run()
            with self.timed("evaluating candidates"):
                results += self._candidates(on_device)
            longest = max(longest, time.perf_counter() - start)
        results.sort(key=lambda result: result.rank, reverse=True)
        with self.timed("predicting"):
            if results[0].propagation is not None:
                logits = self._logits(results[0].propagation, results[0].candidate)
        held_out = torch.from_numpy(logits[self.rows.validation])[:, None]
        labels, prior = self._labels(self.rows.validation), torch.from_numpy(self.rows.prior)
        temperature = fit_temperature(held_out, labels)
        _, tilt = fit_tilt(self.metric, labels, mean_probabilities(held_out, temperature), prior)
        return Outcome(self, results, logits, temperature, tilt)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of a stage to ``seconds``."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def _labels(self, nodes: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(self.graph.labels[nodes].astype(np.int64))

    def _evaluate(
        self, candidate: Candidate, logits: torch.Tensor, propagation: Propagation | None = None
    ) -> Streamed:
        _check_finite(self.graph, logits)
        labels, prior = self._labels(self.rows.validation), torch.from_numpy(self.rows.prior)
        evaluated, _, score = evaluate_logits(candidate, logits[:, None], labels, self.metric, prior)
        return Streamed(evaluated, score, propagation)

    def _candidates(self, propagation: Propagation) -> Iterator[Streamed]:
        """Yield one SGC per depth and scale, within the search limits."""
        steps = (self._regressions(propagation, depth) for depth in propagation.depths)
        name = f"SGC-{propagation.norm}, {propagation.imputation}"
        for _, results in self._limits.depths(propagation.depths, steps, self.on_progress, name):
            yield from results
            if not self._allows():
                break

    def _allows(self, seconds: float = 0.0) -> bool:
        """Return whether a step of some seconds ends within the search's share of the time limit."""
        return time.perf_counter() - self._started + seconds <= SEARCH_SHARE * self.time_limit

    def _regressions(self, propagation: Propagation, depth: int) -> Iterator[Streamed]:
        """Yield one SGC per scale, from small to large, fitted to a sample of the training nodes."""
        state, labels = torch.from_numpy(propagation.state(depth)), self._labels(self.rows.train)
        _check_finite(self.graph, state)
        sample, held_out = subsample(labels, MAX_SELECTION_ROWS), state[len(labels) :]
        setting = "" if propagation.imputation == "zero" else f"imputed by {propagation.imputation}"
        solutions = regressions(
            state[sample], labels[sample], len(self.graph.facts.classes), self.scales, LOOSE_TOLERANCE
        )
        for scale, weight, bias in solutions:
            candidate = Candidate("SGC", propagation.norm, depth, scale, setting=setting)  # type: ignore[arg-type]
            yield self._evaluate(candidate, scale * held_out @ weight + bias, propagation)

    def _logits(self, propagation: Propagation, best: Candidate) -> NDArray[np.float32]:
        labels, classes = self._labels(self.rows.train), len(self.graph.facts.classes)
        state = torch.from_numpy(propagation.state(best.depth)[: len(labels)])
        tolerance = LOOSE_TOLERANCE if self._limits.many_nodes else TOLERANCE
        ((scale, weight, bias),) = regressions(state, labels, classes, [best.scale], tolerance)
        return propagation.logits((scale * weight).numpy(), bias.numpy(), best.depth, self.work / LOGITS)

    def _propagate_labels(self, ops: BlockOps) -> tuple[NDArray[np.float32], Streamed]:
        """Return the logits of label propagation, and its evaluation.

        Nodes where no label arrives get the mean over the nodes to label where some do.
        """
        path, labels, classes = self.work / LABELS, self.rows.train_labels, len(self.graph.facts.classes)
        logits = label_propagation(ops, labels, ALPHA, ROUNDS, self.plan.width, path)
        counts = np.bincount(labels[labels >= 0], minlength=classes)
        expected, batches = np.zeros(classes), list(_batches(len(logits), classes))
        for rows in batches:
            total = logits[rows].sum(1)
            reached = (total > 0) & (labels[rows] < 0)
            expected += (logits[rows][reached] / total[reached, None]).sum(0)
        shares = expected / expected.sum() if expected.any() else counts / counts.sum()
        fallback = (1e-12 * counts.sum() * shares + 1e-30).astype(np.float32)
        for rows in batches:
            np.log(logits[rows] + fallback, out=logits[rows])
        candidate = Candidate("label propagation", setting=f"α = {ALPHA:g}")
        self.on_progress("label propagation")
        return logits, self._evaluate(candidate, torch.from_numpy(logits[self.rows.validation]))


def _check_finite(graph: PackedGraph, state: torch.Tensor) -> None:
    if not state.isfinite().all():
        problem = f"{graph.folder}: the states of some nodes are not finite"
        hint = "Pack the graph again with smaller weights."
        raise PairNormError(problem, code="not-finite", value=str(graph.folder), hint=hint)
