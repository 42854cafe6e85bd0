"""Propagation of SGC-PN over generated graphs, by size.

Time of a step and of its normalization, the share of the bandwidth of a plain copy that the step reaches,
memory, and the exponents with which both grow. Sampled rows are held against float64 on the CPU. A graph is
generated as CSR: every node receives from nodes drawn at random, which is as far apart as memory allows.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

SAMPLE, ROUNDS, DEPTH = 1000, 3, 16
CHUNK = 2**20
DEFAULTS = {"cpu": ((1_000_000, 10_000_000), 20, 32), "cuda": ((1_000_000, 10_000_000, 100_000_000), 32, 128)}
"""Nodes, entries per node and columns of the state, by device."""


@dataclass
class Measured:
    """One size.

    Args:
        nodes: of the graph.
        entries: of its adjacency, two for an undirected edge.
        width: columns of the state.
        seconds: of all propagation steps of ``DEPTH`` steps, each with its PairNorm.
        step: seconds of one propagation, the quickest.
        norm: seconds of one PairNorm, the quickest.
        bandwidth: bytes a second of that propagation.
        copy: bytes a second of a copy of the state, read and write counted.
        memory: bytes, at most.
        error: the largest difference of a sampled row from float64, as a share of its largest number.
        generated: seconds that drawing the graph and the first state took.
    """

    nodes: int
    entries: int
    width: int
    seconds: float
    step: float
    norm: float
    bandwidth: float
    copy: float
    memory: int
    error: float
    generated: float


def measure(device: str, nodes: int, degree: int, width: int) -> Measured:
    """Measure one size on a device."""
    return (on_cpu if device == "cpu" else on_cuda)(nodes, degree, width)


def describe(one: Measured) -> str:
    """Return a line of figures."""
    return (
        f"{one.nodes:>11,} nodes, {one.entries:>13,} entries: step {one.step * 1e3:,.1f} ms "
        f"({one.bandwidth / 1e9:,.0f} GB/s, {one.bandwidth / one.copy:.0%} of copy), "
        f"norm {one.norm * 1e3:,.1f} ms, depth {DEPTH} in {one.seconds:,.2f} s, "
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
    """Return the bytes of a step: neighbors and their rows, each node's own row, the result, row starts."""
    return entries * (4 + width * bytes_each) + nodes * (2 * width * bytes_each + 8)


def on_cpu(nodes: int, degree: int, width: int) -> Measured:
    """Measure the kernels that propagate over packed graphs, with torch's number of threads."""
    from pairnorm.nn.ops._numba import sparse_product

    started = time.perf_counter()
    generator = np.random.default_rng(0)
    crow = np.concatenate([[0], generator.integers(degree // 2, 3 * degree // 2 + 1, nodes).cumsum()])
    column = generator.integers(0, nodes, crow[-1], dtype=np.int32)
    x, y = (np.empty((nodes, width), np.float32) for _ in range(2))
    for start in range(0, nodes, CHUNK):
        part = x[start : start + CHUNK]
        part[:] = generator.standard_normal(part.shape, dtype=np.float32)
    generated = time.perf_counter() - started
    _, copy = best(lambda: np.copyto(y, x))
    starts, neighbors = torch.from_numpy(crow), torch.from_numpy(column)

    def step(source: np.ndarray, result: np.ndarray) -> None:
        states = torch.from_numpy(source), torch.from_numpy(result)
        sparse_product.propagate(starts, neighbors, None, None, *states)

    step(x, y)  # compiles
    rows = generator.integers(0, nodes, SAMPLE)
    expected = [np.concatenate([x[row, None], x[column[crow[row] : crow[row + 1]]]]) for row in rows]
    error = np.abs(np.stack([one.mean(0, dtype=np.float64) for one in expected]) - y[rows]).max()
    error /= np.abs(y[rows]).max()
    sparse_product.center(torch.from_numpy(y))
    steps, norms = [], []
    for _ in range(DEPTH):
        steps.append(seconds(lambda: step(x, y), "cpu"))  # noqa: B023
        norms.append(seconds(lambda: sparse_product.center(torch.from_numpy(y)), "cpu"))  # noqa: B023
        x, y = y, x
    return Measured(
        nodes=nodes, entries=len(column), width=width, seconds=sum(steps) + sum(norms), step=min(steps),
        norm=min(norms), bandwidth=moved(nodes, len(column), width, 4) / min(steps), copy=2 * x.nbytes / copy,
        memory=psutil.Process().memory_info().rss, error=float(error), generated=generated,
    )  # fmt: skip


def on_cuda(nodes: int, degree: int, width: int, device: str = "cuda") -> Measured:
    """Measure propagation in bfloat16 whose sums are in single precision; rows of two steps are checked."""
    from pairnorm.nn.ops._triton.pair_norm import forward
    from pairnorm.nn.ops._triton.sparse_product import propagate

    torch.manual_seed(0)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    crow = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
    counts = torch.randint(degree // 2, 3 * degree // 2 + 1, (nodes,), dtype=torch.int16, device=device)
    torch.cumsum(counts, 0, dtype=torch.int64, out=crow[1:])
    del counts
    column = torch.empty(int(crow[-1]), dtype=torch.int32, device=device)
    for part in column.split(2**28):
        part.random_(0, nodes)
    x = torch.empty(nodes, width, dtype=torch.bfloat16, device=device)
    for part in x.split(CHUNK):
        part.normal_()
    y = torch.empty_like(x)
    wait(device)
    generated = time.perf_counter() - start
    _, copy = best(lambda: y.copy_(x), device)
    copy = 2 * x.nbytes / copy
    rows = torch.randint(nodes, (SAMPLE,), device=device)
    steps, norms, error = [], [], 0.0
    for depth in range(DEPTH + 1):  # the first compiles
        steps.append(seconds(lambda: propagate(crow, column, None, None, x, y), device))  # noqa: B023
        if depth in (1, DEPTH):
            error = max(error, step_error(x, crow, column, y, rows))
        del x  # a third state is not needed in memory
        start = time.perf_counter()
        x = forward(y, None, 1.0, 1e-6, "PN", False)[0]
        wait(device)
        norms.append(time.perf_counter() - start)
        if depth in (1, DEPTH):
            error = max(error, norm_error(y, x, rows))
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 1
    return Measured(
        nodes=nodes, entries=len(column), width=width, seconds=sum(steps[1:]) + sum(norms[1:]),
        step=min(steps), norm=min(norms), bandwidth=moved(nodes, len(column), width, 2) / min(steps),
        copy=copy, memory=memory, error=error, generated=generated,
    )  # fmt: skip


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


def difference(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    return float((result.cpu().double() - expected).abs().max() / expected.abs().max())


def best(work: Callable[[], Any], device: str = "cpu", rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the seconds of a first call, which warms up, and of the quickest of a few after it."""
    return seconds(work, device), min(seconds(work, device) for _ in range(rounds))


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return the seconds a call takes."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def wait(device: str) -> None:
    """Wait for what was launched."""
    if device == "cuda":
        torch.cuda.synchronize()
