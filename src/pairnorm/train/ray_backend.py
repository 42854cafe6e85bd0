"""Ray Core as a back end: jobs of a run, and blocks of a propagation, as tasks of a cluster.

Every task is a remote generator of events, which the driver handles; only the driver writes files. The driver
also restarts tasks whose worker died: Ray would retry forever what runs out of memory.
"""

import os
import queue
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.memory import keep_freed_memory
from pairnorm.data import Graph
from pairnorm.data.packed import PackedGraph
from pairnorm.train.engine import Job, Pair, plan
from pairnorm.train.propagation import BlockEvent, Propagation, ignore_progress
from pairnorm.train.schedule import Event, OnEvent, Pool, Task, run_all, work
from pairnorm.version import __version__

EVENT_SECONDS = 0.2
MAX_DEATHS = 10
"""How often the workers of a task may die before it is given up, or divided."""


@dataclass(eq=False)
class _Task:
    """A remote generator, and what handles its events."""

    stream: Any
    handle: Callable[[Any], None]
    future: Future[None] = field(default_factory=Future)


class _Cluster:
    """A connection to a Ray cluster, and the tasks that run there."""

    def __init__(self) -> None:
        self.ray, self._is_own_connection = _connect()
        self._running: list[_Task] = []
        self._deaths: Counter[Any] = Counter()

    def remote(self, generator: Callable[..., Iterator[Any]], **resources: float) -> Any:
        """Return a generator function as a Ray task that streams what it yields."""
        options = {"name": "pairnorm", "max_retries": 0, "num_returns": "streaming"}
        return self.ray.remote(generator).options(**options, **resources)

    def start(self, remote: Any, arguments: Sequence[Any], handle: Callable[[Any], None]) -> Future[None]:
        """Start a task. Its future completes with the stream of its events."""
        task = _Task(remote.remote(__version__, *arguments), handle)
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

    def _remove(self, task: _Task) -> None:
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
        problem, hint = "running on a Ray cluster needs ray", "pip install 'pairnorm[ray]'"
        raise PairNormError(problem, code="not-installed", value="ray", hint=hint) from error
    if ray.is_initialized():
        return ray, False
    address = os.environ.get("RAY_ADDRESS", "auto")
    if address.startswith("ray://"):
        problem = f"RAY_ADDRESS is {address!r}, a Ray Client's, and not the address of the cluster itself"
        hint = "Submit this command as a job: ray job submit -- pairnorm …"
        raise PairNormError(problem, code="no-cluster", value=address, hint=hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about changes in future versions of Ray
            ray.init(address=address, log_to_driver=False, logging_level="error")
    except ConnectionError as error:
        problem = f"no Ray cluster was found ({address})"
        hint = "Start one: ray start --head, elsewhere ray start --address=…; or set RAY_ADDRESS."
        raise PairNormError(problem, code="no-cluster", value=address, hint=hint) from error
    except RuntimeError as error:
        if "ersion mismatch" in str(error):
            raise _other_version(f"the Ray cluster runs other versions: {error}", address) from error
        raise
    return ray, True


def _other_version(problem: str, value: str) -> PairNormError:
    hint = "Install the same versions of Python, ray and pairnorm on all machines."
    return PairNormError(" ".join(problem.split()), code="version-mismatch", value=value, hint=hint)


def _check_version(driver: str) -> None:
    """Raise an error on a worker that has another version than the driver."""
    if driver != __version__:
        problem = f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        raise _other_version(problem, driver)


def _worker_died(what: str, value: Any, hint: str, **options: Any) -> PairNormError:
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
        self._cluster = _Cluster()
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
        self._progress: Counter[Job] = Counter()
        self._is_canceled = False

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Start a job on any node with free resources. The graph goes to the object store once."""
        if id(graph) not in self._graphs:
            self._graphs[id(graph)] = graph, self._cluster.ray.put(graph)
        arguments = self._graphs[id(graph)][1], job, self._uses_gpu, options
        self._progress[job] = 0
        return self._cluster.start(self._remote, arguments, partial(self._handle, job))

    def _handle(self, job: Job, event: Event) -> None:
        if isinstance(event, list):
            self._trained.update((result.spec, result.trial.seed) for result in event)
            self._on_event(event)
        elif event and not self._is_canceled:
            self._progress[job] += event
            self._on_event(event)

    def retry(self, task: Task, error: Exception) -> list[Task]:
        """Return what is left of a job whose worker died, in halves if it ran out of memory."""
        graph, job = task
        left = Job(tuple(pair for pair in job.pairs if pair not in self._trained))
        may_restart = self._cluster.may_restart(left, error)
        done = job.cost - left.cost if left.pairs else job.cost
        self._on_event(done - self._progress[job])  # the work that is lost is done again
        if not left.pairs:
            return []
        if may_restart:
            return [(graph, left)]
        halves = left.halves()
        if len(halves) == 1:
            spec = str(left.pairs[0][0])
            hint = "Give the nodes more memory. What had finished is in the store."
            raise _worker_died(spec, spec, hint)
        return [(graph, half) for half in halves]

    def poll(self, *, results_only: bool = False) -> None:
        """Handle the events that have arrived."""
        self._cluster.poll()

    def close(self, at_once: bool = False) -> None:
        """Disconnect from the cluster; handle the results that have arrived and cancel what still runs."""
        self._is_canceled = at_once
        try:
            self._cluster.poll()
        finally:
            self._cluster.close()


def _train_job(
    version: str, graph: Graph, job: Job, uses_gpu: bool, options: dict[str, Any]
) -> Iterator[Event]:
    """Train a job on a worker, planned for the worker's memory, and yield its events."""
    _check_version(version)
    torch.set_num_threads(1)
    keep_freed_memory()
    device, events = torch.device("cuda" if uses_gpu else "cpu"), queue.SimpleQueue[Event | None]()

    def train() -> None:
        for part in plan(graph, job.pairs, device, cores=1):
            work(graph, part, device, options, events.put)

    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(train)
        training.add_done_callback(lambda _: events.put(None))
        done, since = 0, time.monotonic()
        while (event := events.get()) is not None:
            if isinstance(event, int):
                done += event
            if isinstance(event, list) or time.monotonic() - since > EVENT_SECONDS:
                yield done
                done, since = 0, time.monotonic()
            if isinstance(event, list):
                yield event
        training.result()
        yield done


class RayBlocks:
    """Blocks of propagations as Ray tasks, as many on a node as its cores and its memory allow.

    Columns are independent, so that a dead worker costs one block. Workers map the files of the graph, which
    every node must have at the same path.

    Attributes:
        memory: bytes that the largest node has for tasks.
        cores: of all nodes.
    """

    def __init__(self) -> None:
        self._cluster = _Cluster()
        alive = [node["Resources"] for node in self._cluster.ray.nodes() if node["Alive"]]
        self._nodes = [node for node in alive if node.get("CPU", 0)]
        self.memory = max((int(node.get("memory", 0)) for node in self._nodes), default=0)
        self.cores = sum(int(node["CPU"]) for node in self._nodes)

    def run(self, propagations: Sequence[Propagation], bytes_per_block: int) -> None:
        """Compute the pending blocks; those of PN-SI stay, since they depend on each other at every step.

        Args:
            propagations: over one graph.
            bytes_per_block: memory that a block takes.
        """
        # The cores of a node are shared by the blocks that fit into its memory.
        rooms = [(node["CPU"], node.get("memory", 0) // bytes_per_block) for node in self._nodes]
        threads = max(1, min((int(cores // room) for cores, room in rooms if room), default=1))
        remote = self._cluster.remote(_propagate_block, num_cpus=threads, memory=bytes_per_block)
        pending = [(one, number) for one in propagations if one.norm != "PN-SI" for number in one.pending()]
        reported: set[tuple[Propagation, str]] = set()

        def handle(propagation: Propagation, number: int, event: BlockEvent) -> None:
            if isinstance(event, str):
                if (propagation, event) in reported:  # by a worker that died
                    return
                reported.add((propagation, event))
            propagation.handle(number, event)

        def submit(task: tuple[Propagation, int]) -> Future[None]:
            propagation, number = task
            # A new graph has no mapped arrays, which would travel with the task.
            graph = PackedGraph(propagation.graph.folder.resolve(), propagation.graph.facts)
            sent = replace(propagation, graph=graph, on_progress=ignore_progress)
            return self._cluster.start(remote, (sent, number, threads), partial(handle, *task))

        def retry(task: tuple[Propagation, int], error: Exception) -> list[tuple[Propagation, int]]:
            if self._cluster.may_restart(task, error):
                return [task]
            width = task[0].width
            hint = "Allow less memory for narrower blocks: {memory}. Finished blocks are kept."
            raise _worker_died(f"a block of {width} columns", width, hint, memory=...)

        try:
            run_all(pending, self.cores, submit, self._cluster.poll, retry)
        finally:
            self._cluster.close()


def _propagate_block(
    version: str, propagation: Propagation, number: int, threads: int
) -> Iterator[BlockEvent]:
    """Compute a block on a worker and yield its events."""
    _check_version(version)
    torch.set_num_threads(threads)
    folder, facts = propagation.graph.folder, propagation.graph.facts
    if not folder.exists() or PackedGraph.open(folder).facts != facts:
        problem = f"a node of the Ray cluster does not have the packed graph {folder}"
        hint = "Copy the folder to the same path on every node, or use a folder that all nodes share."
        raise PairNormError(problem, code="file-missing", value=str(folder), hint=hint)
    yield from propagation.compute_block(number)
