"""Pools that run jobs: in this process, in processes of one thread each, or on CUDA streams."""

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, Self, TypeVar

import torch

from pairnorm.base.csr import suppress_csr_warning
from pairnorm.data import Graph
from pairnorm.train.engine import CUDA_STREAMS, Job, Pair, train_job
from pairnorm.train.methods import add_methods
from pairnorm.train.result import Origin, Result, Trial

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Event = int | list[Result]
"""What a running job reports: units of finished work, or results."""
OnEvent = Callable[[Event], None]
POLL_SECONDS = 0.2

suppress_csr_warning()  # a worker imports this module, then receives a graph that has sparse tensors


class Pool(ABC):
    """Runs jobs. Their events are handled in the thread that submits, which alone writes the store.

    Args:
        workers: number of jobs that run at once; one more may wait.
        on_event: called with every event of a job, during ``submit`` or ``process_events``.
    """

    def __init__(self, workers: int, on_event: OnEvent) -> None:
        self.workers, self._on_event = workers, on_event
        self._events: Any = queue.SimpleQueue()

    @abstractmethod
    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Start a job."""

    def poll(self, *, results_only: bool = False) -> None:
        """Handle the events that jobs have sent."""
        while not self._events.empty():
            event = self._events.get()
            if not results_only or isinstance(event, list):
                self._on_event(event)

    def retry(self, graph: Graph, job: Job, error: Exception) -> list[Job]:
        """Return the jobs to run instead of one that failed, or raise its error."""
        raise error

    @abstractmethod
    def close(self, at_once: bool = False) -> None:
        """End the pool: after its jobs, or at once, which keeps their finished results only."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.close(at_once=kind is not None)


def make_pool(device: torch.device, workers: int, jobs: int, on_event: OnEvent) -> Pool:
    """Return the pool for a device, with at most as many workers as there are jobs."""
    if device.type == "cuda":
        return _Streams(min(CUDA_STREAMS, jobs), device, on_event)
    if device.type == "cpu" and min(workers, jobs) > 1:
        return _Processes(min(workers, jobs), on_event)
    return _ThisProcess(device, on_event)


def run_all(
    tasks: Iterable[T],
    workers: int,
    submit: Callable[[T], Future[None]],
    poll: Callable[[], None],
    retry: Callable[[T, Exception], Iterable[T]],
) -> None:
    """Submit all tasks, one more at a time than there are workers, so that no worker waits.

    Args:
        tasks: what to submit.
        workers: number of tasks that run at once.
        submit: starts a task.
        poll: called now and then.
        retry: returns the tasks to run instead of one that failed, or raises an error.
    """
    waiting, again = iter(tasks), list[T]()
    running: dict[Future[None], T] = {}
    while True:
        while len(running) <= workers:
            task = again.pop() if again else next(waiting, None)
            if task is None:
                break
            running[submit(task)] = task
        if not running:
            return
        finished = wait(running, POLL_SECONDS, FIRST_COMPLETED).done
        poll()
        for future in finished:
            task = running.pop(future)
            if (error := future.exception()) is not None:
                again += retry(task, error)  # type: ignore[arg-type]


def work(graph: Graph, job: Job, device: torch.device, options: dict[str, Any], send: OnEvent) -> None:
    """Train a job in this process and send its events. The origin of a trial is this process."""
    since = time.perf_counter()
    options = dict(options)
    add_methods(options.pop("methods", {}))

    def emit(trials: dict[Pair, Trial]) -> None:
        nonlocal since
        now = time.perf_counter()
        origin = Origin.here(seconds=now - since, shared_by=len(trials), device=device)
        send([Result(spec, trial, origin) for (spec, _), trial in trials.items()])
        since = now

    train_job(graph, job, device, tick=send, emit=emit, **options)


class _ThisProcess(Pool):
    """Runs one job after the other in this process, with one thread."""

    def __init__(self, device: torch.device, on_event: OnEvent) -> None:
        super().__init__(0, on_event)
        self._device, self._threads = device, torch.get_num_threads()
        torch.set_num_threads(1)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        work(graph, job, self._device, options, self._on_event)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self, at_once: bool = False) -> None:
        torch.set_num_threads(self._threads)


class _Streams(Pool):
    """Runs jobs in threads with a CUDA stream each, so that small jobs share the device."""

    def __init__(self, workers: int, device: torch.device, on_event: OnEvent) -> None:
        super().__init__(workers, on_event)
        self._device, self._is_canceled = device, False
        # One stream per thread: two jobs on one stream would disturb each other's capture.
        self._pool = ThreadPoolExecutor(
            workers, initializer=lambda: torch.cuda.set_stream(torch.cuda.Stream(device))
        )

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        return self._pool.submit(work, graph, job, self._device, options, self._send)

    def close(self, at_once: bool = False) -> None:
        self._is_canceled = at_once
        self._pool.shutdown(cancel_futures=at_once)
        self.poll(results_only=at_once)

    def _send(self, event: Event) -> None:
        if self._is_canceled and isinstance(event, int):
            raise KeyboardInterrupt
        self._events.put(event)


class Workers(ProcessPoolExecutor):
    """Processes with one thread each, which end with this process, and at once after an error."""

    def __init__(self, count: int, events: Any = None) -> None:
        # Spawned, not forked: torch's threads do not exist in a forked child.
        super().__init__(count, multiprocessing.get_context("spawn"), _start_worker, (events,))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Send a call to a process. Ctrl-C is blocked while a process starts, or it would end its imports."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().submit(function, *args, **kwargs)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(function, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def processes(self) -> list[BaseProcess]:
        """The processes that have started."""
        return list((self._processes or {}).values())

    def end(self, last: Callable[[], None] = lambda: None) -> None:
        """End all processes at once, after a last call that needs them."""
        processes = self.processes
        self.shutdown(wait=False, cancel_futures=True)
        try:
            last()
        finally:
            for process in processes:
                process.terminate()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Wait for the calls; after an error, end the processes."""
        if kind is None:
            self.shutdown()
        else:
            self.end()


class _Processes(Pool):
    """Runs jobs in processes with one thread each."""

    def __init__(self, workers: int, on_event: OnEvent) -> None:
        super().__init__(workers, on_event)
        self._events = multiprocessing.get_context("spawn").SimpleQueue()
        self._pool = Workers(workers, self._events)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        return self._pool.submit(_work, graph, job, options)

    def poll(self, *, results_only: bool = False) -> None:
        """Handle events; raise an error if a process ended, which the executor may miss while it starts."""
        super().poll(results_only=results_only)
        if not results_only and any(process.exitcode is not None for process in self._pool.processes):
            raise BrokenProcessPool("a process has ended")

    def close(self, at_once: bool = False) -> None:
        if at_once:
            self._pool.end(lambda: self.poll(results_only=True))
        else:
            self._pool.shutdown()


_events: Any = None


def _start_worker(events: Any) -> None:
    global _events
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent handles it
    torch.set_num_threads(1)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(graph: Graph, job: Job, options: dict[str, Any]) -> None:
    work(graph, job, torch.device("cpu"), options, _events.put)


def _end_with_parent() -> None:
    """End this worker when its parent has been killed."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, since returning it page by page takes time in every epoch."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD; 2**25 is the largest value that it takes
