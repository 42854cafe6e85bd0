"""Running many cells: what the store lacks is planned, trained, and written as it finishes."""

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pairnorm.data import Graph, load
from pairnorm.train.engine import execute, find_device
from pairnorm.train.jobs import Job, Pair, plan
from pairnorm.train.spec import Spec
from pairnorm.train.store import Store
from pairnorm.train.trial import Trial

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Progress:
    """How far a run is: work in layer-epochs, done and in all, and what is being trained."""

    done: int
    total: int
    trials: int
    label: str


def run(
    pairs: Iterable[Pair],
    store: Store,
    *,
    device: str | torch.device = "auto",
    root: str | os.PathLike[str] | None = None,
    graphs: dict[str, Graph] | None = None,
    measures: Sequence[str] = (),
    curves: bool = False,
    workers: int | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Train every (spec, seed) pair that the store lacks and return how many were trained.

    Every job is written when it finishes, so that an interrupted run goes on where it stopped. On a CPU jobs
    go to processes of
    one thread each; on CUDA they run one after another.

    Args:
        pairs: what is wanted.
        store: what is there, and where results go.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        root: where named graphs are read from.
        graphs: graphs by the name that specs give as ``dataset``, where they are not the package's own.
        measures: to take of the last hidden representation.
        curves: store learning curves too.
        workers: processes on a CPU. Default: one for each core.
        progress: is told how far the run is.
        should_stop: is asked before every job; once it says so, no more are started and those under way
            finish.
    """
    where = find_device(device)
    lacking = _lacking(pairs, store)
    jobs = list(_plan(lacking, where, root, graphs or {}))
    total, done = sum(job.cost for _, job in jobs), 0
    options: dict[str, Any] = {"measures": tuple(measures), "curves": curves}

    def report(units: int, label: str) -> None:
        nonlocal done
        done += units
        progress(Progress(done, total, len(lacking), label))

    report(0, "starting")
    count = os.cpu_count() if workers is None else workers
    if where.type == "cuda" or count == 1 or len(jobs) < 2:
        trained = 0
        for graph, job in jobs:
            if should_stop():
                break
            began = time.perf_counter()
            found = execute(graph, job, where, tick=partial(report, label=str(job.pairs[0][0])), **options)
            _write(store, found, time.perf_counter() - began, where)
            trained += len(found)
        return trained
    return _run_in_processes(jobs, store, min(count or 1, len(jobs)), options, report, should_stop)


def _lacking(pairs: Iterable[Pair], store: Store) -> list[Pair]:
    seeds: dict[Spec, list[int]] = defaultdict(list)
    for spec, seed in pairs:
        seeds[spec].append(seed)
    return [(spec, seed) for spec, wanted in seeds.items() for seed in store.missing(spec, wanted)]


def _plan(
    pairs: Sequence[Pair], device: torch.device, root: str | os.PathLike[str] | None, graphs: dict[str, Graph]
) -> Iterator[tuple[Graph, Job]]:
    by_graph: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for spec, seed in pairs:
        by_graph[spec.dataset, spec.split].append((spec, seed))
    for (name, split), group in by_graph.items():
        graph = graphs.get(name)
        if graph is None:
            graph = load(name, root, split=None if split == "default" else split)
        for job in plan(graph, group, device):
            yield graph, job


def _write(store: Store, found: dict[Pair, Trial], seconds: float, device: torch.device) -> None:
    cells: dict[Spec, list[Trial]] = defaultdict(list)
    for (spec, _), trial in found.items():
        cells[spec].append(trial)
    store.add_cells(cells, seconds=seconds, device=device)


def _run_in_processes(
    jobs: Sequence[tuple[Graph, Job]],
    store: Store,
    workers: int,
    options: dict[str, Any],
    report: Callable[[int, str], None],
    should_stop: Callable[[], bool],
) -> int:
    context = multiprocessing.get_context("spawn")
    ticks = context.Value("q", 0)
    seen = trained = 0
    pool = ProcessPoolExecutor(workers, context, _start_worker, (ticks,))
    label = ""
    waiting = iter(jobs)
    pending: set[Future[tuple[dict[Pair, Trial], float]]] = set()
    try:
        while True:
            # One more than there are workers, so that none waits for the next job to arrive.
            while len(pending) <= workers and not should_stop() and (entry := next(waiting, None)):
                pending.add(pool.submit(_work, *entry, options))
            if not pending:
                break
            finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in finished:
                found, seconds = future.result()
                _write(store, found, seconds, torch.device("cpu"))
                trained += len(found)
                label = str(next(iter(found))[0])
            units = ticks.value - seen
            seen += units
            report(units, label)
        pool.shutdown()
        return trained
    except (
        BaseException
    ):  # Ctrl-C, or a job that failed: what runs now is lost, what has finished is in the store
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise


_ticks: Any = None


def _start_worker(ticks: Any) -> None:
    global _ticks
    _ticks = ticks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the parent was killed: nobody would take its results, or ever tell it to stop."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def _tick(units: int) -> None:
    with _ticks.get_lock():
        _ticks.value += units


def _work(graph: Graph, job: Job, options: dict[str, Any]) -> tuple[dict[Pair, Trial], float]:
    began = time.perf_counter()
    found = execute(graph, job, torch.device("cpu"), tick=_tick, **options)
    return found, time.perf_counter() - began
