"""Ray Core as a back end: jobs of a run, and blocks of a propagation, as tasks of a cluster.

Every task yields events, which the driver handles; only the driver writes files.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import csr_components
from pairnorm.base.errors import PairNormError, one_of
from pairnorm.data import Graph
from pairnorm.data.packed import PackedGraph
from pairnorm.train.cluster import Cluster, Task, check_version, is_not_seen
from pairnorm.train.jobs import Job, plan
from pairnorm.train.pools import Event, Pool, keep_freed_memory, work
from pairnorm.train.propagation import BlockEvent, Propagation, ignore_progress
from pairnorm.version import __version__

EVENT_SECONDS = 0.2
POLL_SECONDS = 0.2


@dataclass(eq=False)
class _JobTask(Task):
    """A job of a run: the pairs that it still has to train, and the work that it has reported."""

    pool: "RayPool"
    graph: Graph
    job: Job
    options: dict[str, Any]
    future: Future[None] = field(default_factory=Future)
    done: int = 0
    furthest: int = 0

    def start(self) -> Any:
        self.done = 0
        return self.pool.start_job(self.graph, self.job, self.options)

    def handle(self, event: Event) -> bool:
        if isinstance(event, int):
            self.done += event
        else:
            trained = {(result.spec, result.trial.seed) for result in event}
            pairs = tuple(pair for pair in self.job.pairs if pair not in trained)
            self.done -= self.job.cost - (Job(pairs).cost if pairs else 0)
            self.job = Job(pairs)
        is_further = isinstance(event, list) or self.done > self.furthest
        if is_further:
            self.furthest = self.done
        self.pool.forward(event)
        return is_further

    def finish(self) -> None:
        self.future.set_result(None)

    def retry(self, error: Exception) -> bool:
        self.pool.forward(-self.done)  # that work is done again
        return bool(self.job.pairs)  # else the worker died after its last result

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)

    def give_up(self, error: Exception) -> None:
        halves = self.job.halves()
        if len(halves) > 1:
            parts = [self.pool.submit(self.graph, half, self.options) for half in halves]
            _complete_with(parts, self.future)
            return
        spec = str(self.job.pairs[0][0])
        problem = f"workers of the Ray cluster die of {spec}, or have too little memory"
        hint = "Give the nodes more memory. What had finished is in the store."
        self.future.set_exception(PairNormError(problem, code="worker-died", value=spec, hint=hint))


def _complete_with(parts: list[Future[None]], whole: Future[None]) -> None:
    """Complete a future with the first error of its parts, or when all parts are done."""

    def check(part: Future[None]) -> None:
        if whole.done():
            return
        if error := part.exception():
            whole.set_exception(error)
        elif all(other.done() for other in parts):
            whole.set_result(None)

    for part in parts:
        part.add_done_callback(check)


class RayPool(Pool):
    """Jobs as Ray tasks, one at a time on each core of a cluster, or on each GPU.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``; ``"auto"`` is CUDA if the cluster has GPUs.
        on_event: see ``Pool``.
    """

    def __init__(self, device: str, on_event: Callable[[Event], None]) -> None:
        self._cluster = Cluster()
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
        task = _JobTask(self, graph, job, options)
        self._cluster.start(task)
        return task.future

    def start_job(self, graph: Graph, job: Job, options: dict[str, Any]) -> Any:
        """Start the Ray task of a job. The graph goes to the object store once."""
        if id(graph) not in self._graphs:
            parts = (*csr_components(graph.adjacency), *csr_components(graph.features))
            self._cluster.check_object_store(f"graph {graph.name!r}", sum(part.nbytes for part in parts))
            self._graphs[id(graph)] = graph, self._cluster.ray.put(graph)
        return self._remote.remote(self._graphs[id(graph)][1], job, self._uses_gpu, options, __version__)

    def forward(self, event: Event) -> None:
        """Pass an event on; after ``cancel``, results only."""
        if not (self._is_canceled and isinstance(event, int)):
            self._on_event(event)

    def process_events(self, *, results_only: bool = False) -> None:
        """Handle the events that have arrived, and restart jobs whose worker has died."""
        self._cluster.poll()

    def close(self) -> None:
        """Disconnect from the cluster, unless the caller had connected before."""
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
    events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
    device = torch.device("cuda" if uses_gpu else "cpu")

    def train() -> None:
        try:
            for part in plan(graph, job.pairs, device, cores=1):
                work(graph, part, device, options, events.put)
            events.put(None)
        except BaseException as error:
            events.put(error)

    threading.Thread(target=train, daemon=True).start()
    done, since = 0, time.monotonic()
    while (event := events.get()) is not None:
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, int):
            done += event
        if isinstance(event, list) or time.monotonic() - since > EVENT_SECONDS:
            yield done
            done, since = 0, time.monotonic()
        if isinstance(event, list):
            yield event
    yield done


@dataclass(frozen=True, eq=False)
class SentGraph(PackedGraph):
    """A packed graph of which some files came through the object store.

    Args:
        arrays: the content of these files by name.
    """

    arrays: dict[str, NDArray[Any]]

    def _array(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        return self.arrays[name]


@dataclass(eq=False)
class _BlockTask(Task):
    """A block of columns of a propagation."""

    blocks: "RayBlocks"
    propagation: Propagation
    number: int
    bytes_per_block: int
    steps: int = 0
    furthest: int = 0
    is_complete: bool = False

    def start(self) -> Any:
        self.steps = 0
        return self.blocks.start_block(self.propagation, self.number, self.bytes_per_block)

    def handle(self, event: BlockEvent) -> bool:
        self.steps += 1
        self.is_complete = not isinstance(event, str)
        is_further = self.steps > self.furthest  # events of an earlier attempt were handled then
        if is_further:
            self.furthest = self.steps
            self.propagation.handle(self.number, event)
        return is_further

    def finish(self) -> None:
        pass

    def retry(self, error: Exception) -> bool:
        if is_not_seen(error):
            self.blocks.sends_arrays = True
        return not self.is_complete

    def fail(self, error: Exception) -> None:
        raise error

    def give_up(self, error: Exception) -> None:
        width = self.propagation.width
        raise PairNormError(
            f"workers of the Ray cluster die of a block of {width} columns, or have too little memory",
            code="worker-died",
            value=width,
            hint="Allow less memory for narrower blocks: {memory}. What had finished is kept.",
            memory=...,
        ) from error


class RayBlocks:
    """Blocks of propagations as Ray tasks, as many on a node as its cores and its memory allow.

    Columns are independent, so that a dead worker costs one block. A worker that sees the folder of the graph
    maps its files. Other workers get the arrays through the object store, which all workers of a node share.

    Attributes:
        memory: bytes that the largest node has for tasks.
        cores: of all nodes.
        sends_arrays: whether arrays go through the object store.
    """

    def __init__(self) -> None:
        self._cluster = Cluster()
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
        self._remote = self._cluster.remote(_propagate_block, num_cpus=1, memory=bytes_per_block)
        waiting = [
            _BlockTask(self, one, number, bytes_per_block)
            for one in propagations
            if one.norm != "PN-SI"
            for number in one.pending()
        ]
        try:
            while waiting or self._cluster.running:
                while waiting and len(self._cluster.running) <= self.cores:  # one more, so that no core waits
                    self._cluster.start(waiting.pop(0))
                self._cluster.ray.wait([task.stream for task in self._cluster.running], timeout=POLL_SECONDS)
                self._cluster.poll()
        finally:
            self._cluster.cancel()

    def start_block(self, propagation: Propagation, number: int, bytes_per_block: int) -> Any:
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
        names = tuple(sent)
        return self._remote.remote(propagation, number, bytes_per_block, __version__, names, *sent.values())


def _propagate_block(
    propagation: Propagation,
    number: int,
    bytes_per_block: int,
    version: str,
    names: tuple[str, ...],
    *arrays: NDArray[Any],
) -> Iterator[BlockEvent]:
    """Compute a block on a worker and yield its events."""
    check_version(version)
    torch.set_num_threads(_threads_per_block(bytes_per_block))
    graph = propagation.graph
    if names:
        graph = SentGraph(graph.folder, graph.facts, dict(zip(names, arrays, strict=True)))
    elif not _sees(graph):
        raise PairNormError(f"{graph.folder}: a worker does not see it", code="not-seen")
    yield from replace(propagation, graph=graph).block(number)


def _sees(graph: PackedGraph) -> bool:
    """Return whether this machine has the folder of this very graph."""
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
