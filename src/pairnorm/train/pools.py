"""Where jobs run: in this process, in processes of one thread each, or on CUDA streams."""

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, TypeVar

import torch

from pairnorm.base.csr import suppress_csr_warning
from pairnorm.data import Graph
from pairnorm.train.engine import train_job
from pairnorm.train.jobs import Job, Pair
from pairnorm.train.methods import add_methods
from pairnorm.train.result import Origin, Result, Trial

P = ParamSpec("P")
R = TypeVar("R")
Told = int | list[Result]
"""What a job tells while it runs: units of work that are done, or results."""

# Parameters of mallopt in glibc's malloc.h; the second is the largest value that it takes.
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 2**30), (-3, 2**25)

suppress_csr_warning()  # a worker imports this module, then is sent a graph that has sparse tensors


class Pool(ABC):
    """A place for jobs. What they tell is heard in the thread that submits, which alone writes the store.

    Args:
        workers: how many jobs run at once; one more may wait.
        hear: gets what jobs tell, during ``submit`` or ``listen``.
    """

    def __init__(self, workers: int, hear: Callable[[Told], None]) -> None:
        self.workers, self._hear = workers, hear
        self._told: Any = queue.SimpleQueue()

    @abstractmethod
    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Begin a job."""

    def listen(self, *, results_only: bool = False) -> None:
        """Hear what jobs have told since."""
        while not self._told.empty():
            told = self._told.get()
            if not results_only or isinstance(told, list):
                self._hear(told)

    @abstractmethod
    def close(self) -> None:
        """End the pool once all jobs are done."""

    @abstractmethod
    def abandon(self) -> None:
        """End the pool at once; what runs now is lost, what has finished is heard."""


def work(
    graph: Graph, job: Job, device: torch.device, options: dict[str, Any], tell: Callable[[Told], None]
) -> None:
    """Train a job where this is called, and tell what it finds: the origin of a trial is its worker's."""
    since = time.perf_counter()
    options = dict(options)
    add_methods(options.pop("methods", {}))

    def emit(found: dict[Pair, Trial]) -> None:
        nonlocal since
        now = time.perf_counter()
        origin = Origin.here(seconds=now - since, shared_by=len(found), device=device)
        tell([Result(spec, trial, origin) for (spec, _), trial in found.items()])
        since = now

    train_job(graph, job, device, tick=tell, emit=emit, **options)


class ThisProcess(Pool):
    """One job after the other, here, in one thread: threads that wait for one another gain little."""

    def __init__(self, device: torch.device, hear: Callable[[Told], None]) -> None:
        super().__init__(0, hear)
        self._device, self._threads = device, torch.get_num_threads()
        torch.set_num_threads(1)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Train a job to its end."""
        work(graph, job, self._device, options, self._hear)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        """Give the threads back."""
        torch.set_num_threads(self._threads)

    abandon = close


class Streams(Pool):
    """Threads, each with a CUDA stream of its own: jobs that do not fill the device share it."""

    def __init__(self, workers: int, device: torch.device, hear: Callable[[Told], None]) -> None:
        super().__init__(workers, hear)
        self._device, self._abandoned = device, False
        self._pool = ThreadPoolExecutor(workers)
        # torch hands out streams in rotation, the same ones again after a while: two jobs must not share one,
        # or one would run into the other's capture. So there are just as many as workers, and they go around.
        self._streams: queue.SimpleQueue[torch.cuda.Stream] = queue.SimpleQueue()
        for _ in range(workers):
            self._streams.put(torch.cuda.Stream(device))

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Train a job in a thread."""
        return self._pool.submit(self._work, graph, job, options)

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()

    def abandon(self) -> None:
        """Have every job stop when it next tells something."""
        self._abandoned = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.listen(results_only=True)

    def _work(self, graph: Graph, job: Job, options: dict[str, Any]) -> None:
        stream = self._streams.get()
        try:
            with torch.cuda.stream(stream):
                work(graph, job, self._device, options, self._tell)
        finally:
            self._streams.put(stream)

    def _tell(self, told: Told) -> None:
        if self._abandoned and isinstance(told, int):
            raise KeyboardInterrupt
        self._told.put(told)


class Workers(ProcessPoolExecutor):
    """Processes of one thread each, which do not outlive this one; left by an error, they end at once.

    Args:
        count: how many.
        told: where what ``_work`` does tells.
    """

    def __init__(self, count: int, told: Any = None) -> None:
        # Not forked: threads of torch would not live in the child.
        super().__init__(count, multiprocessing.get_context("spawn"), _start_worker, (told,))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Send work to a process."""
        with _interrupts_held_back():
            return super().submit(function, *args, **kwargs)

    @property
    def processes(self) -> list[BaseProcess]:
        """Those that were started."""
        return list((self._processes or {}).values())

    def end(self, last: Callable[[], None] = lambda: None) -> None:
        """End all at once, after something that needs them."""
        processes = self.processes
        self.shutdown(wait=False, cancel_futures=True)
        try:
            last()
        finally:
            for process in processes:
                process.terminate()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Wait for the work, unless there was an error."""
        if kind is None:
            self.shutdown()
        else:
            self.end()


class Processes(Pool):
    """Workers, one for each core."""

    def __init__(self, workers: int, hear: Callable[[Told], None]) -> None:
        super().__init__(workers, hear)
        self._told = multiprocessing.get_context("spawn").SimpleQueue()
        self._pool = Workers(workers, self._told)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Send a job to a process."""
        return self._pool.submit(_work, graph, job, options)

    def listen(self, *, results_only: bool = False) -> None:
        """Hear the workers, and see that they live: the executor misses the end of one it has just begun."""
        super().listen(results_only=results_only)
        if not results_only and any(process.exitcode is not None for process in self._pool.processes):
            raise BrokenProcessPool("a process has ended")

    def close(self) -> None:
        """Wait for the processes."""
        self._pool.shutdown()

    def abandon(self) -> None:
        """Hear what was told before the end of a worker could cut it off, then end them all."""
        self._pool.end(lambda: self.listen(results_only=True))


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


_told: Any = None


def _start_worker(told: Any) -> None:
    global _told
    _told = told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _work(graph: Graph, job: Job, options: dict[str, Any]) -> None:
    work(graph, job, torch.device("cpu"), options, _told.put)


def _end_with_parent() -> None:
    """End this worker when the parent was killed: nobody would take its results, or ever tell it to stop."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def keep_freed_memory() -> None:
    """Have the C library keep what is freed; by default it goes back to the system and comes page by page.

    This is for processes that train and then end. Where there is no glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(*TRIM_THRESHOLD)
        mallopt(*MMAP_THRESHOLD)
