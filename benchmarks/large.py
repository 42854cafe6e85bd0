"""``python -m benchmarks.large cpu|cuda [nodes ...]``: a walk of SGC-PN over generated graphs, by size.

Time of a step and of its normalisation, the share of the bandwidth of a plain copy that the step reaches,
memory, and the exponents with which both grow. Sampled rows are held against float64 on the CPU. A graph is
generated as CSR: every node receives from nodes drawn at random, which is as far apart as memory allows.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops.hop import cpu

SAMPLE, ROUNDS, DEPTH = 1000, 3, 16
CHUNK = 2**22
SIZES = {"cpu": (1_000_000, 10_000_000), "cuda": (1_000_000, 10_000_000, 100_000_000)}
DEGREE = {"cpu": 20, "cuda": 32}
WIDTH = {"cpu": 32, "cuda": 128}


@dataclass
class Measured:
    """One size.

    Args:
        nodes: of the graph.
        entries: of its adjacency, two for an undirected edge.
        step: seconds of one propagation.
        norm: seconds of one PairNorm.
        bandwidth: bytes a second of the propagation.
        copy: bytes a second of a copy of the state, read and write counted.
        memory: bytes, at most.
        error: the largest difference of a sampled row from float64, as a share of its largest number.
    """

    nodes: int
    entries: int
    step: float
    norm: float
    bandwidth: float
    copy: float
    memory: int
    error: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("device", choices=SIZES)
    parser.add_argument("nodes", nargs="*", type=int, help="default: 1M and 10M; on CUDA also 100M")
    parser.add_argument("--degree", type=int, help="entries a node has, on average")
    parser.add_argument("--width", type=int, help="columns of the state")
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    options = parser.parse_args()
    degree, width = options.degree or DEGREE[options.device], options.width or WIDTH[options.device]
    measure = on_cpu if options.device == "cpu" else on_cuda
    found = []
    for nodes in options.nodes or SIZES[options.device]:
        found.append(measure(nodes, degree, width))
        print(describe(found[-1]), flush=True)
    for one, other in pairwise(found):
        print(exponents(one, other))
    if options.device == "cuda":
        print(gcn())
    if options.out:
        options.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")


def describe(one: Measured) -> str:
    """Return a line of figures."""
    return (
        f"{one.nodes:>11,} nodes, {one.entries:>13,} entries: step {one.step * 1e3:,.1f} ms "
        f"({one.bandwidth / 1e9:,.0f} GB/s, {one.bandwidth / one.copy:.0%} of copy), "
        f"norm {one.norm * 1e3:,.1f} ms, depth {DEPTH} in {DEPTH * (one.step + one.norm):,.2f} s, "
        f"{one.memory / 2**30:.1f} GiB, largest error {one.error:.1e}"
    )


def exponents(one: Measured, other: Measured) -> str:
    """Say how time and memory grow from one size to another."""
    growth = math.log(other.nodes / one.nodes)
    time_, memory = (
        math.log(after / before) / growth
        for before, after in ((one.step, other.step), (one.memory, other.memory))
    )
    return f"{one.nodes:,} to {other.nodes:,} nodes: time n^{time_:.2f}, memory n^{memory:.2f}"


def moved(nodes: int, entries: int, width: int, bytes_each: int) -> int:
    """Return the bytes of a step: neighbours and their rows, each node's own row, the result, row starts."""
    return entries * (4 + width * bytes_each) + nodes * (2 * width * bytes_each + 8)


def on_cpu(nodes: int, degree: int, width: int) -> Measured:
    """Measure the kernels that walk over packed graphs, with torch's number of threads."""
    generator = np.random.default_rng(0)
    crow = np.concatenate([[0], generator.integers(degree // 2, 3 * degree // 2 + 1, nodes).cumsum()])
    column = generator.integers(0, nodes, crow[-1], dtype=np.int32)
    x, y = (np.empty((nodes, width), np.float32) for _ in range(2))
    for start in range(0, nodes, CHUNK):
        part = x[start : start + CHUNK]
        part[:] = generator.standard_normal(part.shape, dtype=np.float32)
    copy = best(lambda: np.copyto(y, x))
    step = best(lambda: cpu.hop(crow, column, None, x, y))
    rows = generator.integers(0, nodes, SAMPLE)
    expected = [np.concatenate([x[row, None], x[column[crow[row] : crow[row + 1]]]]) for row in rows]
    error = np.abs(np.stack([one.mean(0, dtype=np.float64) for one in expected]) - y[rows]).max()
    error /= np.abs(y[rows]).max()
    norm = best(lambda: cpu.centre(y, cpu.column_sums(y) / nodes))
    bandwidth = moved(nodes, len(column), width, 4) / step
    memory = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )
    return Measured(nodes, len(column), step, norm, bandwidth, 2 * x.nbytes / copy, memory, float(error))


def on_cuda(nodes: int, degree: int, width: int, device: str = "cuda") -> Measured:
    """Measure a walk in bfloat16 whose sums are in single precision; rows of two steps are checked."""
    from pairnorm.nn.ops.hop.cuda import hop
    from pairnorm.nn.ops.pair_norm.cuda import forward

    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    counts = torch.randint(degree // 2, 3 * degree // 2 + 1, (nodes,), device=device)
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    del counts
    column = torch.empty(int(crow[-1]), dtype=torch.int32, device=device)
    for part in column.split(2**28):
        part.random_(0, nodes)
    x = torch.empty(nodes, width, dtype=torch.bfloat16, device=device)
    for part in x.split(CHUNK):
        part.normal_()
    y = torch.empty_like(x)
    copy = best(lambda: y.copy_(x), device)
    rows = torch.randint(nodes, (SAMPLE,), device=device)
    steps, norms, error = [], [], 0.0
    for depth in range(DEPTH + 1):  # the first compiles
        steps.append(seconds(lambda: hop(x, crow, column, y), device))  # noqa: B023
        if depth in (1, DEPTH):
            error = max(error, step_error(x, crow, column, y, rows))
        began = time.perf_counter()
        x = forward(y, 1.0, 1e-6, individually=False)[0]
        wait(device)
        norms.append(time.perf_counter() - began)
        if depth in (1, DEPTH):
            error = max(error, norm_error(y, x, rows))
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 1
    bandwidth = moved(nodes, len(column), width, 2) / min(steps)
    size = 2 * x.nbytes / copy
    return Measured(nodes, len(column), min(steps), min(norms), bandwidth, size, memory, error)


def step_error(x: Tensor, crow: Tensor, column: Tensor, y: Tensor, rows: Tensor) -> float:
    """Hold sampled rows of a step against float64 on the CPU."""
    expected = []
    for row in rows.tolist():
        near = column[int(crow[row]) : int(crow[row + 1])].long()
        expected.append(torch.cat([x[row : row + 1], x[near]]).cpu().double().mean(0))
    return difference(y[rows], torch.stack(expected))


def norm_error(y: Tensor, x: Tensor, rows: Tensor) -> float:
    """Hold sampled rows of PN against moments that are summed in float64, by chunks."""
    mean = sum(part.double().sum(0) for part in y.split(CHUNK)) / len(y)
    square = sum(((part.double() - mean) ** 2).sum() for part in y.split(CHUNK)) / len(y)
    expected = (y[rows].cpu().double() - mean.cpu()) / (square.cpu() + 1e-6).sqrt()
    return difference(x[rows], expected)


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    return float((found.cpu().double() - expected).abs().max() / expected.abs().max())


def gcn(nodes: int = 10_000_000, degree: int = 10, device: str = "cuda") -> str:
    """Train a GCN-PN of four layers for a few epochs, forward and backward over all nodes."""
    from pairnorm.nn import GCN, propagation

    edge_index = torch.randint(nodes, (2, nodes * degree), device=device)
    adjacency = propagation(edge_index, num_nodes=nodes)
    del edge_index
    model = GCN(in_features=32, classes=10, depth=4, hidden=32, norm="PN").to(device)
    x = torch.randn(nodes, 32, device=device)
    labels = torch.randint(10, (nodes,), device=device)

    def epoch() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x, adjacency), labels).backward()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found = best(epoch, device)
    assert all(bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    entries = adjacency.pattern.num_entries
    size = f"{nodes:,} nodes, {entries:,} entries"
    return f"GCN-PN, 4 layers of 32, {size}: {found:.2f} s an epoch, {memory:.1f} GiB"


def best(work: Callable[[], Any], device: str = "cpu", rounds: int = ROUNDS) -> float:
    """Return the seconds of the quickest of a few calls; the first only warms up."""
    work()
    return min(seconds(work, device) for _ in range(rounds))


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return the seconds a call takes."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: str) -> None:
    """Wait for what was launched."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
