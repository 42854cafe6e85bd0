"""Train jobs in this process, in several processes, on CUDA streams, or on a Ray cluster."""

import multiprocessing
import os
import queue
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from functools import cache, partial
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from pairnorm import __version__
from pairnorm.base.csr import suppress_csr_warning
from pairnorm.base.errors import PairNormError, install, one_of
from pairnorm.base.memory import keep_freed_memory
from pairnorm.data import Graph
from pairnorm.train.engine import Job, Pair, plan, train_job
from pairnorm.train.methods import METHODS
from pairnorm.train.result import Origin, Result

T = TypeVar("T")
Event = int | list[Result]
"""What a running job reports: units of finished work, or results."""
OnEvent = Callable[[Event], None]
Task = tuple[Graph, Job]
MAX_DEATHS = 10
"""How often the workers of a task may die before it is given up."""
POLL_SECONDS = 0.2

suppress_csr_warning()  # a worker imports this module, then receives a graph that has sparse tensors


def train_all(
    tasks: Iterable[Task], device: torch.device, workers: int, options: dict[str, Any], on_event: OnEvent
) -> None:
    """Train jobs on a device of this machine, ``workers`` at once, with the options of ``work``.

    On CUDA, jobs run in threads with a stream each, so that small jobs share the device. On a CPU they run in
    processes of one thread each, or with one worker here, one after the other. ``on_event`` is called in this
    thread with the events of all jobs, and regularly with no work.
    """
    if device.type == "cuda" or (device.type == "cpu" and workers > 1):
        _train_at_once(tasks, device, workers, options, on_event)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for task in tasks:
            _send_events(device, options, on_event, task)
    finally:
        torch.set_num_threads(threads)


def work(
    graph: Graph, job: Job, device: torch.device, options: dict[str, Any], tick: Callable[[int], None]
) -> Iterator[list[Result]]:
    """Train a job in this process, which is the origin of its results; yield them as they finish."""
    start = time.perf_counter()
    options = dict(options)
    METHODS.update(options.pop("methods", {}))
    for trials in train_job(graph, job, device, tick=tick, **options):
        now = time.perf_counter()
        origin = Origin.here(seconds=now - start, shared_by=len(trials), device=device)
        start = now
        yield [Result(spec, trial, origin) for (spec, _), trial in trials.items()]


def _send_events(device: torch.device, options: dict[str, Any], send: OnEvent, task: Task) -> None:
    """Train a job in this process, and send its progress and its results."""
    for results in work(*task, device, options, send):
        send(results)


def _train_at_once(
    tasks: Iterable[Task], device: torch.device, workers: int, options: dict[str, Any], on_event: OnEvent
) -> None:
    """Train jobs in threads or processes, with one more submitted than there are workers, so that none waits.

    After an error, results that have arrived are still handled.
    """
    events: Any = queue.SimpleQueue()
    canceled, waiting, running = threading.Event(), iter(tasks), set[Future[None]]()

    def send(event: Event) -> None:
        if canceled.is_set() and isinstance(event, int):
            raise KeyboardInterrupt
        events.put(event)

    if device.type == "cuda":
        train = partial(_send_events, device, options, send)
        # One stream per thread: two jobs on one stream would disturb each other's capture.
        pool: futures.Executor = futures.ThreadPoolExecutor(
            workers, initializer=lambda: torch.cuda.set_stream(torch.cuda.Stream(device))
        )
    else:
        train, events = partial(_work, options), multiprocessing.get_context("spawn").SimpleQueue()
        pool = Workers(workers, events)
    with pool:
        try:
            while True:
                running |= {pool.submit(train, task) for task in islice(waiting, workers + 1 - len(running))}
                if not running:
                    return
                finished, running = futures.wait(running, POLL_SECONDS, futures.FIRST_COMPLETED)
                while not events.empty():
                    on_event(events.get())
                # The executor may miss that a process ended while it was starting.
                if isinstance(pool, Workers) and any(one.exitcode is not None for one in pool.processes):
                    raise futures.process.BrokenProcessPool("a process has ended")
                on_event(0)
                for future in finished:
                    future.result()
        except BaseException:
            canceled.set()
            if device.type == "cuda":  # other workers are ended where their pool is left
                pool.shutdown(cancel_futures=True)
            while not events.empty():
                if isinstance(event := events.get(), list):
                    on_event(event)
            raise


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

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Wait for the calls; after an error, end the processes."""
        processes = self.processes
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)
        for process in processes if kind is not None else ():
            process.terminate()


_events: Any = None


def _start_worker(events: Any) -> None:
    """Prepare a worker process, which sends its events to a queue."""
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


def _work(options: dict[str, Any], task: Task) -> None:
    """Train a job in a worker process."""
    _send_events(torch.device("cpu"), options, _events.put, task)


class Cluster:
    """A connection to a Ray cluster.

    This process restarts tasks whose workers died: Ray would retry forever what runs out of memory.
    """

    def __init__(self) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            problem, hint = "running on a Ray cluster needs ray", install("ray")
            raise PairNormError(problem, code="not-installed", value="ray", hint=hint) from error
        self.ray, self._is_own_connection = ray, not ray.is_initialized()
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            if self._is_own_connection and address.startswith("ray://"):
                raise ConnectionError("this is the address of a Ray Client: use ray job submit -- pairnorm …")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about changes in future versions of Ray
                if self._is_own_connection:
                    ray.init(address=address, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            problem = f"no Ray cluster was found ({address}: {error})"
            hint = "Start one: ray start --head, elsewhere ray start --address=…; or set RAY_ADDRESS."
            raise PairNormError(problem, code="no-cluster", value=address, hint=hint) from error
        except RuntimeError as error:
            if "ersion mismatch" not in str(error):
                raise
            check_version(address, " ".join(str(error).split()))

    def run_tasks(
        self,
        generator: Callable[..., Iterator[Any]],
        tasks: Iterable[T],
        workers: int,
        arguments: Callable[[T], Sequence[Any]],
        handle: Callable[[T, Any], None],
        rest: Callable[[T], T | None] = lambda task: task,
        poll: Callable[[], None] = lambda: None,
        **resources: float,
    ) -> None:
        """Run tasks, one more at a time than there are workers, and disconnect.

        Args:
            generator: yields the events of a task from the version of this package and ``arguments(task)``.
            tasks: hashable.
            workers: number of tasks that the cluster runs at once.
            arguments: of a task.
            handle: called with a task and each of its events.
            rest: returns the rest of a task whose worker died, to run again; None if nothing remains.
            poll: called now and then.
            resources: of a task.
        """
        names = ("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError")
        died = tuple(getattr(self.ray.exceptions, name) for name in names)
        options = {"name": "pairnorm", "max_retries": 0, "num_returns": "streaming"}
        remote = self.ray.remote(generator).options(**options, **resources)
        waiting, again, running, deaths = iter(tasks), list[T](), dict[Any, T](), Counter[T]()
        stream = None
        try:
            while True:
                while len(running) <= workers:
                    task = again.pop() if again else next(waiting, None)
                    if task is None:
                        break
                    running[remote.remote(__version__, *arguments(task))] = task
                if not running:
                    return
                self.ray.wait([*running], timeout=POLL_SECONDS)
                poll()
                for stream, task in list(running.items()):
                    try:
                        while self.ray.wait([stream], timeout=0)[0]:
                            handle(task, self.ray.get(next(stream)))
                    except StopIteration:
                        del running[stream]
                    except self.ray.exceptions.RayError as error:
                        del running[stream]
                        if not isinstance(error, died):
                            cause = getattr(error, "cause", None)
                            raise cause if isinstance(cause, Exception) else error  # noqa: B904
                        if (left := rest(task)) is not None:
                            deaths[left] += 1
                            if deaths[left] == MAX_DEATHS:
                                raise _worker_died(left) from error
                            again.append(left)
        finally:
            for stream in running:
                self.ray.cancel(stream, force=True)
            # A process that still refers to a stream when it disconnects is ended by Ray.
            running.clear()
            stream = None
            if self._is_own_connection:
                self.ray.shutdown()


def check_version(driver: str, problem: str = "") -> None:
    """Raise an error on a worker that has another version than the driver."""
    if driver != __version__:
        problem = problem or f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        hint = "Install the same versions of Python, ray and pairnorm on all machines."
        raise PairNormError(problem, code="version-mismatch", value=driver, hint=hint)


def _worker_died(task: Any) -> PairNormError:
    """Return the error about a task that was given up."""
    what = task[1].pairs[0][0] if isinstance(task[1], Job) else f"block {task[1] + 1}"
    problem = f"workers of the Ray cluster died {MAX_DEATHS} times of {what}, or have too little memory"
    hint = "Give the nodes more memory, or allow blocks less {memory}. What had finished is kept."
    return PairNormError(problem, code="worker-died", value=str(what), hint=hint, memory=...)


class RayPool(Cluster):
    """Trains jobs as Ray tasks, one at a time on each core of a cluster, or on each GPU.

    A job whose worker died starts again with its pending pairs. ``"auto"`` is CUDA if the cluster has GPUs.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        resources = self.ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            problem = "no node of the Ray cluster has a GPU"
            hint = "Pass {device}, or start a node with ray start --num-gpus."
            raise PairNormError(problem, code="unknown-device", value=device, hint=hint, device="cpu")
        self._uses_gpu = gpus > 0 and one_of("device", device, ("auto", "cpu", "cuda")) != "cpu"
        self.workers = gpus if self._uses_gpu else max(1, int(resources.get("CPU", 1)))

    def train_all(self, tasks: Iterable[Task], options: dict[str, Any], on_event: OnEvent) -> None:
        """Train jobs; arguments as in ``pairnorm.train.pools.train_all``."""
        put = cache(self.ray.put)  # each graph goes to the object store once
        trained: set[Pair] = set()

        def handle(task: Task, part: tuple[list[Result], int]) -> None:
            results, cost = part
            trained.update((result.spec, result.trial.seed) for result in results)
            on_event(results)
            on_event(cost)

        def rest(task: Task) -> Task | None:
            pending = tuple(pair for pair in task[1].pairs if pair not in trained)
            return (task[0], Job(pending)) if pending else None

        self.run_tasks(
            _train_job,
            tasks,
            self.workers,
            lambda task: (put(task[0]), task[1], self._uses_gpu, options),
            handle,
            rest,
            lambda: on_event(0),
            num_cpus=0 if self._uses_gpu else 1,
            num_gpus=1 if self._uses_gpu else 0,
        )


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
