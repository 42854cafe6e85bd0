"""Ray Core as a back end: jobs of a run, and blocks of a propagation, as tasks of a cluster.

Every task is a remote generator of events, which the driver handles; only the driver writes files. The driver
also restarts tasks whose worker died: Ray would retry forever what runs out of memory.
"""

import os
import queue
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import csr_components
from pairnorm.base.errors import PairNormError, one_of
from pairnorm.data import Graph
from pairnorm.data.packed import PackedGraph
from pairnorm.train.engine import Job, plan
from pairnorm.train.pools import Event, OnEvent, Pool, keep_freed_memory, run_all, work
from pairnorm.train.propagation import BlockEvent, Propagation, ignore_progress
from pairnorm.version import __version__

EVENT_SECONDS = 0.2
MAX_ATTEMPTS = 10
"""How often the workers of a task may die without getting further than before."""


class _Task(ABC):
    """A remote generator that starts again when its worker dies. Its future completes with its stream."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()
        self.stream: Any = None
        self.attempts = self.position = self._furthest = 0

    @abstractmethod
    def start(self) -> Any:
        """Set ``position``, start the remote generator and return its stream of object references."""

    @abstractmethod
    def handle(self, event: Any) -> None:
        """Handle an event."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the last result has arrived, so that a death of the worker costs nothing."""

    @abstractmethod
    def shrink(self) -> bool:
        """Prepare a smaller attempt after running out of memory or dying too often; else fail the future."""

    def advance(self, work: int) -> int:
        """Move on by some work and return the part of it that no earlier attempt has done."""
        self.position += work
        new = max(0, self.position - self._furthest)
        if new:
            self._furthest, self.attempts = self.position, 0
        return new


class _Cluster:
    """A connection to a Ray cluster, and the tasks that run there."""

    def __init__(self) -> None:
        self.ray, self._is_own_connection = _connect()
        self._running: list[_Task] = []

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of every node that has a core for tasks."""
        nodes = self.ray.nodes()
        return [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0)]

    def check_object_store(self, name: str, size: int) -> None:
        """Raise an error for an object of more bytes than the smallest object store has."""
        room = min((int(node.get("object_store_memory", 0)) for node in self.nodes()), default=0)
        if size > room:
            problem = f"{name} has {size / 1e9:.2g} GB, the smallest object store {room / 1e9:.2g} GB"
            hint = "Start its node with more --object-store-memory; a container needs a larger --shm-size."
            raise PairNormError(problem, code="no-room", value=size, hint=hint)

    def remote(self, generator: Callable[..., Iterator[Any]], **resources: float) -> Any:
        """Return a generator function as a Ray task that streams what it yields."""
        options = {"name": "pairnorm", "max_retries": 0, "num_returns": "streaming"}
        return self.ray.remote(generator).options(**options, **resources)

    def start(self, task: _Task) -> Future[None]:
        """Start a task."""
        self._running.append(task)
        task.stream = task.start()
        return task.future

    def poll(self) -> None:
        """Handle the events that have arrived, without waiting, and restart the tasks of dead workers."""
        for task in list(self._running):
            error: Exception | None = None
            try:
                while self.ray.wait([task.stream], timeout=0)[0]:
                    task.handle(self.ray.get(next(task.stream)))
                continue
            except StopIteration:
                pass
            except self.ray.exceptions.RayError as raised:
                error = raised
            self._remove(task)
            if task.is_complete:
                task.future.set_result(None)
            elif error is None or self._can_restart(task, error):
                self.start(task)

    def _can_restart(self, task: _Task, error: Exception) -> bool:
        """Return whether to restart a task after an error, if not, its future has the exception."""
        errors = self.ray.exceptions
        died = isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.ObjectLostError)
        if not died and not isinstance(error, errors.OutOfMemoryError):  # the task itself raised it
            cause = getattr(error, "cause", None)
            task.future.set_exception(cause if isinstance(cause, Exception) else error)
            return False
        task.attempts += 1
        return (died and task.attempts < MAX_ATTEMPTS) or task.shrink()

    def _remove(self, task: _Task) -> None:
        self._running.remove(task)
        task.stream = None  # a process that still refers to a stream when it disconnects is ended by Ray

    def cancel(self) -> None:
        """Cancel all tasks and disconnect."""
        for task in list(self._running):
            self.ray.cancel(task.stream, force=True)
            self._remove(task)
        self.close()

    def close(self) -> None:
        """Disconnect, unless the caller had connected before."""
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


def check_version(driver: str) -> None:
    """Raise an error on a worker that has another version than the driver."""
    if driver != __version__:
        problem = f"a worker of the Ray cluster has pairnorm {__version__}, the driver {driver}"
        raise _other_version(problem, driver)


class _JobTask(_Task):
    """A job of a run: the pairs that are still to be trained, and the work that was reported.

    A job that runs out of memory is divided; its parts are trained one after the other.
    """

    def __init__(self, pool: "RayPool", graph: Graph, job: Job, options: dict[str, Any]) -> None:
        super().__init__()
        self.pool, self.graph, self.jobs, self.options = pool, graph, [job], options
        self._cost = job.cost

    def start(self) -> Any:
        self.position = self._cost - sum(job.cost for job in self.jobs)
        return self.pool.start_job(self.graph, self.jobs[0], self.options)

    def handle(self, event: Event) -> None:
        if isinstance(event, int):
            self.pool.forward(self.advance(event))
            return
        trained = {(result.spec, result.trial.seed) for result in event}
        pairs = tuple(pair for pair in self.jobs[0].pairs if pair not in trained)
        self.jobs[:1] = [Job(pairs)] if pairs else []
        self.attempts = 0
        self.pool.forward(event)

    @property
    def is_complete(self) -> bool:
        return not self.jobs

    def shrink(self) -> bool:
        halves = self.jobs[0].halves()
        if len(halves) > 1:
            self.jobs[:1] = halves
            self.attempts = 0
            return True
        spec = str(self.jobs[0].pairs[0][0])
        problem = f"workers of the Ray cluster die of {spec}, or have too little memory"
        hint = "Give the nodes more memory. What had finished is in the store."
        self.future.set_exception(PairNormError(problem, code="worker-died", value=spec, hint=hint))
        return False


class RayPool(Pool):
    """Jobs as Ray tasks, one at a time on each core of a cluster, or on each GPU.

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
        self._graphs: dict[int, tuple[Graph, Any]] = {}
        self._is_canceled = False
        needs = {"num_cpus": 0, "num_gpus": 1} if self._uses_gpu else {"num_cpus": 1}
        self._remote = self._cluster.remote(_train_job, **needs)

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Start a job on any node with free resources."""
        return self._cluster.start(_JobTask(self, graph, job, options))

    def start_job(self, graph: Graph, job: Job, options: dict[str, Any]) -> Any:
        """Start the Ray task of a job. The graph goes to the object store once."""
        if id(graph) not in self._graphs:
            parts = (*csr_components(graph.adjacency), *csr_components(graph.features))
            self._cluster.check_object_store(f"graph {graph.name!r}", sum(part.nbytes for part in parts))
            self._graphs[id(graph)] = graph, self._cluster.ray.put(graph)
        return self._remote.remote(self._graphs[id(graph)][1], job, self._uses_gpu, options, __version__)

    def forward(self, event: Event) -> None:
        """Pass an event on; after ``cancel``, results only."""
        if event and not (self._is_canceled and isinstance(event, int)):
            self._on_event(event)

    def process_events(self, *, results_only: bool = False) -> None:
        """Handle the events that have arrived, and restart jobs whose worker has died."""
        self._cluster.poll()

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._cluster.close()

    def cancel(self) -> None:
        """Handle the results that have arrived, then cancel all jobs."""
        self._is_canceled = True
        try:
            self._cluster.poll()
        finally:
            self._cluster.cancel()


def _train_job(
    graph: Graph, job: Job, uses_gpu: bool, options: dict[str, Any], version: str
) -> Iterator[Event]:
    """Train a job on a worker, planned for the worker's memory, and yield its events."""
    check_version(version)
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


@dataclass(frozen=True, eq=False)
class SentGraph(PackedGraph):
    """A packed graph of which some files came through the object store, their arrays by name."""

    arrays: dict[str, NDArray[Any]]

    def _array(self, name: str) -> NDArray[Any]:
        return self.arrays[name]


class _BlockTask(_Task):
    """A block of columns of a propagation."""

    is_complete = False

    def __init__(self, blocks: "RayBlocks", propagation: Propagation, number: int) -> None:
        super().__init__()
        self.blocks, self.propagation, self.number = blocks, propagation, number

    def start(self) -> Any:
        self.position = 0
        return self.blocks.start_block(self.propagation, self.number)

    def handle(self, event: BlockEvent | None) -> None:
        if event is None:
            self.blocks.sends_arrays = True  # the stream ends, and the task starts again
        elif self.advance(1):
            self.propagation.handle(self.number, event)
            self.is_complete = not isinstance(event, str)

    def shrink(self) -> bool:
        width = self.propagation.width
        problem = f"workers of the Ray cluster die of a block of {width} columns, or have too little memory"
        hint = "Allow less memory for narrower blocks: {memory}. Finished blocks are kept."
        died = PairNormError(problem, code="worker-died", value=width, hint=hint, memory=...)
        self.future.set_exception(died)
        return False


class RayBlocks:
    """Blocks of propagations as Ray tasks, as many on a node as its cores and its memory allow.

    Columns are independent, so that a dead worker costs one block. Workers map the files of the graph where
    every node sees its folder. Else they get the arrays through the object store, which the workers of a node
    share.

    Attributes:
        memory: bytes that the largest node has for tasks.
        cores: of all nodes.
        sends_arrays: whether arrays go through the object store.
    """

    def __init__(self) -> None:
        self._cluster = _Cluster()
        nodes = self._cluster.nodes()
        self.memory = max((int(node.get("memory", 0)) for node in nodes), default=0)
        self.cores = sum(int(node["CPU"]) for node in nodes)
        self.sends_arrays, self._sent = False, dict[str, Any]()

    def run(self, propagations: Sequence[Propagation], bytes_per_block: int) -> None:
        """Compute the pending blocks; those of PN-SI stay, since they depend on each other at every step.

        Args:
            propagations: over one graph.
            bytes_per_block: memory that a block takes.
        """
        self._bytes_per_block = bytes_per_block
        self._remote = self._cluster.remote(_propagate_block, num_cpus=1, memory=bytes_per_block)
        tasks = [
            _BlockTask(self, one, number)
            for one in propagations
            if one.norm != "PN-SI"
            for number in one.pending()
        ]
        try:
            run_all(tasks, self.cores, self._cluster.start, self._cluster.poll)
        finally:
            self._cluster.cancel()

    def start_block(self, propagation: Propagation, number: int) -> Any:
        """Start the Ray task of a block."""
        graph, sent = propagation.graph, dict[str, Any]()
        if self.sends_arrays:
            arrays = graph.files(propagation.columns(number))
            self._cluster.check_object_store(str(graph.folder), sum(one.nbytes for one in arrays.values()))
            for name, array in arrays.items():
                if name not in self._sent:
                    self._sent[name] = self._cluster.ray.put(np.asarray(array))
            sent = {name: self._sent[name] for name in arrays}
        # A new graph has no mapped arrays, which would travel with the task.
        graph = PackedGraph(graph.folder.resolve(), graph.facts)
        propagation = replace(propagation, graph=graph, on_progress=ignore_progress)
        return self._remote.remote(
            propagation, number, self._bytes_per_block, __version__, tuple(sent), *sent.values()
        )


def _propagate_block(
    propagation: Propagation,
    number: int,
    bytes_per_block: int,
    version: str,
    names: tuple[str, ...],
    *arrays: NDArray[Any],
) -> Iterator[BlockEvent | None]:
    """Compute a block on a worker and yield its events; None if this machine does not have the graph."""
    check_version(version)
    torch.set_num_threads(_threads_per_block(bytes_per_block))
    graph = propagation.graph
    if names:
        graph = SentGraph(graph.folder, graph.facts, dict(zip(names, arrays, strict=True)))
    elif not _has_graph(graph):
        yield None
        return
    yield from replace(propagation, graph=graph).compute_block(number)


def _has_graph(graph: PackedGraph) -> bool:
    try:
        return PackedGraph.open(graph.folder).facts == graph.facts
    except PairNormError:
        return False


def _threads_per_block(bytes_per_block: int) -> int:
    """Return a node's cores divided by the blocks that fit into its memory."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    node = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    cores, room = int(node["CPU"]), int(node["memory"] // bytes_per_block)
    return max(1, cores // max(1, min(cores, room)))
