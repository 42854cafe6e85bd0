"""SGC with PairNorm: the Cora sweep of Table 1 at one missing rate, and the memory of that of Coauthor CS.

Ours is measured whole, from the start of the worker processes to results in a store. The peer propagates in
every epoch, as a plain module does; a few of its epochs are timed at a few depths, and the sweep follows from
the straight line through them, for it would take days.
"""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import DeepSGC, dense_features, epoch_of, normalized_adjacency
from benchmarks.report import Row, duration
from benchmarks.timing import interleave
from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, load
from pairnorm.paper.experiments import SCALES, SGC_DEPTHS
from pairnorm.train import Spec, Store, run

WORKERS, SEEDS, EPOCHS, MISSING = 2, range(5), 500, 1.0
PEER_DEPTHS = (1, 5, 20, 60)
GIBIBYTE = 2**30


def measure() -> list[Row]:
    """Time the sweep of Cora."""
    graph = load("cora")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    theirs = _peer_seconds(graph)
    torch.set_num_threads(threads)
    ours = _sweep(graph, "cora", SGC_DEPTHS, EPOCHS)
    size = f"{len(SGC_DEPTHS)} depths x {len(SCALES)} scales x {len(SEEDS)} seeds x {EPOCHS} epochs"
    return [
        Row(
            part="sgc",
            work=f"SGC-PN, Cora, {size}, against propagation in every epoch",
            ours=duration(ours),
            peer=f"{duration(theirs)} (extrapolated)",
            result=theirs / ours,
            unit="x",
            goal=500,
        ),
        Row(
            part="sgc",
            work="the same, in seconds",
            ours=duration(ours),
            result=ours,
            unit="s",
            goal=120,
            at_least=False,
        ),
    ]


def measure_memory() -> list[Row]:
    """Watch the memory of all processes during the sweep of Coauthor CS.

    Neither epochs nor more depths add to it: what was fitted last, the state and its successor are all there
    is at any time.
    """
    try:
        graph = load("coauthor-cs")
    except PairNormError as error:
        print(f"memory: left out; {error}")
        return []
    with _peak_memory() as peak:
        seconds = _sweep(graph, "coauthor-cs", SGC_DEPTHS[:11], epochs=2)
    return [
        Row(
            part="memory",
            work=f"SGC-PN, Coauthor CS, {WORKERS} processes and their parent, the sum of their peaks",
            ours=f"{sum(peak.values()) / GIBIBYTE:.2f} GiB in {duration(seconds)} (11 depths, 2 epochs)",
            result=sum(peak.values()) / GIBIBYTE,
            unit="GiB",
            goal=8,
            at_least=False,
        )
    ]


def _sweep(graph: Graph, name: str, depths: Sequence[int], epochs: int) -> float:
    """Train every depth and scale, and return the seconds it took."""
    specs = [
        Spec(name, "SGC", depth, norm="PN", scale=scale, missing_rate=MISSING, epochs=epochs)
        for depth in depths
        for scale in SCALES
    ]
    pairs = [(spec, seed) for spec in specs for seed in SEEDS]
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as store:
        start = time.perf_counter()
        trained = run(pairs, store, device="cpu", graphs={name: graph}, workers=WORKERS)
        assert trained == len(pairs) == len(store)
        return time.perf_counter() - start


def _peer_seconds(graph: Graph) -> float:
    """What the peer would take: by a line through the seconds per epoch at a few depths."""
    x, adjacency = dense_features(graph), normalized_adjacency(graph)
    tasks = {
        str(depth): epoch_of(DeepSGC(x.size(1), graph.num_classes, depth), graph, x, adjacency)
        for depth in PEER_DEPTHS
    }
    times = interleave(tasks, rounds=3)
    slope, start = np.polyfit(PEER_DEPTHS, [times[str(depth)].median for depth in PEER_DEPTHS], 1)
    per_epoch = sum(start + slope * depth for depth in SGC_DEPTHS)
    return float(per_epoch * len(SCALES) * len(SEEDS) * EPOCHS)


@contextmanager
def _peak_memory() -> Iterator[dict[int, int]]:
    """Give the peak resident bytes of this process and of its children, by process (Linux)."""
    peak: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
                try:
                    status = Path(f"/proc/{process}/status").read_text()
                    peak[process or 0] = 1024 * int(status.split("VmHWM:")[1].split()[0])
                except (OSError, IndexError):  # it has just ended
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
