"""Pools that run jobs: in this process, in several processes, on CUDA streams, or on a Ray cluster."""

import multiprocessing
import os
import queue
import signal
import threading
import time
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from pairnorm.base.csr import suppress_csr_warning
from pairnorm.base.errors import PairNormError, install, one_of
from pairnorm.base.memory import keep_freed_memory
from pairnorm.data import Graph
from pairnorm.train.engine import CUDA_STREAMS, Job, Pair, plan, train_job
from pairnorm.train.methods import add_methods
from pairnorm.train.result import Origin, Result
from pairnorm.version import __version__

Event = int | list[Result]
"""What a running job reports: units of finished work, or results."""
OnEvent = Callable[[Event], None]
Task = tuple[Graph, Job]
MAX_DEATHS = 10
"""How often the workers of a task may die before it is given up, or divided."""

suppress_csr_warning()  # a worker imports this module, then receives a graph that has sparse tensors


class Pool(AbstractContextManager["Pool"]):
    """Runs ``workers`` jobs at once; one more may wait.

    ``submit`` and ``poll`` call ``on_event`` with their events, in the thread that writes the store.
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

    def retry(self, task: Task, error: Exception) -> list[Task]:
        """Return the tasks to run instead of one that failed, or raise its error."""
        raise error

    @abstractmethod
    def close(self, at_once: bool = False) -> None:
        """End the pool: after its jobs, or at once, which keeps their finished results only."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.close(at_once=kind is not None)


def make_pool(device: torch.device, workers: int, jobs: int, on_event: OnEvent) -> Pool:
    """Return the pool for a device, with at most as many workers as there are jobs."""
    if device.type == "cuda":
        return _Streams(min(CUDA_STREAMS, jobs), device, on_event)
    if device.type == "cpu" and min(workers, jobs) > 1:
        return _Processes(min(workers, jobs), on_event)
    return _ThisProcess(device, on_event)


def work(
    graph: Graph, job: Job, device: torch.device, options: dict[str, Any], tick: Callable[[int], None]
) -> Iterator[list[Result]]:
    """Train a job in this process, which is the origin of its results; yield them as they finish."""
    start = time.perf_counter()
    options = dict(options)
    add_methods(options.pop("methods", {}))
    for trials in train_job(graph, job, device, tick=tick, **options):
        now = time.perf_counter()
        origin = Origin.here(seconds=now - start, shared_by=len(trials), device=device)
        start = now
        yield [Result(spec, trial, origin) for (spec, _), trial in trials.items()]


def _send_events(
    graph: Graph, job: Job, device: torch.device, options: dict[str, Any], send: OnEvent
) -> None:
    """Train a job in this process, and send its progress and its results."""
    for results in work(graph, job, device, options, send):
        send(results)


class _ThisProcess(Pool):
    """Runs one job after the other in this process, with one thread."""

    def __init__(self, device: torch.device, on_event: OnEvent) -> None:
        super().__init__(0, on_event)
        self._device, self._threads = device, torch.get_num_threads()
        torch.set_num_threads(1)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        _send_events(graph, job, self._device, options, self._on_event)
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
        self._pool = futures.ThreadPoolExecutor(
            workers, initializer=lambda: torch.cuda.set_stream(torch.cuda.Stream(device))
        )

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        return self._pool.submit(_send_events, graph, job, self._device, options, self._send)

    def close(self, at_once: bool = False) -> None:
        self._is_canceled = at_once
        self._pool.shutdown(cancel_futures=at_once)
        self.poll(results_only=at_once)

    def _send(self, event: Event) -> None:
        if self._is_canceled and isinstance(event, int):
            raise KeyboardInterrupt
        self._events.put(event)


class Workers(futures.ProcessPoolExecutor):
    """Processes with one thread each, which end with this process, and at once after an error."""

    def __init__(self, count: int, events: Any = None) -> None:
        # Spawned, not forked: torch's threads do not exist in a forked child.
        super().__init__(count, multiprocessing.get_context("spawn"), _start_worker, (events,))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
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
            raise futures.process.BrokenProcessPool("a process has ended")

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

    def end_with_parent() -> None:  # which may have been killed
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _work(graph: Graph, job: Job, options: dict[str, Any]) -> None:
    _send_events(graph, job, torch.device("cpu"), options, _events.put)


@dataclass(eq=False)
class _Running:
    """A remote generator, and what handles its events."""

    stream: Any
    handle: Callable[[Any], None]
    future: Future[None] = field(default_factory=Future)


class Cluster:
    """A connection to a Ray cluster, and the tasks that run there: remote generators of events.

    This process handles the events, and restarts tasks: Ray would retry forever what runs out of memory.
    """

    def __init__(self) -> None:
        self.ray, self._is_own_connection = _connect()
        self._running: list[_Running] = []
        self._deaths: Counter[Any] = Counter()

    def remote(self, generator: Callable[..., Iterator[Any]], **resources: float) -> Any:
        """Return a generator function as a Ray task that streams what it yields."""
        options = {"name": "pairnorm", "max_retries": 0, "num_returns": "streaming"}
        return self.ray.remote(generator).options(**options, **resources)

    def start(self, remote: Any, arguments: Sequence[Any], handle: Callable[[Any], None]) -> Future[None]:
        """Start a task. Its future completes with the stream of its events."""
        task = _Running(remote.remote(__version__, *arguments), handle)
        self._running.append(task)
        return task.future

    def poll(self) -> None:
        """Handle the events that have arrived, without waiting."""
        for task in list(self._running):
            error = None
            try:
                while self.ray.wait([task.stream], timeout=0)[0]:
                    task.handle(self.ray.get(next(task.stream)))
                continue
            except StopIteration:
                pass
            except self.ray.exceptions.RayError as raised:
                error = raised
            self._remove(task)
            if error is None:
                task.future.set_result(None)
            else:
                task.future.set_exception(error)

    def may_restart(self, task: Any, error: Exception) -> bool:
        """Return whether to start a task again whose worker died; raise what the task itself raised."""
        errors = self.ray.exceptions
        died = isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.ObjectLostError)
        if not died and not isinstance(error, errors.OutOfMemoryError):
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, Exception) else error
        self._deaths[task] += 1
        return died and self._deaths[task] < MAX_DEATHS

    def _remove(self, task: _Running) -> None:
        self._running.remove(task)
        task.stream = None  # a process that still refers to a stream when it disconnects is ended by Ray

    def close(self) -> None:
        """Cancel all tasks and disconnect, unless the caller had connected before."""
        for task in list(self._running):
            self.ray.cancel(task.stream, force=True)
            self._remove(task)
        if self._is_own_connection:
            self.ray.shutdown()


def _connect() -> tuple[Any, bool]:
    """Return ray, connected to a cluster, and whether this call connected it."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        problem, hint = "running on a Ray cluster needs ray", install("ray")
        raise PairNormError(problem, code="not-installed", value="ray", hint=hint) from error
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        if address.startswith("ray://"):
            raise ConnectionError("this is the address of a Ray Client: use ray job submit -- pairnorm …")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about changes in future versions of Ray
            ray.init(address=address, log_to_driver=False, logging_level="error")
    except ConnectionError as error:
        problem = f"no Ray cluster was found ({address}: {error})"
        hint = "Start one: ray start --head, elsewhere ray start --address=…; or set RAY_ADDRESS."
        raise PairNormError(problem, code="no-cluster", value=address, hint=hint) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        check_version(address, " ".join(str(error).split()))
    return ray, True


def check_version(driver: str, problem: str = "") -> None:
    """Raise an error on a worker that has another version than the driver."""
    if driver != __version__:
        problem = problem or f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        hint = "Install the same versions of Python, ray and pairnorm on all machines."
        raise PairNormError(problem, code="version-mismatch", value=driver, hint=hint)


def worker_died(what: str, value: Any, hint: str, **options: Any) -> PairNormError:
    """Return the error about a task that has killed its workers."""
    problem = f"workers of the Ray cluster die of {what}, or have too little memory"
    return PairNormError(problem, code="worker-died", value=value, hint=hint, **options)


class RayPool(Pool):
    """Jobs as Ray tasks, one at a time on each core of a cluster, or on each GPU.

    A job whose worker died starts again with the pairs that are still to be trained. A job that runs out of
    memory is divided.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``; ``"auto"`` is CUDA if the cluster has GPUs.
        on_event: see ``Pool``.
    """

    def __init__(self, device: str, on_event: OnEvent) -> None:
        self._cluster = Cluster()
        resources = self._cluster.ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            problem = "no node of the Ray cluster has a GPU"
            hint = "Pass {device}, or start a node with ray start --num-gpus."
            raise PairNormError(problem, code="unknown-device", value=device, hint=hint, device="cpu")
        self._uses_gpu = gpus > 0 and one_of("device", device, ("auto", "cpu", "cuda")) != "cpu"
        super().__init__(gpus if self._uses_gpu else max(1, int(resources.get("CPU", 1))), on_event)
        needs = {"num_cpus": 0, "num_gpus": 1} if self._uses_gpu else {"num_cpus": 1}
        self._remote = self._cluster.remote(_train_job, **needs)
        self._graphs: dict[int, tuple[Graph, Any]] = {}
        self._trained: set[Pair] = set()
        self._is_closing = False

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Start a job on any node with free resources. The graph goes to the object store once."""
        if id(graph) not in self._graphs:
            self._graphs[id(graph)] = graph, self._cluster.ray.put(graph)
        arguments = self._graphs[id(graph)][1], job, self._uses_gpu, options
        return self._cluster.start(self._remote, arguments, self._handle)

    def _handle(self, part: tuple[list[Result], int]) -> None:
        results, cost = part
        self._trained.update((result.spec, result.trial.seed) for result in results)
        self._on_event(results)
        if not self._is_closing:
            self._on_event(cost)

    def retry(self, task: Task, error: Exception) -> list[Task]:
        """Return the pending part of a job whose worker died, in halves if it ran out of memory."""
        graph, job = task
        pending = Job(tuple(pair for pair in job.pairs if pair not in self._trained))
        may_restart = self._cluster.may_restart(pending, error)
        if may_restart or not pending.pairs:
            return [(graph, pending)] if pending.pairs else []
        halves = pending.split()
        if len(halves) == 1:
            spec = str(pending.pairs[0][0])
            raise worker_died(spec, spec, "Give the nodes more memory. What had finished is in the store.")
        return [(graph, half) for half in halves]

    def poll(self, *, results_only: bool = False) -> None:
        """Handle the events that have arrived."""
        self._cluster.poll()

    def close(self, at_once: bool = False) -> None:
        """Disconnect from the cluster; handle the results that have arrived and cancel what still runs."""
        self._is_closing = True
        try:
            self._cluster.poll()
        finally:
            self._cluster.close()


def _train_job(
    version: str, graph: Graph, job: Job, uses_gpu: bool, options: dict[str, Any]
) -> Iterator[tuple[list[Result], int]]:
    """Train a job on a worker, planned for the worker's memory; yield results, with the cost of each part."""
    check_version(version)
    torch.set_num_threads(1)
    keep_freed_memory()
    device, ticks = torch.device("cuda" if uses_gpu else "cpu"), list[int]()
    for planned in plan(graph, job.pairs, device, cores=1):
        for results in work(graph, planned, device, options, ticks.append):
            yield results, sum(ticks)
            ticks.clear()
