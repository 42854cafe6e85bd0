"""Running many cells: what the store lacks is planned, trained, and written as it finishes."""

import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from pairnorm.data import Graph, load
from pairnorm.train.engine import execute, find_device
from pairnorm.train.jobs import CUDA_STREAMS, Job, Pair, plan
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
    go to processes of one thread each; on CUDA a few run side by side, each on a stream of its own.

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

    def report(label: str, units: int) -> None:
        nonlocal done
        done += units
        progress(Progress(done, total, len(lacking), label))

    report("starting", 0)
    if where.type == "cuda":
        pool: _Processes | _Streams = _Streams(min(CUDA_STREAMS, max(len(jobs), 1)), where)
    else:
        count = os.cpu_count() if workers is None else workers
        if count == 1 or len(jobs) < 2:
            return _run_here(jobs, store, where, options, report, should_stop)
        pool = _Processes(min(count or 1, len(jobs)))
    return _run_in_pool(pool, jobs, store, where, options, report, should_stop)


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


def _run_here(
    jobs: Sequence[tuple[Graph, Job]],
    store: Store,
    device: torch.device,
    options: dict[str, Any],
    report: Callable[[str, int], None],
    should_stop: Callable[[], bool],
) -> int:
    trained = 0
    for graph, job in jobs:
        if should_stop():
            break
        began = time.perf_counter()
        tick = partial(report, str(job.pairs[0][0]))
        found = execute(graph, job, device, tick=tick, **options)
        _write(store, found, time.perf_counter() - began, device)
        trained += len(found)
    return trained


def _run_in_pool(
    pool: "_Processes | _Streams",
    jobs: Sequence[tuple[Graph, Job]],
    store: Store,
    device: torch.device,
    options: dict[str, Any],
    report: Callable[[str, int], None],
    should_stop: Callable[[], bool],
) -> int:
    seen = trained = 0
    label = str(jobs[0][1].pairs[0][0]) if jobs else ""
    waiting = iter(jobs)
    pending: set[Future[tuple[dict[Pair, Trial], float]]] = set()
    try:
        while True:
            # One more than there are workers, so that none waits for the next job to arrive.
            while len(pending) <= pool.workers and not should_stop() and (entry := next(waiting, None)):
                pending.add(pool.submit(*entry, options))
            if not pending:
                break
            for future in wait(pending, POLL_SECONDS, FIRST_COMPLETED).done:
                found, seconds = future.result()
                _write(store, found, seconds, device)
                pending.remove(future)
                trained += len(found)
                label = str(next(iter(found))[0])
            units = pool.ticks - seen
            seen += units
            report(label, units)
    except BaseException:
        # Ctrl-C, or a job that failed: what runs now is lost, what has finished goes into the store.
        pool.abandon()
        for future in pending:
            if future.done() and not future.cancelled() and future.exception() is None:
                _write(store, *future.result(), device)
        raise
    pool.close()
    return trained


class _Streams:
    """Threads, each with a CUDA stream of its own: jobs that do not fill the device share it."""

    def __init__(self, workers: int, device: torch.device) -> None:
        self.workers, self.ticks = workers, 0
        self._device = device
        self._pool = ThreadPoolExecutor(workers)
        # torch hands out streams in rotation, the same ones again after a while: two jobs must not share one,
        # or one would run into the other's capture. So there are just as many as workers, and they go around.
        self._streams: SimpleQueue[torch.cuda.Stream] = SimpleQueue()
        for _ in range(workers):
            self._streams.put(torch.cuda.Stream(device))
        self._lock = threading.Lock()
        self._abandoned = False

    def submit(
        self, graph: Graph, job: Job, options: dict[str, Any]
    ) -> Future[tuple[dict[Pair, Trial], float]]:
        return self._pool.submit(self._work, graph, job, options)

    def close(self) -> None:
        self._pool.shutdown()

    def abandon(self) -> None:
        self._abandoned = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, graph: Graph, job: Job, options: dict[str, Any]) -> tuple[dict[Pair, Trial], float]:
        began = time.perf_counter()
        stream = self._streams.get()
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                found = execute(graph, job, self._device, tick=self._tick, **options)
        finally:
            self._streams.put(stream)
        return found, time.perf_counter() - began

    def _tick(self, units: int) -> None:
        if self._abandoned:
            raise KeyboardInterrupt
        with self._lock:
            self.ticks += units


class _Processes:
    """Processes of one thread each, one for each core."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context("spawn")
        self._ticks = context.Value("q", 0)
        self._pool = ProcessPoolExecutor(workers, context, _start_worker, (self._ticks,))

    @property
    def ticks(self) -> int:
        return int(self._ticks.value)

    def submit(
        self, graph: Graph, job: Job, options: dict[str, Any]
    ) -> Future[tuple[dict[Pair, Trial], float]]:
        with _interrupts_held_back():
            return self._pool.submit(_work, graph, job, options)

    def close(self) -> None:
        self._pool.shutdown()

    def abandon(self) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let processes start with Ctrl-C blocked, or it would break off their imports with a traceback each."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
