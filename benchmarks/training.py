"""Training GCN and GAT on Cora on two cores: per trial and epoch, validation included.

Ours is ``pairnorm.train.schedule`` with two worker processes of one thread each. Two runs that differ only in
their number of epochs are timed as a whole; the difference is free of what happens once, such as the start of
processes. The peer trains one trial in this process, with two threads.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.bounds import layer_bytes, layer_flops
from benchmarks.peers import DeepGNN, dense_features, edge_index, epoch_of, normalized_adjacency
from benchmarks.report import Row, duration
from benchmarks.timing import cpu_rates, interleave
from pairnorm.data import Graph, load
from pairnorm.train import Spec, Store, run
from pairnorm.train.engine import plan

WORKERS = 2
GOALS = {"GCN": {2: 30, 10: 40, 30: 40}, "GAT": {2: 30, 10: 20, 30: 20}}
SECONDS = 8  # for which, about, the longer run should train
ROUNDS = 3


def measure() -> list[Row]:
    """Compare at every model and depth that has a goal."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    graph = load("cora")
    rows = [
        _compare(graph, model, depth, goal) for model, goals in GOALS.items() for depth, goal in goals.items()
    ]
    torch.set_num_threads(threads)
    return rows


def _compare(graph: Graph, model: str, depth: int, goal: float) -> Row:
    spec = Spec("cora", model, depth, norm="PN-SI")
    pairs = [(spec, seed) for seed in range(64)]
    trials = WORKERS * max(len(job.pairs) for job in plan(graph, pairs, torch.device("cpu")))
    peers = _peers(graph, spec)
    few = many = 10
    start = longer = _seconds(graph, spec, trials, few)
    while longer < start + SECONDS / 4:  # until the time of epochs exceeds that of the setup
        many *= 4
        longer = _seconds(graph, spec, trials, many)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(min(times.median for times in interleave(peers, rounds=5).values()))
        difference = _seconds(graph, spec, trials, many) - _seconds(graph, spec, trials, few)
        ours.append(difference / ((many - few) * trials))
    return Row(
        part="training",
        work=f"{model} with PN-SI, Cora, hidden {spec.hidden}, depth {depth}, per trial and epoch",
        ours=f"{duration(median(ours))} (bound {duration(bound(graph, spec))})",
        peer=duration(median(theirs)),
        result=median(theirs) / median(ours),
        unit="x",
        goal=goal,
    )


def bound(graph: Graph, spec: Spec) -> float:
    """Return the seconds per trial and epoch below which two cores cannot come.

    What takes longer of the arithmetic of the hidden layers, at the rate of a large matrix product, and of
    the passes over their states, at the rate at which one is copied within the cache that it fits.
    """
    flops, bandwidth = cpu_rates(graph.num_nodes * spec.hidden)
    layer = max(layer_flops(graph, spec) / flops, layer_bytes(graph, spec) / bandwidth)
    return (spec.depth - 1) * layer / WORKERS


def _peers(graph: Graph, spec: Spec) -> dict[str, Callable[[], float]]:
    """Return an epoch of the peer in each of the forms that PyG takes an adjacency in; the faster counts."""
    x, sizes = dense_features(graph), (graph.num_features, spec.hidden, graph.num_classes, spec.depth)
    peers = {"edges": epoch_of(DeepGNN(spec.model, *sizes), graph, x, edge_index(graph))}
    if spec.model == "GCN":
        model = DeepGNN(spec.model, *sizes, normalized=True)
        peers["matrix"] = epoch_of(model, graph, x, normalized_adjacency(graph))
    return peers


def _seconds(graph: Graph, spec: Spec, trials: int, epochs: int) -> float:
    """Time a whole run, from nothing to results in a store."""
    pairs = [(spec.replace(epochs=epochs), seed) for seed in range(trials)]
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as store:
        start = time.perf_counter()
        run(pairs, store, device="cpu", graphs={"cora": graph}, workers=WORKERS)
        return time.perf_counter() - start
