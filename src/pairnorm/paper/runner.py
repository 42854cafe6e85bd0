"""Train the pending trials of the paper's experiments and measure its case study; both resume."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pairnorm.data import Graph, features_after, load
from pairnorm.measure import Probe
from pairnorm.measure.diagnosis import Record
from pairnorm.nn import SGC
from pairnorm.paper.claims import requested_runs
from pairnorm.paper.evidence import PAIRS, Layers, read_layers, write_layers
from pairnorm.paper.experiments import CASE_STUDY, CLAIMS_AGAIN
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.runner import Batch, OnProgress, Sweep
from pairnorm.train import Progress, Spec, Store, run
from pairnorm.train.engine import find_device
from pairnorm.train.schedule import Running
from pairnorm.train.trainers import GNNTrainer, sgc_settings

BINS = 60
"""Of the histograms of distances."""


@dataclass(frozen=True)
class PaperSweep(Sweep):
    """Experiments of the paper, with its case study and the runs that ``reproduce claims`` adds.

    The case study is measured in this process; ``Running`` has no effect on it.
    """

    experiments: Sequence[Experiment]

    def _named(self, name: str) -> list[Experiment]:
        return [experiment for experiment in self.experiments if experiment.name == name]

    @property
    def _grids(self) -> list[Experiment]:
        """The experiments whose trials are known beforehand and go into the store."""
        others = (CASE_STUDY.name, CLAIMS_AGAIN.name)
        return [experiment for experiment in self.experiments if experiment.name not in others]

    def batches(self, running: Running) -> Iterator[Batch]:
        """Put experiments with the same measures together, so that equal architectures share jobs."""
        for measures in dict.fromkeys(experiment.measures for experiment in self._grids):
            group = [experiment for experiment in self._grids if experiment.measures == measures]
            work = [(experiment, list(experiment.cells())) for experiment in group]
            yield Batch(", ".join(experiment.name for experiment in group), work, measures)

    def _pending_studies(self, store: Store) -> list[Spec]:
        measured, named = read_layers(store), self._named(CASE_STUDY.name)
        specs = [study.candidates(cell)[-1] for study in named for cell in study.cells()]
        return [spec for spec in specs if spec not in measured]

    def count_pending(self, store: Store) -> int:
        """Return how many trials and measured models are not in the store."""
        index = ResultIndex(store.trials_by_spec())
        again = [pair for part in self._named(CLAIMS_AGAIN.name) for pair in requested_runs(index, part)]
        pending = index.count_pending(self._grids) + len(self._pending_studies(store))
        return pending + sum(pair not in index for pair in again)

    def compute_others(
        self, store: Store, running: Running, should_stop: Callable[[], bool], on_progress: OnProgress
    ) -> int:
        """Measure the case study, then train more runs where a verdict is within noise."""
        pending = self._pending_studies(store)
        for number, spec in enumerate(pending):
            if should_stop():
                return number
            on_progress(CASE_STUDY.name, Progress(number, len(pending), len(pending), str(spec)))
            graph = load(spec.dataset, running.root, split=spec.split)
            write_layers(store, {spec: measure_layers(graph, spec, 0, find_device(running.device))})
        done = len(pending)
        for experiment in self._named(CLAIMS_AGAIN.name) if not should_stop() else ():
            pairs = requested_runs(ResultIndex(store.trials_by_spec()), experiment)
            progress = partial(on_progress, experiment.name)
            done += run(pairs, store, should_stop=should_stop, progress=progress, **running.where)
        return done


def measure_layers(graph: Graph, spec: Spec, seed: int, device: torch.device) -> Layers:
    """Train a spec (SGC needs no training) and measure the pairs in every layer but the one of the logits.

    They are all connected pairs and 10,000 random ones, the same in every layer; the APSD of random pairs is
    that of all pairs.
    """
    accuracy = None
    if spec.model == "SGC":
        model: torch.nn.Module = SGC(graph.num_features, graph.num_classes, **sgc_settings(spec))
        model = model.eval().to(device)
        values = features_after(graph, scaling=spec.scaling).values
        inputs: tuple[Any, ...] = (values.to(device), graph.adjacency.to(device))
    else:
        trainer = GNNTrainer(graph, [(spec, seed)], device)
        trainer.fit()
        problem = trainer.problem
        accuracy = float(problem.metrics(trainer.evaluate()[1])["test_accuracy"])
        model, inputs = trainer.model, (problem.features, problem.adjacency)
    probe = Probe(model, measures=("apd", "apsd"), adjacency=graph.adjacency.to(device), histograms=True)
    with torch.no_grad(), probe:
        model(*inputs)
    return _summarize_layers(probe.records if accuracy is None else probe.records[:-1], accuracy)


def _summarize_layers(records: Sequence[Record], accuracy: float | None) -> Layers:
    """Return the mean distances and the histograms of distances in every layer."""
    distances = {kind: [record.distances[kind].flatten() for record in records] for kind in PAIRS}
    # Most bins would hold nothing but outliers; what lies beyond the last edge is counted in the last bin.
    tops = {kind: max(float(x.quantile(0.995)) for x in layers) for kind, layers in distances.items()}
    edges = {kind: torch.linspace(0, top or 1.0, BINS + 1) for kind, top in tops.items()}

    def histogram(values: Tensor, kind: str) -> list[int]:
        bins = torch.bucketize(values.cpu().contiguous(), edges[kind][1:-1], right=True)
        return [int(count) for count in torch.bincount(bins, minlength=BINS)]

    return Layers(
        test_accuracy=None if accuracy is None else _rounded(accuracy),
        apd={kind: [_rounded(x.mean().item()) for x in layers] for kind, layers in distances.items()},
        apsd={kind: [_rounded(layer.measures[f"apsd_{kind}"].item()) for layer in records] for kind in PAIRS},
        edges={kind: [_rounded(edge) for edge in edges[kind].tolist()] for kind in PAIRS},
        histograms={kind: [histogram(x, kind) for x in layers] for kind, layers in distances.items()},
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
