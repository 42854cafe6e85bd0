"""Running many cells: what the store lacks is planned, trained, and written as it finishes."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from pairnorm.data import Graph, load
from pairnorm.errors import PairNormError
from pairnorm.train.engine import execute, find_device
from pairnorm.train.jobs import CUDA_STREAMS, Job, Pair, plan
from pairnorm.train.result import Trial
from pairnorm.train.spec import Spec
from pairnorm.train.store import Store

# Parameters of mallopt in glibc's malloc.h; the second is the largest value that it takes.
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 2**30), (-3, 2**25)


def keep_freed_memory() -> None:
    """Have the C library keep what is freed; by default it goes back to the system and comes page by page.

    This is for processes that train and then end. Where there is no glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(*TRIM_THRESHOLD)
        mallopt(*MMAP_THRESHOLD)


POLL_SECONDS = 0.2
Found = dict[Pair, Trial]
Write = Callable[[Found, float], None]


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

    Every cell is written when it finishes, so that an interrupted run goes on where it stopped. On a CPU jobs
    go to processes of one thread each; on CUDA a few run side by side, each on a stream of its own.

    Args:
        pairs: what is wanted.
        store: what is there, and where results go.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        root: where named graphs are read from.
        graphs: graphs by the name that specs give as ``dataset``, where they are not the package's own.
        measures: to take of the last hidden representation of what is trained now; what the store has stays
            as it is.
        curves: store learning curves too, likewise.
        workers: processes on a CPU. Default: one for each core.
        progress: is told how far the run is.
        should_stop: is asked before every job; once it says so, no more are started and those under way
            finish.
    """
    if workers is not None and workers < 1:
        raise PairNormError(f"workers is {workers}; expected 1 or more.")
    where = find_device(device)
    lacking = _lacking(pairs, store)
    jobs = list(_plan(lacking, where, root, graphs or {}))
    total, done, trained = sum(job.cost for _, job in jobs), 0, 0
    options: dict[str, Any] = {"measures": tuple(measures), "curves": curves}
    label = "starting"

    def report(units: int) -> None:
        nonlocal done
        done += units
        progress(Progress(done, total, len(lacking), label))

    def write(found: Found, seconds: float) -> None:
        nonlocal trained, label
        cells: dict[Spec, list[Trial]] = defaultdict(list)
        for (spec, _), trial in found.items():
            cells[spec].append(trial)
        store.add_cells(cells, seconds=seconds, device=where)
        trained, label = trained + len(found), str(next(iter(found))[0])

    report(0)
    if jobs:
        label = str(jobs[0][1].pairs[0][0])
    if where.type == "cuda":
        _run_in_pool(
            _Streams(min(CUDA_STREAMS, max(len(jobs), 1)), where), jobs, options, write, report, should_stop
        )
        return trained
    count = workers or os.cpu_count() or 1
    if count == 1 or len(jobs) < 2:
        _run_here(jobs, where, options, write, report, should_stop)
    else:
        _run_in_pool(_Processes(min(count, len(jobs))), jobs, options, write, report, should_stop)
    return trained


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
        elif split != "default":
            graph = graph.with_split(split)
        for job in plan(graph, group, device):
            yield graph, job


def _timed(write: Write) -> Callable[[Found], None]:
    """Add to what is found the time it took: since this call, or since it was last told."""
    since = time.perf_counter()

    def emit(found: Found) -> None:
        nonlocal since
        now = time.perf_counter()
        write(found, now - since)
        since = now

    return emit


def _run_here(
    jobs: Iterable[tuple[Graph, Job]],
    device: torch.device,
    options: dict[str, Any],
    write: Write,
    report: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a process of a pool: threads that wait for one another gain little here
    try:
        for graph, job in jobs:
            if should_stop():
                break
            execute(graph, job, device, tick=report, emit=_timed(write), **options)
    finally:
        torch.set_num_threads(threads)


def _run_in_pool(
    pool: "_Processes | _Streams",
    jobs: Iterable[tuple[Graph, Job]],
    options: dict[str, Any],
    write: Write,
    report: Callable[[int], None],
    should_stop: Callable[[], bool],
) -> None:
    seen = 0
    waiting = iter(jobs)
    pending: set[Future[None]] = set()
    try:
        while True:
            # One more than there are workers, so that none waits for the next job to arrive.
            while len(pending) <= pool.workers and not should_stop() and (entry := next(waiting, None)):
                pending.add(pool.submit(*entry, options))
            if not pending:
                break
            finished = wait(pending, POLL_SECONDS, FIRST_COMPLETED).done
            _write_all(pool, write)
            for future in finished:
                pending.remove(future)
                future.result()
            units = pool.ticks - seen
            seen += units
            report(units)
    except BaseException:
        # Ctrl-C, or a job that failed: what runs now is lost, what has finished goes into the store.
        pool.abandon(lambda: _write_all(pool, write))
        raise
    pool.close()


def _write_all(pool: "_Processes | _Streams", write: Write) -> None:
    while not pool.found.empty():
        write(*pool.found.get())


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
        self.found: SimpleQueue[tuple[Found, float]] = SimpleQueue()
        self._lock = threading.Lock()
        self._abandoned = False

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        return self._pool.submit(self._work, graph, job, options)

    def close(self) -> None:
        self._pool.shutdown()

    def abandon(self, write: Callable[[], None]) -> None:
        self._abandoned = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        write()

    def _work(self, graph: Graph, job: Job, options: dict[str, Any]) -> None:
        stream = self._streams.get()
        emit = _timed(lambda *found: self.found.put(found))
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                execute(graph, job, self._device, tick=self._tick, emit=emit, **options)
        finally:
            self._streams.put(stream)

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
        self.found = context.SimpleQueue()
        self._pool = ProcessPoolExecutor(workers, context, _start_worker, (self._ticks, self.found))

    @property
    def ticks(self) -> int:
        return int(self._ticks.value)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        with _interrupts_held_back():
            return self._pool.submit(_work, graph, job, options)

    def close(self) -> None:
        self._pool.shutdown()

    def abandon(self, write: Callable[[], None]) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        write()  # before the end of a worker could cut off what it is telling
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
_found: Any = None


def _start_worker(ticks: Any, found: Any) -> None:
    global _ticks, _found
    _ticks, _found = ticks, found
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the parent was killed: nobody would take its results, or ever tell it to stop."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def _tick(units: int) -> None:
    with _ticks.get_lock():
        _ticks.value += units


def _work(graph: Graph, job: Job, options: dict[str, Any]) -> None:
    emit = _timed(lambda *found: _found.put(found))
    execute(graph, job, torch.device("cpu"), tick=_tick, emit=emit, **options)
