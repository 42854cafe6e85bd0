"""Training GCN and GAT on CUDA: microseconds per layer, epoch and trial, against the bound by bandwidth.

An epoch is a training step and validation. The engine says when it has synchronized with the device and how
much it has done since, in layers x epochs x trials; the median of these intervals is what is reported.
"""

import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.bounds import BYTES, layer_bytes
from benchmarks.report import Row
from benchmarks.timing import copy_bandwidth
from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, csbm, load
from pairnorm.train import Progress, Spec, Store, run
from pairnorm.train.engine import plan, train_job

CUDA = torch.device("cuda")
TRIALS, DEPTH, EPOCHS = 50, 10, 125
GIBIBYTE = 2**30
PER = "per layer, epoch and trial"
# At most, on an H200.
GOALS = {
    "GCN": {"cora": 3.5, "pubmed": 20.0, "coauthor-cs": 20.0},
    "GAT": {"cora": 9.0, "pubmed": 48.0, "coauthor-cs": 48.0},
}
# How large the graphs are that stand in for those whose files are not at hand.
SIZES = {
    "pubmed": {"nodes": 19_717, "classes": 3, "degree": 4.5, "features": 500, "words": 50},
    "coauthor-cs": {"nodes": 18_333, "classes": 15, "degree": 8.93, "features": 6805, "words": 61},
}


def measure() -> list[Row]:
    """Measure the three graphs, several jobs at once, and how cost grows."""
    if not torch.cuda.is_available():
        print("cuda: left out; torch finds no CUDA device")
        return []
    bandwidth = copy_bandwidth()
    graphs = {name: _graph(name) for name in GOALS["GCN"]}
    rows = [
        _cost(graph, name, model, bandwidth, precision)
        for model in GOALS
        for precision in BYTES
        for name, graph in graphs.items()
    ]
    rows += [_at_once(graphs["cora"], model, precision) for model in GOALS for precision in BYTES]
    return rows + [row for model in GOALS for row in _growth(model)]


def _graph(name: str) -> Graph:
    try:
        return load(name)
    except PairNormError:
        return csbm(**SIZES[name])  # type: ignore[arg-type]


def _microseconds(graph: Graph, spec: Spec, trials: int) -> float:
    """Train as ``pairnorm.train`` does, and return the time per layer, epoch and trial."""
    spent = 0.0
    jobs = plan(graph, [(spec, seed) for seed in range(trials)], CUDA)
    for job in jobs:
        marks: list[tuple[float, int]] = []

        def tick(units: int, marks: list[tuple[float, int]] = marks) -> None:
            marks.append((time.perf_counter(), units))

        for _ in train_job(graph, job, CUDA, tick=tick):
            pass
        rates = [(now - before) / units for (before, _), (now, units) in pairwise(marks) if units]
        spent += median(rates) * job.cost
    return 1e6 * spent / sum(job.cost for job in jobs)


def _cost(graph: Graph, name: str, model: str, bandwidth: float, precision: Any) -> Row:
    spec = Spec(name, model, DEPTH, norm="PN-SI", epochs=EPOCHS, precision=precision)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    reached = _microseconds(graph, spec, TRIALS)
    memory = torch.cuda.max_memory_allocated() / GIBIBYTE
    substitute = " (substitute of its size)" if graph.name == "csbm" else ""
    row = Row(
        part="cuda",
        work=f"{model} with PN-SI, {name}{substitute}, {precision}, depth {DEPTH}, {TRIALS} trials, {PER}",
        ours=f"{reached:.2f} µs, {memory:.1f} GiB",
        peer=f"bandwidth: {1e6 * layer_bytes(graph, spec) / bandwidth:.2f} µs",
        result=reached,
        unit="µs",
        goal=GOALS[model][name],
        at_least=False,
    )
    print("  ".join(row.cells), flush=True)
    return row


def _at_once(graph: Graph, model: str, precision: Any, jobs: int = 4) -> Row:
    """Several architectures in one run, as in a sweep: small ones run concurrently."""
    spec = Spec("cora", model, DEPTH, norm="PN-SI", epochs=8 * EPOCHS, precision=precision)
    specs = [spec.replace(skip=skip) for skip in range(jobs)]
    pairs = [(spec, seed) for spec in specs for seed in range(TRIALS)]
    marks: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        if 0.25 < progress.done / progress.total < 0.9:  # all have started and none has finished
            marks.append((time.perf_counter(), progress.done))

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as store:
        run(pairs, store, device=CUDA, graphs={"cora": graph}, progress=note)
    seconds, done = np.array(marks).T
    per_second = np.polyfit(seconds, done, 1)[0]
    row = Row(
        part="cuda",
        work=f"{model} with PN-SI, cora, {precision}, {jobs} jobs of {TRIALS} trials at once, {PER}",
        ours=f"{1e6 / per_second:.2f} µs",
        result=float(1e6 / per_second),
        unit="µs",
        goal=GOALS[model]["cora"],
        at_least=False,
    )
    print("  ".join(row.cells), flush=True)
    return row


def _growth(model: str) -> list[Row]:
    """Fit exponents: how the time of an epoch grows with nodes, edges, depth and trials, one at a time."""
    spec, trials = Spec("csbm", model, 5, norm="PN-SI", epochs=EPOCHS), 20
    base = csbm(10_000, degree=6)
    sizes, degrees, depths, counts = (
        (5_000, 10_000, 20_000, 40_000),
        (4, 8, 16, 32),
        (3, 6, 12, 24),
        (10, 20, 40, 80),
    )
    epoch = {
        "nodes (6 edges each)": [
            (size, _microseconds(csbm(size, degree=6), spec, trials) * spec.depth * trials) for size in sizes
        ],
        "edges (10,000 nodes)": [
            (degree, _microseconds(csbm(10_000, degree=degree), spec, trials) * spec.depth * trials)
            for degree in degrees
        ],
        "depth": [
            (depth, _microseconds(base, spec.replace(depth=depth), trials) * depth * trials)
            for depth in depths
        ],
        "trials": [(count, _microseconds(base, spec, count) * spec.depth * count) for count in counts],
    }
    return [_exponent(model, what, points) for what, points in epoch.items()]


def _exponent(model: str, what: str, points: Sequence[tuple[float, float]]) -> Row:
    values, times = np.log(np.array(points, dtype=float)).T
    first, last = points[0], points[-1]
    row = Row(
        part="cuda",
        work=f"{model}, an epoch grows with {what} from {first[0]:,} to {last[0]:,} to the power",
        ours=f"{first[1] / 1e3:.2f} to {last[1] / 1e3:.2f} ms",
        result=float(np.polyfit(values, times, 1)[0]),
        unit="",
    )
    print("  ".join(row.cells), flush=True)
    return row
