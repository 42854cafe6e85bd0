"""Run many trials: plan those that are not in the store, train them, and write each as it finishes."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from pairnorm.base.errors import PairNormError, is_out_of_memory, one_of, quoted, real_number, whole_number
from pairnorm.data import Graph, load
from pairnorm.data.graph import check_graph
from pairnorm.train.engine import Job, Pair, check_measures, find_device, plan
from pairnorm.train.methods import registered_methods
from pairnorm.train.pools import Event, make_pool, run_all
from pairnorm.train.ray_backend import RayPool
from pairnorm.train.spec import Spec
from pairnorm.train.store import Store

BACKENDS = ("here", "ray")


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Args:
        done: finished work in layer-epochs.
        total: all work, in the same unit.
        trials: number of trials that were pending when the run started.
        label: the spec that was stored last, or that comes first.
    """

    done: int
    total: int
    trials: int
    label: str


@dataclass(frozen=True)
class Running:
    """Where trials run, and for how long. Values that cannot be used raise an error at once.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        root: folder of the graphs' files.
        workers: processes on a CPU. Default: one for each core.
        on: ``"here"`` or ``"ray"``, see ``run``.
        minutes: start no more jobs after this time.
    """

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
        """Return a function, for ``should_stop``, that is true once the minutes have passed."""
        end = None if self.minutes is None else time.monotonic() + 60 * self.minutes
        return lambda: end is not None and time.monotonic() >= end


def run(
    pairs: Iterable[Pair],
    store: Store | str | os.PathLike[str],
    *,
    device: str | torch.device = "auto",
    root: str | os.PathLike[str] | None = None,
    graphs: dict[str, Graph] | None = None,
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
        measures: to compute for pending trials, see ``train``; stored trials stay as they are.
        curves: store learning curves of pending trials.
        workers: processes on a CPU. Default: one for each core.
        on: ``"here"``, or ``"ray"``: the cluster at ``$RAY_ADDRESS``, else the one that this machine is in.
        progress: called now and then.
        should_stop: called before every job. Once it returns true, no more jobs start; running ones finish.
    """
    if workers is not None:
        whole_number("workers", workers, least=1)
    where = find_device(device) if one_of("on", on, BACKENDS) == "here" else None
    check_measures(measures)
    pairs, graphs = _fingerprinted(_checked(pairs), _by_name(graphs or {}))
    with _opened(store) as results:
        pending = _pending(pairs, results)
        total, done, trained, label = 0, 0, 0, "starting"

        def handle(event: Event) -> None:
            nonlocal done, trained, label
            if isinstance(event, int):
                done += event
                progress(Progress(done, total, len(pending), label))
            else:
                results.add_results(event)
                trained, label = trained + len(event), str(event[0].spec)

        cluster = RayPool(str(device), handle) if where is None and pending else None
        jobs = list(_plan(pending, where, root, graphs, cluster.workers if cluster else None))
        total = sum(job.cost for _, job in jobs)
        handle(0)
        if jobs:
            results.check_writable()  # rather than after the first job
            label = str(jobs[0][1].pairs[0][0])
            pool = cluster or make_pool(
                find_device(device), workers or os.cpu_count() or 1, len(jobs), handle
            )
            options: dict[str, Any] = {"measures": tuple(measures), "curves": curves}
            if methods := registered_methods({spec.method for spec, _ in pending}):
                options["methods"] = methods

            def poll() -> None:
                pool.poll()
                handle(0)

            def retry(entry: tuple[Graph, Job], error: Exception) -> list[tuple[Graph, Job]]:
                return [(entry[0], job) for job in pool.retry(*entry, error)]

            with _explain_dead_workers(), pool:
                started = takewhile(lambda _: not should_stop(), jobs)
                run_all(started, pool.workers, lambda entry: pool.submit(*entry, options), poll, retry)
        return trained


@contextmanager
def _explain_dead_workers() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, BrokenExecutor) and not is_out_of_memory(error):
            raise
        raise PairNormError(
            "a worker process was killed, ran out of memory, or could not start",
            code="worker-died",
            hint="Fewer workers need less memory: pass {workers}. Every worker imports your script: "
            'it needs `if __name__ == "__main__":`. Finished trials are in the store.',
            workers=1,
        ) from error


def _opened(store: Any) -> AbstractContextManager[Store]:
    """Return a store as a context, which closes it if it was given by its path."""
    if isinstance(store, str | os.PathLike):
        return Store(store)
    if isinstance(store, Store):
        return nullcontext(store)
    raise _wrong_type("store", store, "a pairnorm.train.Store, or the path of one")


def _wrong_type(name: str, value: Any, expected: str) -> PairNormError:
    return PairNormError(f"{name} is {quoted(value)}", code="wrong-type", value=value, expected=expected)


def _checked(pairs: Any) -> Iterator[Pair]:
    """Yield the requested trials, each as a spec and a seed."""
    expected = "(spec, seed) pairs, such as [(spec, seed) for seed in range(3)]"
    if not isinstance(pairs, Iterable):
        raise _wrong_type("pairs", pairs, expected)
    for pair in pairs:
        if not (isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], Spec)):
            raise _wrong_type("one of the pairs", pair, expected)
        yield pair[0], pair[1]


def _by_name(graphs: Any) -> dict[str, Graph]:
    if not isinstance(graphs, Mapping):
        problem, expected = f"graphs is a {type(graphs).__name__}", "graphs by name"
        hint = "Pass graphs={'mine': graph}, with the name that specs give as dataset."
        raise PairNormError(problem, code="wrong-type", value=graphs, expected=expected, hint=hint)
    for name, graph in graphs.items():
        check_graph(graph, f"graphs[{name!r}]")
    return dict(graphs)


def _fingerprinted(pairs: Iterable[Pair], graphs: dict[str, Graph]) -> tuple[list[Pair], dict[str, Graph]]:
    """Return the pairs with the fingerprints of the given graphs, and these graphs by the new names."""
    specs: dict[Spec, Spec] = {}
    fingerprinted: list[Pair] = []
    by_dataset: dict[str, Graph] = {}
    for spec, seed in pairs:
        if spec not in specs:
            graph = graphs.get(spec.dataset, graphs.get(spec.dataset.partition("@")[0]))
            specs[spec] = spec if graph is None else spec.on(graph)
            if graph is not None:
                by_dataset[specs[spec].dataset] = graph
        fingerprinted.append((specs[spec], seed))
    return fingerprinted, by_dataset


def _pending(pairs: Iterable[Pair], store: Store) -> list[Pair]:
    seeds: dict[Spec, list[int]] = defaultdict(list)
    for spec, seed in pairs:
        seeds[spec].append(seed)
    return [(spec, seed) for spec, requested in seeds.items() for seed in store.missing(spec, requested)]


def _plan(
    pairs: Sequence[Pair],
    device: torch.device | None,
    root: str | os.PathLike[str] | None,
    graphs: dict[str, Graph],
    cores: int | None,
) -> Iterator[tuple[Graph, Job]]:
    by_graph: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for spec, seed in pairs:
        by_graph[spec.dataset, spec.split].append((spec, seed))
    for (name, split), group in by_graph.items():
        graph = graphs.get(name)
        if graph is None:
            graph = _named(name, root, split)
        elif split != "default":
            graph = graph.with_split(split)
        for job in plan(graph, group, device, cores):
            yield graph, job


def _named(name: str, root: str | os.PathLike[str] | None, split: str) -> Graph:
    """Read a named graph; for an unknown name, the error says how to pass a graph."""
    try:
        return load(name, root, split=None if split == "default" else split)
    except PairNormError as error:
        if error.code == "unknown-choice" and error.value != split:
            error.problem = f"the dataset of a spec is {quoted(name)}, which is not a named graph"
            error.hint = f"{error.hint} Pass your own graph with graphs={{{name!r}: graph}}.".strip()
        raise
