"""Run many trials: plan those that are not in the store, train them, and write each as it finishes."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent import futures
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from pairnorm.base.errors import PairNormError, is_out_of_memory, one_of, quoted, real_number, whole_number
from pairnorm.data import Graph, datasets, load
from pairnorm.data.graph import check_graph
from pairnorm.train.engine import CUDA_STREAMS, Job, Pair, check_measures, find_device, plan
from pairnorm.train.methods import METHODS
from pairnorm.train.pools import Event, RayPool, Task, train_all
from pairnorm.train.result import wrong_type
from pairnorm.train.spec import Spec
from pairnorm.train.store import Store

BACKENDS = ("here", "ray")


@dataclass(frozen=True)
class Progress:
    """The finished and the total work in layer-epochs, the number of pending trials, and the latest spec."""

    done: int
    total: int
    trials: int
    label: str


@dataclass(frozen=True)
class Running:
    """Options of a training run, as in ``run``, and a time limit. Invalid values raise an error at once."""

    device: str | torch.device = "auto"
    root: Path | None = None
    workers: int | None = None
    on: str = "here"
    minutes: float | None = None

    def __post_init__(self) -> None:
        if one_of("on", self.on, BACKENDS) == "here":
            find_device(self.device)
        if self.workers is not None:
            whole_number("workers", self.workers, least=1)
        if self.minutes is not None:
            real_number("minutes", self.minutes, least=0)

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of ``run`` about devices, files and workers."""
        return {name: getattr(self, name) for name in ("device", "root", "workers", "on")}

    def clock(self) -> Callable[[], bool]:
        """Start the time limit; return a function, for ``should_stop``, that is true once it has passed."""
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        return lambda: end is not None and time.monotonic() >= end


def run(
    pairs: Iterable[Pair],
    store: Store | str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    root: str | os.PathLike[str] | None = None,
    graphs: dict[str, Graph] | None = None,
    requested: Iterable[Pair] = (),
    measures: Sequence[str] = (),
    curves: bool = False,
    workers: int | None = None,
    on: str = "here",
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Train the (spec, seed) pairs that are not in the store and return how many were trained.

    Every trial is written when it finishes, so that the next run resumes an interrupted one. On a CPU, jobs
    run in processes of one thread each; on CUDA, a few run at once, each on a stream of its own.

    Args:
        pairs: the requested trials, a spec and a seed each.
        store: of the results, or the path of its file.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        root: where named graphs are read from.
        graphs: graphs by the name that specs give as ``dataset``. Their trials are stored with the graph's
            fingerprint: ``store.trials(spec.on(graph))``.
        requested: more pairs of the same sweep, in the store already. Which trials train together decides the
            last bits of their losses: with these, it does not depend on which are in the store.
        measures: to compute for pending trials, see ``train``; stored trials stay as they are.
        curves: store learning curves of pending trials.
        workers: processes on a CPU. Default: one for each core.
        on: ``"here"``, or ``"ray"``: the cluster at ``$RAY_ADDRESS``, else the one that this machine is in.
        progress: called regularly.
        should_stop: called before every job. Once it returns true, no more jobs start; running ones finish.
    """
    Running(device, workers=workers, on=on)  # which validates them
    where = find_device(device) if on == "here" else None
    check_measures(measures)
    planned, _ = _fingerprinted(requested, {} if graphs is None else graphs)
    pairs, graphs = _fingerprinted(pairs, {} if graphs is None else graphs)
    if not isinstance(store, Store | str | os.PathLike):
        raise wrong_type("store", store, "a pairnorm.train.Store, or the path of one")
    with nullcontext(store) if isinstance(store, Store) else Store(store) as results:
        seeds: dict[Spec, list[int]] = defaultdict(list)
        for spec, seed in pairs:
            seeds[spec].append(seed)
        pending = [(spec, seed) for spec, group in seeds.items() for seed in results.missing(spec, group)]
        total, done, trained, label = 0, 0, 0, "starting"

        def handle(event: Event) -> None:
            nonlocal done, trained, label
            if isinstance(event, int):
                done += event
                progress(Progress(done, total, len(pending), label))
            else:
                results.add_results(event)
                trained, label = trained + len(event), str(event[0].spec)

        cluster = RayPool(str(device)) if where is None and pending else None
        cores = None if cluster is None else cluster.workers
        jobs = list(_plan_tasks([*planned, *pairs], set(pending), where, root, graphs, cores))
        total = sum(job.cost for _, job in jobs)
        handle(0)
        if jobs:
            results.check_writable()  # rather than after the first job
            label = str(jobs[0][1].pairs[0][0])
            options: dict[str, Any] = {"measures": tuple(measures), "curves": curves}
            # A worker does not know what was registered here.
            names = {spec.method for spec, _ in pending if "@" in spec.method}
            options["methods"] = {name: METHODS[name] for name in names & METHODS.keys()}
            started = takewhile(lambda _: not should_stop(), jobs)
            with _explain_dead_workers():
                if cluster is not None:
                    cluster.train_all(started, options, handle)
                elif where is not None:
                    most = CUDA_STREAMS if where.type == "cuda" else workers or os.cpu_count() or 1
                    train_all(started, where, min(most, len(jobs)), options, handle)
        return trained


@contextmanager
def _explain_dead_workers() -> Iterator[None]:
    """Replace errors of workers that were killed or ran out of memory."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, futures.BrokenExecutor) and not is_out_of_memory(error):
            raise
        problem = "a worker process was killed, ran out of memory, or could not start"
        hint = "Fewer workers need less memory: pass {workers}. Every worker imports your script: it needs "
        hint += '`if __name__ == "__main__":`. Finished trials are in the store.'
        raise PairNormError(problem, code="worker-died", hint=hint, workers=1) from error


def _fingerprinted(pairs: Any, graphs: Any) -> tuple[list[Pair], dict[str, Graph]]:
    """Validate pairs and graphs; return pairs with the fingerprints of graphs, and graphs by these names."""
    if not isinstance(graphs, Mapping):
        expected = "graphs by the name that specs give as dataset, such as {'mine': graph}"
        problem = f"graphs is a {type(graphs).__name__}"
        raise PairNormError(problem, code="wrong-type", value=graphs, expected=expected)
    for name, graph in graphs.items():
        check_graph(graph, f"graphs[{name!r}]")
    expected = "(spec, seed) pairs, such as [(spec, seed) for seed in range(3)]"
    if not isinstance(pairs, Iterable):
        raise wrong_type("pairs", pairs, expected)
    specs: dict[Spec, Spec] = {}
    fingerprinted: list[Pair] = []
    by_dataset: dict[str, Graph] = {}
    for pair in pairs:
        if not (isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], Spec)):
            raise wrong_type("one of the pairs", pair, expected)
        spec, seed = pair
        if spec not in specs:
            graph = graphs.get(spec.dataset, graphs.get(spec.dataset.partition("@")[0]))
            specs[spec] = spec if graph is None else spec.on(graph)
            if graph is not None:
                by_dataset[specs[spec].dataset] = graph
        fingerprinted.append((specs[spec], seed))
    return fingerprinted, by_dataset


def _plan_tasks(
    pairs: Sequence[Pair],
    pending: Set[Pair],
    device: torch.device | None,
    root: Any,
    graphs: dict[str, Graph],
    cores: int | None,
) -> Iterator[Task]:
    """Yield the jobs of all pairs, each with its pending pairs only.

    Which trials share a job decides the last bits of their losses: a run that was interrupted trains the
    others in the jobs that it would have trained them in.
    """
    by_graph: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for spec, seed in pairs:
        by_graph[spec.dataset, spec.split].append((spec, seed))
    for (name, split), group in by_graph.items():
        if pending.isdisjoint(group):
            continue
        if name in graphs:
            graph = graphs[name] if split == "default" else graphs[name].with_split(split)
        else:
            graph = _load(name, root, split)
        for job in plan(graph, dict.fromkeys(group), device, cores):
            if left := tuple(pair for pair in job.pairs if pair in pending):
                yield graph, Job(left)


def _load(name: str, root: Any, split: str) -> Graph:
    """Read a named graph; for an unknown name, the error says how to pass a graph."""
    try:
        # ``load`` also accepts "Cora", whose trials would be stored as those of another graph.
        one_of("dataset", name, (*(dataset.name for dataset in datasets()), "csbm"))
    except PairNormError as error:
        error.problem = f"the dataset of a spec is {quoted(name)}, which is not a named graph"
        error.hint = f"{error.hint} Pass your own graph with graphs={{{name!r}: graph}}.".strip()
        raise
    return load(name, root, split=None if split == "default" else split)
