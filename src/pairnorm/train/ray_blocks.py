"""Blocks of walks over a packed graph as Ray tasks: columns do not meet, so a dead worker costs one block.

A worker that sees the folder of the graph maps it. To others the arrays go through the object store, where
all workers of a machine share them. The driver alone writes files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError
from pairnorm.data.packed import PackedGraph
from pairnorm.train.cluster import (
    ATTEMPTS,
    cause_of,
    check_room,
    check_version,
    connect,
    has_died,
    working_nodes,
)
from pairnorm.train.walk import Told, Walk
from pairnorm.version import __version__

POLL_SECONDS = 0.2


@dataclass(frozen=True, eq=False)
class SentGraph(PackedGraph):
    """A packed graph of which some files have come over the network.

    Args:
        arrays: what they hold, by their names.
    """

    arrays: dict[str, NDArray[Any]]

    def _array(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        return self.arrays[name]


@dataclass
class _Running:
    """A block under way: how many steps it has told of, since it began and at most, and how often it died."""

    walk: Walk
    number: int
    steps: int = 0
    furthest: int = 0
    attempts: int = 0
    whole: bool = False
    told: Any = None


class RayBlocks:
    """The blocks of walks as tasks, as many on a node as its cores and its memory allow.

    ``memory`` is what the largest node has for them, ``cores`` what all have.
    """

    def __init__(self) -> None:
        self._ray, self._ours = connect()
        nodes = working_nodes(self._ray)
        self.memory = max((int(node.get("memory", 0)) for node in nodes), default=0)
        self.cores = sum(int(node["CPU"]) for node in nodes)
        self._send, self._sent = False, dict[str, Any]()

    def run(self, walks: Sequence[Walk], need: int) -> None:
        """Walk what is not finished; what PN-SI lacks stays, for its blocks meet at every step.

        Args:
            walks: over one graph.
            need: the bytes that a block takes.
        """
        waiting = [_Running(walk, number) for walk in walks if walk.norm != "PN-SI" for number in walk.left()]
        options = {"max_retries": 0, "num_returns": "streaming", "num_cpus": 1, "memory": need}
        task = self._ray.remote(_walk).options(name="pairnorm", **options)
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) <= self.cores:  # one more, so that no worker waits
                    one = waiting.pop(0)
                    self._begin(task, one, need)
                    running.append(one)
                self._ray.wait([one.told for one in running], timeout=POLL_SECONDS)
                for one in list(running):
                    try:
                        while self._ray.wait([one.told], timeout=0)[0]:
                            self._hear(one, self._ray.get(next(one.told)))
                    except StopIteration:
                        running.remove(one)
                    except self._ray.exceptions.RayError as error:
                        if not one.whole:
                            self._fail(one, error)
                            self._begin(task, one, need)
                        else:  # it died after all was said
                            running.remove(one)
        finally:
            for one in running:
                self._ray.cancel(one.told, force=True)
                one.told = None  # what still has a task of a cluster that was left ends the process
            if self._ours:
                self._ray.shutdown()

    def _begin(self, task: Any, one: _Running, need: int) -> None:
        graph, sent = one.walk.graph, self._arrays(one)
        # A new one has mapped nothing: arrays that are would go along.
        walk = replace(one.walk, graph=PackedGraph(graph.folder.resolve(), graph.facts), tick=_nothing)
        one.steps = 0
        one.told = task.remote(walk, one.number, need, __version__, tuple(sent), *sent.values())

    def _arrays(self, one: _Running) -> dict[str, Any]:
        """Return where in the cluster the arrays of a block are, put there first where they are not."""
        if not self._send:
            return {}
        arrays = one.walk.graph.files(one.walk.columns(one.number))
        check_room(self._ray, f"{one.walk.graph.folder}", sum(array.nbytes for array in arrays.values()))
        for name, array in arrays.items():
            if name not in self._sent:
                self._sent[name] = self._ray.put(np.asarray(array))
        return {name: self._sent[name] for name in arrays}

    def _hear(self, one: _Running, told: Told) -> None:
        one.steps += 1
        one.whole = not isinstance(told, str)
        if one.steps > one.furthest:  # what was told before a worker died is not told again
            one.attempts, one.furthest = 0, one.steps
            one.walk.hear(one.number, told)

    def _fail(self, one: _Running, error: Exception) -> None:
        """Return where a block is to begin again; else raise what is wrong."""
        cause = cause_of(error)
        if isinstance(cause, PairNormError) and cause.code == "not-seen":
            self._send = True
            return
        one.attempts += 1
        if has_died(error) and one.attempts < ATTEMPTS:
            return
        if has_died(error) or isinstance(error, self._ray.exceptions.OutOfMemoryError):
            raise PairNormError(
                f"workers of the Ray cluster die of a block of {one.walk.width} columns, or have too little "
                "memory",
                code="worker-died",
                value=one.walk.width,
                hint="Allow less for narrower blocks: {memory}. What had finished is kept.",
                memory=...,
            ) from error
        raise cause


def _nothing(done: str) -> None:
    """Tell nobody."""


def _walk(
    walk: Walk, number: int, need: int, version: str, names: tuple[str, ...], *arrays: NDArray[Any]
) -> Iterator[Told]:
    """Walk a block on a worker, and yield what it tells."""
    check_version(version)
    torch.set_num_threads(_threads(need))
    graph = walk.graph
    if names:
        graph = SentGraph(graph.folder, graph.facts, dict(zip(names, arrays, strict=True)))
    elif not _is_seen(graph):
        raise PairNormError(f"{graph.folder}: a worker does not see it", code="not-seen")
    yield from replace(walk, graph=graph).block(number)


def _is_seen(graph: PackedGraph) -> bool:
    """Say whether the folder is here, and is that of this very graph."""
    try:
        return PackedGraph.open(graph.folder).facts == graph.facts
    except PairNormError:
        return False


def _threads(need: int) -> int:
    """Return how many of its node's cores each of the tasks has that fit into its memory."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    node = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    cores, room = int(node["CPU"]), int(node["memory"] // need)
    return max(1, cores // max(1, min(cores, room)))
