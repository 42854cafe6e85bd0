"""Running the comparison under missing features: what is lacking is trained or judged, slice by slice."""

import csv
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from itertools import product
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import csv_text, write_text
from pairnorm.compare.correct_and_smooth import correct_and_smooth
from pairnorm.compare.fsd_cap import fsd_cap
from pairnorm.compare.missing import (
    ALONE,
    FILL_OF,
    FIT,
    FSD_CAP_GCN,
    FSD_CAP_RELEASED,
    REACHED,
    REFITTED,
    SSNC,
    Cell,
    Protocol,
    reached,
)
from pairnorm.data import Graph
from pairnorm.nn import normalized_adjacency
from pairnorm.sweep.runner import OnProgress
from pairnorm.train import Progress, Spec, Store, Trial, run
from pairnorm.train.pools import Workers
from pairnorm.train.result import Origin
from pairnorm.train.schedule import Running

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier

ALPHAS = (0.5, 0.8, 0.95, 0.99)


class Judged(NamedTuple):
    """What a method that needs no epochs gave in one run, and where that comes from."""

    protocol: str
    dataset: str
    fill: str
    model: str
    missing_percent: float
    seed: int
    accuracy: float
    macro_f1: float
    auc: float
    seconds: float
    git_commit: str
    finished: str

    @property
    def cell(self) -> Cell:
        """The row it belongs to."""
        return Cell(*self[:5])


def file_beside(store: Path) -> Path:
    """Return where the results of methods that need no epochs are kept: beside the store of the trials."""
    return store.with_name(f"{store.stem}.judged.csv")


def read_judged(path: Path) -> list[Judged]:
    """Read what ``write_judged`` wrote; none where there is no file."""
    if not path.exists():
        return []
    kinds = Judged.__annotations__
    with path.open(newline="", encoding="utf-8") as file:
        try:
            return [
                Judged(**{name: kind(row[name]) for name, kind in kinds.items()})
                for row in csv.DictReader(file, strict=True)
            ]
        except (KeyError, TypeError, ValueError, csv.Error) as error:
            problem = f"{path} cannot be read ({error})"
            hint = "Restore a copy, or delete it to judge anew."
            raise PairNormError(
                problem, code="file-damaged", value=path, expected="what a comparison wrote", hint=hint
            ) from error


def write_judged(path: Path, rows: Iterable[Judged]) -> None:
    """Write results, sorted, in place of what is there."""
    ordered = sorted(rows, key=lambda row: (row.cell, row.seed))
    write_text(path, csv_text(Judged._fields, ordered))


class Found:
    """The trials and judgements there are.

    Args:
        cells: the trials of every spec; a fingerprint in the name of its graph is not looked at.
        judged: of methods that need no epochs.
    """

    def __init__(self, cells: dict[Spec, list[Trial]], judged: Sequence[Judged] = ()) -> None:
        self._trials = {
            (spec.replace(dataset=spec.dataset.partition("@")[0]), trial.seed): trial
            for spec, trials in cells.items()
            for trial in trials
        }
        self.judged = {(row.cell, row.seed): row for row in judged}

    @classmethod
    def read(cls, path: Path) -> "Found":
        """Read a store, if there is one, and the file beside it."""
        cells: dict[Spec, list[Trial]] = {}
        if path.exists():
            with Store(path, read_only=True) as store:
                cells = store.trials_by_spec()
        return cls(cells, read_judged(file_beside(path)))

    def best(self, protocol: Protocol, cell: Cell) -> int | None:
        """Return the place of the candidate with the best validation accuracy in the first run.

        Of equals the first; None where some have not been trained.
        """
        trials = [self._trials.get((spec, 0)) for spec in protocol.candidates(cell, 0)]
        values = [trial.validation_accuracy for trial in trials if trial]
        if len(values) < len(trials):
            return None
        values = [-1.0 if isnan(value) else round(value, 6) for value in values]
        return values.index(max(values))

    def runs(self, protocol: Protocol, cell: Cell) -> list[Trial]:
        """Return the runs of the best candidate of a cell, as far as they have been trained."""
        if (best := self.best(protocol, cell)) is None:
            return []
        specs = ((protocol.candidates(cell, seed)[best], seed) for seed in protocol.seeds(cell))
        return [self._trials[pair] for pair in specs if pair in self._trials]

    def lacking(self, protocol: Protocol, dataset: str, *, first: bool) -> list[tuple[Spec, int]]:
        """Return what is to be trained: all candidates in the first run, or then the best in the others."""
        wanted: dict[tuple[Spec, int], None] = {}
        for cell in protocol.trained_cells():
            if cell.dataset != dataset:
                continue
            specs = protocol.candidates(cell, 0)
            best = 0 if len(specs) == 1 else self.best(protocol, cell)
            if first:
                wanted |= dict.fromkeys((spec, 0) for spec in specs)
            if best is not None and (not first or len(specs) == 1):
                pairs = ((protocol.candidates(cell, seed)[best], seed) for seed in protocol.seeds(cell))
                wanted |= dict.fromkeys(pairs)
        return [pair for pair in wanted if pair not in self._trials]


def compare(
    protocols: Sequence[Protocol],
    path: Path,
    running: Running,
    progress: OnProgress = lambda stage, progress: None,
) -> int:
    """Train and judge what is lacking, and return how many runs are left because time was up.

    Args:
        protocols: what is wanted.
        path: the store; judgements lie in a file beside it.
        running: where models are trained, and for how long.
        progress: is called now and then.
    """
    should_stop = running.clock()

    for protocol in protocols:
        for dataset in protocol.datasets if protocol.trained else ():
            for first in (True, False):
                pairs = [] if should_stop() else Found.read(path).lacking(protocol, dataset, first=first)
                if pairs:
                    stage = f"{protocol.name}, {dataset}{'' if first else ', the best again'}"
                    with Store(path) as store:
                        run(
                            pairs,
                            store,
                            **running.where,
                            graphs=_own_graphs(protocol, dataset, running.root),
                            progress=partial(progress, stage),
                            should_stop=should_stop,
                        )
    _judge_all(protocols, path, running, progress, should_stop)
    return count_pending(protocols, Found.read(path))


def count_pending(protocols: Iterable[Protocol], found: Found) -> int:
    """Return how many runs are lacking; of a cell that is not tuned yet, those of its candidates."""
    trained = sum(
        len({*found.lacking(protocol, dataset, first=True), *found.lacking(protocol, dataset, first=False)})
        for protocol in protocols
        for dataset in protocol.datasets
    )
    return trained + sum(1 for protocol in protocols for _ in _to_judge(protocol, found))


def _own_graphs(protocol: Protocol, dataset: str, root: Path | None) -> dict[str, Graph]:
    """Return the graph of a dataset by its name in specs, unless it is loaded by that name."""
    if protocol.graphs == "named" and dataset != REACHED:
        return {}
    return {protocol.graph_name(dataset): protocol.graph(dataset, root)}


def _to_judge(protocol: Protocol, found: Found) -> Iterator[tuple[Cell, int]]:
    """Yield what is lacking, but what is judged along with ``fit``, which tries it anyway."""
    lacking = {
        (cell, seed): None
        for cell in protocol.judged_cells()
        for seed in protocol.seeds(cell)
        if (cell, seed) not in found.judged
    }
    for cell, seed in lacking:
        along = cell._replace(model=FIT, fill=FILL_OF[FIT])
        if cell.model not in ALONE or (along, seed) not in lacking:
            yield cell, seed


def _in_order(protocols: Iterable[Protocol], found: Found) -> list[tuple[Protocol, Cell, int]]:
    """Return what is to be judged, the first run of everything first: time may be up at any moment."""
    jobs = [(protocol, *job) for protocol in protocols for job in _to_judge(protocol, found)]
    return sorted(jobs, key=lambda job: job[2])


def _judge_all(
    protocols: Sequence[Protocol],
    path: Path,
    running: Running,
    progress: OnProgress,
    should_stop: Callable[[], bool],
) -> None:
    """Judge what is lacking, in order, a process for each of some at a time."""
    found = Found.read(path)
    waiting = _in_order(protocols, found)
    rows, total = dict(found.judged), len(waiting)
    if not waiting or should_stop():
        return
    pending: set[Future[list[Judged]]] = set()
    workers = running.workers or os.cpu_count() or 1
    with Workers(workers) as pool:
        while True:
            while waiting and len(pending) < workers and not should_stop():
                protocol, cell, seed = waiting.pop(0)
                pending.add(pool.submit(judge, protocol, cell, seed, running.root))
                done = total - len(waiting) - len(pending)
                label = f"{cell.dataset}, {cell.model}, {cell.missing_percent:g}% missing"
                progress(f"{protocol.name}, without epochs", Progress(done, total, total, label))
            if not pending:
                break
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                rows |= {(row.cell, row.seed): row for row in future.result()}
            write_judged(file_beside(path), rows.values())


def judge(protocol: Protocol, cell: Cell, seed: int, root: Path | None = None) -> list[Judged]:
    """Fit a method to a graph that lacks what the run misses, and judge it by the test nodes.

    Args:
        protocol: the protocol.
        cell: what to fit.
        seed: of the run.
        root: folder of the graphs' files.
    """
    from pairnorm.classify import NodeClassifier, Scores

    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few labels: they are hidden on purpose
        whole = protocol.graph(cell.dataset, root, seed)
        graph = protocol.hidden(whole, cell.missing_percent, seed)
        settings: dict[str, Any] = {"device": "cpu", "random_state": seed}
        alone = {"simple": True, "refit": False, **settings}
        classifier: NodeClassifier | None = None
        if cell.model == FIT:
            classifier = NodeClassifier(**settings).fit(graph)
            found = {FIT: classifier.evaluation_probabilities_}
            if graph.validation.any():  # else they were learned from already
                found[REFITTED] = classifier.probabilities_
            found |= {model: _alone(classifier, model) for model in protocol.judged if model in ALONE}
        elif cell.model == "Correct & Smooth":
            classifier = NodeClassifier("SGC", norm="none", fill=cell.fill, **alone).fit(graph)
            found = {
                cell.model: _corrected(graph, torch.from_numpy(classifier.evaluation_probabilities_)).numpy()
            }
        elif cell.fill == "fsd-cap":
            spec, released = Spec(graph.name, **FSD_CAP_GCN), cell.model == FSD_CAP_RELEASED
            found = {cell.model: fsd_cap(graph, spec, seed, validation_labels=released).numpy()}
        else:
            classifier = NodeClassifier(cell.model.removesuffix(" alone"), **alone).fit(graph)
            found = {cell.model: classifier.evaluation_probabilities_}
    origin = Origin.here(seconds=time.perf_counter() - began, shared_by=1, device="cpu")
    tests = {cell.dataset: graph.test}
    if protocol.name == SSNC.name and cell.dataset == "citeseer":
        tests[REACHED] = graph.test & reached(graph)
    rows = []
    for model, chances in found.items():
        for dataset, test in tests.items():
            mask, labels = test.numpy(), graph.labels.numpy()
            predicted = chances.argmax(1) if classifier is None else classifier.decide(chances)
            scores = Scores.of(labels[mask], predicted[mask], graph.num_classes, chances[mask])
            rows.append(
                Judged(
                    *cell._replace(dataset=dataset, model=model, fill=FILL_OF.get(model, "")),
                    seed=seed,
                    accuracy=round(scores.accuracy, 6),
                    macro_f1=round(scores.macro_f1, 6),
                    auc=round(scores.auc, 6),
                    seconds=round(origin.seconds, 1),
                    git_commit=origin.git_commit or "",
                    finished=origin.finished,
                )
            )
    return rows


def _alone(classifier: "NodeClassifier", model: str) -> NDArray[np.float32]:
    """Return what the best of a kind that was tried says of every node."""
    from pairnorm.classify.evaluation import fit_temperature, mean_probabilities

    choice, task = classifier.choice_, classifier.task_
    tried = [one for one in choice.results if one.candidate.model == model.removesuffix(" alone")]
    best = max(tried, key=lambda one: one.rank)
    alone = choice._replace(parts=[(1, best)], smooths=(None,), learned=None).learn(task.learnable)
    temperature = fit_temperature(
        best.probabilities.clamp(min=1e-30).log().unsqueeze(1), task.held_out_labels
    )
    logits = alone.logits(task.graph, task.features, task.device)
    return np.asarray(mean_probabilities(logits, temperature).numpy())


def _corrected(graph: Graph, chances: Tensor) -> Tensor:
    """Correct and smooth with the two alphas that the validation nodes like best."""
    matrix = normalized_adjacency(graph.adjacency, "sym")
    tried = [
        correct_and_smooth(matrix, chances, graph.labels, graph.train, *alphas)
        for alphas in product(ALPHAS, repeat=2)
    ]
    right = [int((one.argmax(1) == graph.labels)[graph.validation].sum()) for one in tried]
    best = tried[right.index(max(right))]
    return best / best.sum(1, keepdim=True).clamp(min=1e-12)
