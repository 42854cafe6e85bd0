"""Jobs on a Ray cluster: the graph is put there once, tasks tell what they find, the driver alone writes it.

Ray itself retries nothing, for it would try for ever what runs out of memory: what is tried again, and what
is halved, is decided here.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from pairnorm.base.csr import csr_components
from pairnorm.base.errors import PairNormError, one_of
from pairnorm.data import Graph
from pairnorm.train.cluster import ATTEMPTS, cause_of, check_room, check_version, connect, has_died
from pairnorm.train.jobs import Job, Pair, plan
from pairnorm.train.pools import Pool, Told, keep_freed_memory, work
from pairnorm.version import __version__

TELL_SECONDS = 0.2


@dataclass
class _Running:
    """A job under way: what it still has to find, and what it has told of its work."""

    future: Future[None]
    graph: Graph
    job: Job
    options: dict[str, Any]
    attempts: int = 0
    ticks: int = 0
    furthest: int = 0
    results: Any = None


class Ray(Pool):
    """Tasks of Ray Core, one for each core of a cluster, or for each GPU.

    Args:
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``; ``"auto"`` is CUDA where the cluster has GPUs.
        hear: see ``Pool``.
    """

    def __init__(self, device: str, hear: Callable[[Told], None]) -> None:
        self._ray, self._ours = connect()
        resources = self._ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            problem = "no node of the Ray cluster has a GPU"
            hint = "Pass {device}, or start a node with ray start --num-gpus."
            raise PairNormError(problem, code="unknown-device", value=device, hint=hint, device="cpu")
        self._on_gpu = gpus > 0 and one_of("device", device, ("auto", "cpu", "cuda")) != "cpu"
        super().__init__(gpus if self._on_gpu else max(1, int(resources.get("CPU", 1))), hear)
        self._graphs: dict[int, tuple[Graph, Any]] = {}
        self._running: list[_Running] = []
        needs = {"num_cpus": 0, "num_gpus": 1} if self._on_gpu else {"num_cpus": 1}
        self._task = self._ray.remote(_work).options(
            name="pairnorm", max_retries=0, num_returns="streaming", **needs
        )

    def submit(self, graph: Graph, job: Job, options: dict[str, Any]) -> Future[None]:
        """Begin a job on whichever node has room."""
        running = _Running(Future(), graph, job, options)
        self._begin(running)
        return running.future

    def listen(self, *, results_only: bool = False) -> None:
        """Hear the tasks; begin those again whose worker has died."""
        for running in list(self._running):
            try:
                while self._ray.wait([running.results], timeout=0)[0]:
                    self._hear_of(running, self._ray.get(next(running.results)), results_only)
            except StopIteration:
                self._end(running)
                running.future.set_result(None)
            except Exception as error:
                self._end(running)
                if not results_only:
                    self._fail(running, error)

    def close(self) -> None:
        """Leave the cluster, unless the caller had joined it before."""
        if self._ours:
            self._ray.shutdown()

    def abandon(self) -> None:
        """Hear what was told, then end all tasks."""
        try:
            self.listen(results_only=True)
        finally:
            for running in list(self._running):
                self._ray.cancel(running.results, force=True)
                self._end(running)
            self.close()

    def _end(self, running: _Running) -> None:
        """Forget a task: what still has one of a cluster that was left ends the process."""
        self._running.remove(running)
        running.results = None

    def _begin(self, running: _Running) -> None:
        self._running.append(running)
        running.ticks = 0
        place = self._place(running.graph)
        running.results = self._task.remote(place, running.job, self._on_gpu, running.options, __version__)

    def _place(self, graph: Graph) -> Any:
        """Return where in the cluster a graph is, and put it there first if it is not."""
        if id(graph) not in self._graphs:
            parts = (*csr_components(graph.adjacency), *csr_components(graph.features))
            check_room(self._ray, f"graph {graph.name!r}", sum(part.nbytes for part in parts))
            self._graphs[id(graph)] = graph, self._ray.put(graph)
        return self._graphs[id(graph)][1]

    def _hear_of(self, running: _Running, told: Told, results_only: bool) -> None:
        if isinstance(told, int):
            running.ticks += told
        else:
            found = {(result.spec, result.trial.seed) for result in told}
            self._forget(running, tuple(pair for pair in running.job.pairs if pair not in found))
        if isinstance(told, list) or running.ticks > running.furthest:  # what dies at one place never is
            running.attempts, running.furthest = 0, running.ticks
        if not (results_only and isinstance(told, int)):
            self._hear(told)

    def _forget(self, running: _Running, left: tuple[Pair, ...]) -> None:
        running.ticks -= running.job.cost - (Job(left).cost if left else 0)
        running.job = Job(left)

    def _fail(self, running: _Running, error: Exception) -> None:
        """Try again what a dead worker had; in halves what is too large, or keeps killing its workers."""
        died, too_large = has_died(error), isinstance(error, self._ray.exceptions.OutOfMemoryError)
        if not died and not too_large:
            running.future.set_exception(cause_of(error))
            return
        self._hear(-running.ticks)  # that work is to be done again
        running.attempts += 1
        if not running.job.pairs:  # it died after the last of its results
            running.future.set_result(None)
        elif died and running.attempts < ATTEMPTS:
            self._begin(running)
        elif len(halves := running.job.halves()) > 1:
            parts = [self.submit(running.graph, half, running.options) for half in halves]
            _when_all_are_done(parts, running.future)
        else:
            running.future.set_exception(
                PairNormError(
                    f"workers of the Ray cluster die of {running.job.pairs[0][0]}, or have too little memory",
                    code="worker-died",
                    value=str(running.job.pairs[0][0]),
                    hint="Give the nodes more memory. What had finished is in the store.",
                )
            )


def _when_all_are_done(parts: list[Future[None]], whole: Future[None]) -> None:
    def look(part: Future[None]) -> None:
        if whole.done():
            return
        if error := part.exception():
            whole.set_exception(error)
        elif all(other.done() for other in parts):
            whole.set_result(None)

    for part in parts:
        part.add_done_callback(look)


def _work(graph: Graph, job: Job, on_gpu: bool, options: dict[str, Any], version: str) -> Iterator[Told]:
    """Train a job on a worker, as its own memory allows, and yield what it tells."""
    check_version(version)
    torch.set_num_threads(1)
    keep_freed_memory()
    told: queue.SimpleQueue[Told | BaseException | None] = queue.SimpleQueue()
    device = torch.device("cuda" if on_gpu else "cpu")

    def train() -> None:
        try:
            for part in plan(graph, job.pairs, device, cores=1):
                work(graph, part, device, options, told.put)
            told.put(None)
        except BaseException as error:
            told.put(error)

    threading.Thread(target=train, daemon=True).start()
    ticks, since = 0, time.monotonic()
    while (one := told.get()) is not None:
        if isinstance(one, BaseException):
            raise one
        if isinstance(one, int):
            ticks += one
        if isinstance(one, list) or time.monotonic() - since > TELL_SECONDS:
            yield ticks
            ticks, since = 0, time.monotonic()
        if isinstance(one, list):
            yield one
    yield ticks
