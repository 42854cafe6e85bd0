"""Run the comparison under missing features: train and evaluate pending runs."""

import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.compare import missing
from pairnorm.compare.baselines import fsd_cap, tuned_correct_and_smooth
from pairnorm.data import Graph
from pairnorm.data.features import UNKNOWN
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.runner import Batch, OnProgress, Sweep
from pairnorm.train import Progress, Spec, Store, Trial
from pairnorm.train.engine import Pair, find_device
from pairnorm.train.pools import Workers
from pairnorm.train.result import Origin
from pairnorm.train.schedule import Running
from pairnorm.train.trainers import GNNTrainer, SGCTrainer

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier

RECORDS = "missing"
"""Collection of a store with the evaluations."""


class Evaluation(NamedTuple):
    """A run of a method without epochs, or of a trained model with the fallback for unreachable nodes."""

    protocol: str
    dataset: str
    imputation: str
    model: str
    missing_percent: float
    seed: int
    accuracy: float
    macro_f1: float
    auc: float
    seconds: float
    git_commit: str
    finished: str
    device: str = ""

    @property
    def cell(self) -> missing.MissingCell:
        """The cell of the comparison."""
        return missing.MissingCell(*self[:5])


KEY_FIELDS = 6
"""The first fields of an evaluation, cell and seed, are its key in a store."""


def read_evaluations(store: Store) -> list[Evaluation]:
    """Read the evaluations of methods without epochs from a store."""
    kinds = list(Evaluation.__annotations__.values())
    try:
        return [
            Evaluation(*(kind(value) for kind, value in zip(kinds, json.loads(key) + values, strict=False)))
            for key, values in store.records(RECORDS).items()
        ]
    except (TypeError, ValueError) as error:
        problem = f"an evaluation in {store.path} cannot be read ({error})"
        more = {"expected": "the records of a comparison", "hint": "Restore a copy of the store."}
        raise PairNormError(problem, code="file-damaged", value=store.path, **more) from error


def write_evaluations(store: Store, rows: Iterable[Evaluation]) -> None:
    """Write evaluations to a store, replacing those of the same runs."""
    # 80 and 80.0 are one missing rate, and must be one key.
    exact = [row._replace(missing_percent=float(row.missing_percent)) for row in rows]
    records = {json.dumps(row[:KEY_FIELDS]): list(row[KEY_FIELDS:]) for row in exact}
    store.write_records(RECORDS, records)


class MissingResults:
    """The trials and evaluations of a store, and how many of them each commit and device computed."""

    def __init__(
        self,
        trials: Mapping[Spec, list[Trial]],
        evaluations: Sequence[Evaluation] = (),
        origins: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.index = ResultIndex(trials, ignore_fingerprints=True)
        self.evaluated = {(row.cell, row.seed): row for row in evaluations}
        self.origins = origins

    @classmethod
    def read(cls, store: Store) -> "MissingResults":
        """Read trials and evaluations from a store."""
        results, evaluations = store.results_by_spec(), read_evaluations(store)
        trials = {spec: [run.trial for run in runs] for spec, runs in results.items()}
        computed = [(run.origin.git_commit, run.origin.device) for runs in results.values() for run in runs]
        computed += [(row.git_commit, row.device) for row in evaluations]
        names = [" on ".join(filter(None, (commit[:7], device))) for commit, device in computed if commit]
        return cls(trials, evaluations, dict(Counter(names).most_common()))


@dataclass(frozen=True)
class MissingSweep(Sweep):
    """The requested protocols: models that are trained by epochs, and evaluations of other methods."""

    protocols: Sequence[missing.Protocol]

    def batches(self, running: Running) -> Iterator[Batch]:
        """Yield one batch per protocol and graph."""
        for protocol in self.protocols:
            for dataset in protocol.datasets if protocol.trained else ():
                cells = [cell for cell in protocol.cells() if cell.dataset == dataset]
                graphs = partial(protocol.derived_graphs, dataset, running.root)
                name = f"{protocol.name}, {dataset}"
                yield Batch(name, [(protocol, cells)], graphs=graphs, ignore_fingerprints=True)

    def count_pending(self, store: Store) -> int:
        """Return how many trials and evaluations are not in the store."""
        results, count = MissingResults.read(store), 0
        for protocol in self.protocols:
            pairs = ((cell, seed) for cell in protocol.fallback_cells() for seed in protocol.seeds(cell))
            count += sum(pair not in results.evaluated for pair in pairs)
        count += len(pending_evaluations(self.protocols, results))
        return results.index.count_pending(self.protocols) + count

    def compute_others(
        self, store: Store, running: Running, should_stop: Callable[[], bool], on_progress: OnProgress
    ) -> int:
        """Evaluate pending runs in several processes."""
        results, root, started = MissingResults.read(store), running.root, 0
        waiting: list[tuple[int, missing.MissingCell, Callable[[], list[Evaluation]]]] = [
            (1, cell, partial(evaluate, protocol, cell, seed, root))
            for protocol, cell, seed in pending_evaluations(self.protocols, results)
        ]
        waiting += [
            (len(pairs), cell, partial(evaluate_trained, protocol, cell, pairs, root, running.device))
            for protocol, cell, pairs in pending_fallbacks(self.protocols, results)
        ]
        if not waiting or should_stop():
            return 0
        total, futures = sum(runs for runs, _, _ in waiting), set[Future[list[Evaluation]]]()
        workers = running.workers or os.cpu_count() or 1
        with Workers(workers) as pool:
            while futures or (waiting and not should_stop()):
                while waiting and len(futures) < workers and not should_stop():
                    runs, cell, job = waiting.pop(0)
                    futures.add(pool.submit(job))
                    label = f"{cell.dataset}, {cell.model}, {cell.missing_percent:g}% missing"
                    on_progress(f"{cell.protocol}, evaluation", Progress(started, total, total, label))
                    started += runs
                finished, futures = wait(futures, return_when=FIRST_COMPLETED)
                write_evaluations(store, [row for future in finished for row in future.result()])
        return started


def pending_evaluations(
    protocols: Iterable[missing.Protocol], results: MissingResults
) -> list[tuple[missing.Protocol, missing.MissingCell, int]]:
    """List the pending evaluations, the first seed of all before the second, in case time runs out.

    Models that ``fit`` trains are left out where they are evaluated along with it.
    """
    jobs = []
    for protocol in protocols:
        pairs = ((cell, seed) for cell in protocol.evaluated_cells() for seed in protocol.seeds(cell))
        pending = dict.fromkeys(pair for pair in pairs if pair not in results.evaluated)
        for cell, seed in pending:
            along = cell._replace(model=missing.FIT, imputation=missing.IMPUTATION_OF[missing.FIT])
            if cell.model not in missing.ALONE or (along, seed) not in pending:
                jobs.append((protocol, cell, seed))
    return sorted(jobs, key=lambda job: job[2])


def pending_fallbacks(
    protocols: Iterable[missing.Protocol], results: MissingResults
) -> list[tuple[missing.Protocol, missing.MissingCell, list[Pair]]]:
    """Return the selected candidates to train again, for the fallback for unreachable nodes."""
    jobs = []
    for protocol in protocols:
        for cell in protocol.fallback_cells():
            pairs = protocol.pairs(cell, results.index.finalists(protocol, cell) or ())
            if pending := [pair for pair in pairs if (cell, pair[1]) not in results.evaluated]:
                jobs.append((protocol, cell, pending))
    return jobs


def evaluate(
    protocol: missing.Protocol, cell: missing.MissingCell, seed: int, root: Path | None = None
) -> list[Evaluation]:
    """Fit a method to a graph with masked features; one evaluation per model it fits and test set."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few labels are on purpose
        graph = protocol.mask(protocol.graph(cell.dataset, root, seed), cell.missing_percent, seed)
        by_model, classifier = _predict(protocol, cell, graph, seed)
    origin = Origin.here(seconds=time.perf_counter() - start, shared_by=1, device="cpu")
    rows: list[Evaluation] = []
    for model, probabilities in by_model.items():
        predicted = probabilities.argmax(1) if classifier is None else classifier.decide(probabilities)
        model_cell = cell._replace(model=model, imputation=missing.IMPUTATION_OF.get(model, ""))
        rows += _evaluations(protocol, model_cell, seed, graph, probabilities, predicted, origin)
    return rows


def evaluate_trained(
    protocol: missing.Protocol,
    cell: missing.MissingCell,
    pairs: Sequence[Pair],
    root: Path | None = None,
    device: str | torch.device = "cpu",
) -> list[Evaluation]:
    """Train a selected candidate again, and evaluate it with the fallback for unreachable nodes."""
    start = time.perf_counter()
    graph, where = protocol.graph(cell.dataset, root), find_device(device)
    by_run = _train_logits(graph, pairs, where).softmax(-1).cpu().unbind(1)
    origin = Origin.here(seconds=time.perf_counter() - start, shared_by=len(pairs), device=where)
    rows: list[Evaluation] = []
    for (_, seed), probabilities in zip(pairs, by_run, strict=True):
        masked = protocol.mask(graph, cell.missing_percent, seed)
        filled = with_fallback(masked, probabilities).numpy()
        rows += _evaluations(protocol, cell, seed, masked, filled, filled.argmax(1), origin)
    return rows


def _train_logits(graph: Graph, pairs: Sequence[Pair], device: torch.device) -> Tensor:
    """Train a candidate, and return the logits of all nodes: ``[nodes, pairs, classes]``."""
    spec, _ = pairs[0]
    if spec.model == "SGC":
        (fitted,) = SGCTrainer(graph, [[pair] for pair in pairs], [spec.depth], device).fit_depths()
        return fitted.logits[:, :, 0]
    trainer = GNNTrainer(graph, pairs, device)
    trainer.fit()
    return trainer.evaluate()[1]


def with_fallback(graph: Graph, probabilities: Tensor) -> Tensor:
    """Return predictions with the fallback of ``fit`` for unreachable nodes."""
    from pairnorm.classify.predictions import fallback_shares, unreachable

    labels = graph.labels.where(graph.train, UNKNOWN)
    sources = ~graph.missing_vectors | graph.train
    shares = fallback_shares(graph.adjacency, sources, probabilities, labels, probabilities.mean(0))
    return torch.where(unreachable(graph, graph.train).unsqueeze(1), shares, probabilities)


def _evaluations(
    protocol: missing.Protocol,
    cell: missing.MissingCell,
    seed: int,
    graph: Graph,
    probabilities: NDArray[np.float32],
    predicted: NDArray[np.int64],
    origin: Origin,
) -> Iterator[Evaluation]:
    """Yield the scores of predictions on every test set of a graph."""
    from pairnorm.classify import Scores

    for name in protocol.test_sets(cell.dataset):
        test = (graph.test if name == cell.dataset else graph.test & missing.reached(graph)).numpy()
        scores = Scores.of(
            graph.labels.numpy()[test], predicted[test], graph.num_classes, probabilities[test]
        )
        accuracy, f1, auc = (round(x, 6) for x in (scores.accuracy, scores.value("macro-f1"), scores.auc))
        seconds, commit = round(origin.seconds / origin.shared_by, 1), origin.git_commit or ""
        where, scored = (commit, origin.finished, origin.device), cell._replace(dataset=name)
        yield Evaluation(*scored, seed, accuracy, f1, auc, seconds, *where)


def _predict(
    protocol: missing.Protocol, cell: missing.MissingCell, graph: Graph, seed: int
) -> "tuple[dict[str, NDArray[np.float32]], NodeClassifier | None]":
    """Return probabilities by model, and the classifier whose decision rule applies; None for arg max."""
    from pairnorm.classify import NodeClassifier

    if cell.imputation == "fsd-cap":
        spec, released = Spec(graph.name, **missing.FSD_CAP_GCN), cell.model == missing.FSD_CAP_RELEASED
        return {cell.model: fsd_cap(graph, spec, seed, validation_labels=released).numpy()}, None
    settings: dict[str, Any] = {"device": "cpu", "random_state": seed}
    if cell.model == missing.FIT:
        classifier = NodeClassifier(**settings).fit(graph)
        by_model = {missing.FIT: classifier.evaluation_probabilities_}
        if graph.validation.any():  # otherwise all labels were used already
            by_model[missing.REFITTED] = classifier.probabilities_
        by_model |= {
            model: _alone(classifier, model) for model in protocol.evaluated if model in missing.ALONE
        }
        return by_model, classifier
    settings |= {"simple": True, "refit": False}
    if cell.model != "Correct & Smooth":
        classifier = NodeClassifier(cell.model.removesuffix(" alone"), **settings).fit(graph)
        return {cell.model: classifier.evaluation_probabilities_}, classifier
    classifier = NodeClassifier("SGC", norm="none", impute=cell.imputation, **settings).fit(graph)
    probabilities = torch.from_numpy(classifier.evaluation_probabilities_)
    return {cell.model: tuned_correct_and_smooth(graph, probabilities).numpy()}, classifier


def _alone(classifier: "NodeClassifier", model: str) -> NDArray[np.float32]:
    """Return the probabilities of the best candidate of one model, without the rest of the ensemble."""
    from pairnorm.classify.evaluation import fit_temperature, mean_probabilities

    choice, task = classifier.choice_, classifier.task_
    name = model.removesuffix(" alone")
    candidates = [result for result in choice.results if result.candidate.model == name]
    best = max(candidates, key=lambda result: result.rank)
    alone = choice._replace(parts=[(1, best)], smooths=(None,)).fit(task.with_all_folds)
    temperature = fit_temperature(
        best.probabilities.clamp(min=1e-30).log().unsqueeze(1), task.held_out_labels
    )
    logits = alone.logits(task.prepared)
    return np.asarray(mean_probabilities(logits, temperature).numpy())
