"""Compare times of tasks, interleaved, so that other load slows all of them."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

import torch

Name = TypeVar("Name")


class Times(NamedTuple):
    """Seconds of repeated runs."""

    median: float
    best: float


def interleave(
    tasks: Mapping[Name, Callable[[], object]],
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, Times]:
    """Run every task once in each round, after rounds that do not count."""
    seconds: dict[Name, list[float]] = {name: [] for name in tasks}
    for number in range(warm + rounds):
        for name, task in tasks.items():
            start = clock()
            task()
            if number >= warm:
                seconds[name].append(clock() - start)
    return {name: Times(median(values), min(values)) for name, values in seconds.items()}


def on_cuda(task: Callable[[], object], rounds: int = 20) -> float:
    """Return the median time of a task on the device, by its own clock."""
    task()
    marks = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        task()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return median(begin.elapsed_time(end) for begin, end in marks) / 1e3


def cpu_rates(numbers: int, size: int = 1024) -> tuple[float, float]:
    """Return what one thread does in a second: arithmetic in a large matrix product, and bytes copied.

    Args:
        numbers: of the tensor that is copied, again and again: a small one lies in a cache.
        size: of the matrices.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    source, matrix = torch.rand(numbers), torch.rand(size, size)
    target, product = torch.empty_like(source), torch.empty_like(matrix)
    tasks: dict[str, Callable[[], object]] = {
        "multiply": lambda: torch.mm(matrix, matrix, out=product),
        "copy": lambda: [target.copy_(source) for _ in range(100)],
    }
    seconds = {name: times.best for name, times in interleave(tasks, rounds=40).items()}
    torch.set_num_threads(threads)
    return 2 * size**3 / seconds["multiply"], 200 * source.nbytes / seconds["copy"]


def copy_bandwidth(numbers: int = 128_000_000) -> float:
    """Return the bytes per second that a device reads and writes while it copies a large tensor."""
    source = torch.empty(numbers, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / on_cuda(lambda: target.copy_(source))
