"""The arithmetic of propagations over packed graphs, on a CPU or a GPU, and the memory that it takes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.csr import suppress_csr_warning
from pairnorm.base.errors import PairNormError
from pairnorm.base.memory import free_memory, size
from pairnorm.data.packed import Facts, PackedGraph
from pairnorm.nn.ops.kernels import find_kernels

MIN_MEAN_SQUARE = 2.0**-40
ROWS_PER_SLICE, ROWS_PER_ENTRY_SLICE = 2**14, 2**16
NUMBERS_PER_SLICE, ENTRIES_PER_COPY = 2**24, 2**25
MAX_WIDTH, MAX_CUDA_WIDTH = 64, 128
# A cache line holds 16 float32 columns: narrower blocks waste a part of it.
COLUMNS_PER_LINE = 16
# Bytes of Python, torch and numba with its kernels; of CUDA.
BASE_BYTES, CUDA_BASE_BYTES = 225 * 10**6, 2 * 10**9

suppress_csr_warning()

Array = NDArray[np.float32]
Index = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """The memory that a propagation takes, known before it starts. Mapped pages of files do not count.

    Args:
        name: of the propagation, for messages.
        fixed: bytes that blocks of any width take.
        per_column: bytes that a column of a block takes in addition.
        max_width: the most columns of a block.
        memory: bytes that it may take.
    """

    name: str
    fixed: int
    per_column: int
    max_width: int
    memory: int

    def peak(self, width: int) -> int:
        """Return the peak memory in bytes with blocks of ``width`` columns."""
        return self.fixed + self.per_column * width

    @cached_property
    def width(self) -> int:
        """The number of columns of the widest block that fits into memory."""
        widest = self.max_width
        lines = range(widest // COLUMNS_PER_LINE * COLUMNS_PER_LINE, 0, -COLUMNS_PER_LINE)
        for width in [widest, *lines, *(narrow for narrow in (8, 4, 2, 1) if narrow < widest)]:
            if self.peak(width) <= self.memory:
                return int(width)
        least, expected = self.peak(1), f"at most {size(self.memory)}"
        hint = "Allow {memory}, or ask for fewer depths, or merge rare classes."
        problem, memory = f"{self.name} takes {size(least)} for a single column", size(1.1 * least)
        raise PairNormError(
            problem, code="too-large", value=least, expected=expected, hint=hint, memory=memory
        )


def make_plan(
    facts: Facts,
    rows: int,
    depths: int,
    memory: int | None = None,
    device: str = "cpu",
    workers_memory: int | None = None,
) -> Plan:
    r"""Plan a propagation of all features within some memory of a device.

    It takes on a CPU, and on a GPU,

    $$8 n (B + 3) + 4 B r k + 32 F r + 64 C r + 32 C^2 + 2.25 \cdot 10^8, \quad
    4 e (1 + w) + 8 n (B + 1) + 13 n + 2 \cdot 10^9$$

    bytes for n nodes, e entries (w = 1 if they have weights, else 0), blocks of B of the F columns, r rows
    stored of k depths, and C classes: two states; the graph, on a GPU; the numbers per node of imputations
    and PN-SI; the stored rows of a block; the regression; the confusion matrix; Python, or CUDA.

    Args:
        facts: of the packed graph.
        rows: r, whose states are stored.
        depths: k.
        memory: bytes that it may take. Default: what is free.
        device: of the states.
        workers_memory: bytes that a worker of a cluster has. Blocks are then narrow, so that every worker has
            some.
    """
    nodes, classes = facts.nodes, len(facts.classes)
    if device != "cpu":
        fixed = 4 * facts.entries * (1 + facts.weighted) + 21 * nodes + CUDA_BASE_BYTES
        per_column, max_width = 8 * nodes, MAX_CUDA_WIDTH
        memory = memory or int(0.95 * torch.cuda.mem_get_info(device)[0])
    else:
        regression = 32 * facts.features * rows + 64 * classes * rows + 32 * classes**2
        fixed, per_column = 24 * nodes + regression + BASE_BYTES, 8 * nodes + 4 * rows * depths
        max_width = MAX_WIDTH if workers_memory is None else COLUMNS_PER_LINE
        memory = memory or free_memory()
        memory = memory if workers_memory is None else min(memory, workers_memory)
    name = f"a propagation over {nodes:,} nodes that stores {rows:,} rows of {depths} depths"
    name += f" for {classes:,} classes"
    return Plan(name, fixed, per_column, max(1, min(max_width, facts.features)), memory)


class BlockOps:
    """The arithmetic of propagations over one packed graph on one device. A state is a tensor [n, columns].

    Args:
        graph: the packed graph. On a CPU its arrays stay mapped from files; a GPU gets a copy.
        device: of the states, which are in float32.
    """

    def __init__(self, graph: PackedGraph, device: torch.device | str = "cpu") -> None:
        self.graph, self.device = graph, torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self.threads = max(4, torch.get_num_threads()) if self.is_cuda else torch.get_num_threads()
        self.crow, self.column = self._loaded(graph.crow), self._loaded(graph.column)
        self.weight = None if graph.weight is None else self._loaded(graph.weight)

    def _loaded(self, array: NDArray[Any]) -> Tensor:
        """Return a mapped array as a tensor; for a GPU, copy it in parts that threads read at once."""
        if not self.is_cuda:
            return from_mapped(array)
        result = torch.empty_like(from_mapped(array), device=self.device)

        def copy(start: int) -> None:
            stop = start + ENTRIES_PER_COPY
            part = torch.from_numpy(np.array(array[start:stop])).pin_memory()
            result[start:stop].copy_(part, non_blocking=True)

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(copy, range(0, len(array), ENTRIES_PER_COPY)))
        return result

    @cached_property
    def _known(self) -> Tensor:
        """Whether a node has features, [n]."""
        return self._loaded(self.graph.missing) != 2

    @cached_property
    def _roots(self) -> Tensor:
        """D̃^(-1/2) [n], with self-loops."""
        roots = torch.empty(len(self.crow) - 1, device=self.device)
        for rows in slices(len(roots), ROWS_PER_ENTRY_SLICE):
            crow = self.crow[rows.start : rows.stop + 1]
            degree = crow.diff().double()
            if self.weight is not None:
                weights = self.weight[int(crow[0]) : int(crow[-1])].double()
                degree = torch.segment_reduce(weights, "sum", offsets=crow - crow[0], initial=0)
            roots[rows] = (degree + 1).rsqrt().float()
        return roots

    def slices(self, width: int) -> Iterator[slice]:
        """Yield slices of the nodes that are read together from files of ``width`` columns."""
        rows = max(2**10, NUMBERS_PER_SLICE // max(1, width)) if self.is_cuda else ROWS_PER_SLICE
        return slices(self.graph.facts.nodes, rows)

    def empty(self, width: int) -> Tensor:
        """Return a new state without values."""
        return torch.empty(self.graph.facts.nodes, width, device=self.device)

    def write(self, state: Tensor, rows: slice, values: Array, weight: Array | None = None) -> None:
        """Write the first columns of some rows: ``values``, or ``values @ weight``."""
        if not self.is_cuda:  # in numpy: several threads call this, and torch would start threads in each
            product = values if weight is None else values @ weight
            state.numpy()[rows, : product.shape[1]] = product
            return
        block = torch.from_numpy(values).pin_memory().to(self.device, non_blocking=True)
        if weight is not None:
            block = block @ torch.from_numpy(np.ascontiguousarray(weight)).to(self.device)
        state[rows, : block.size(1)] = block

    def read(self, state: Tensor, rows: Index) -> Array:
        """Copy rows of a state to a float32 array on the CPU."""
        index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.device)
        result: Array = state[index].cpu().numpy()
        return result

    def propagate(self, source: Tensor, result: Tensor, symmetric: bool = False) -> None:
        """Write D̃⁻¹ Ã source, or if symmetric D̃^(-1/2) Ã D̃^(-1/2) source, to ``result``."""
        kernels = find_kernels("sparse_product", source)
        step = reference_propagate if kernels is None else kernels.propagate
        step(self.crow, self.column, self.weight, self._roots if symmetric else None, source, result)

    def center(self, state: Tensor) -> float:
        """Subtract the mean of every column in place and return the mean squared row norm."""
        kernels = None if self.is_cuda else find_kernels("sparse_product", state)
        if kernels is not None:
            return float(kernels.center(state)) / len(state)
        parts = [state[rows] for rows in self.slices(state.size(1))]
        total = torch.stack([part.sum(0).double() for part in parts]).sum(0)
        mean = (total / len(state)).float()
        squares = [part.sub_(mean).square().sum().double() for part in parts]
        return float(torch.stack(squares).sum()) / len(state)

    def add(self, state: Tensor, rows: NDArray[Any], columns: NDArray[Any], value: float) -> None:
        """Add ``value`` in place at the entries (rows[i], columns[i])."""
        index = (torch.from_numpy(np.asarray(part, np.int64)).to(self.device) for part in (rows, columns))
        state[tuple(index)] += value

    def write_known(self, state: Tensor) -> None:
        """Write 1 to the last column of nodes that have features, else 0."""
        state[:, -1] = self._known

    def copy_known(self, source: Tensor, result: Tensor) -> None:
        """Copy the rows of nodes that have features from ``source`` into ``result``."""
        for rows in self.slices(source.size(1)):
            torch.where(self._known[rows, None], source[rows], result[rows], out=result[rows])

    def scale_up(self, state: Tensor, mean_square: float) -> float:
        """Multiply a state by a power of two, in place, if its mean square is small; return the factor."""
        if not 0 < mean_square < MIN_MEAN_SQUARE:
            return 1.0
        factor = 2.0 ** (-math.floor(math.log2(mean_square)) // 2)
        state.mul_(factor)
        return factor


def from_mapped(array: NDArray[Any]) -> Tensor:
    """View a read-only array, such as one mapped from a file, as a tensor without a copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def reference_propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``; sums are in float32."""
    state = x.float() if roots is None else x.float() * roots[:, None]
    ones = torch.ones(len(x), 1, device=x.device)
    for rows in slices(len(x), ROWS_PER_ENTRY_SLICE):  # a copy of all entries may not fit memory
        crow_part = crow[rows.start : rows.stop + 1]
        entries = slice(int(crow_part[0]), int(crow_part[-1]))
        indices = crow_part - crow_part[0], column[entries].long()
        values = torch.ones_like(indices[1], dtype=torch.float32) if weight is None else weight[entries]
        shape = (rows.stop - rows.start, len(x))
        matrix = torch.sparse_csr_tensor(*indices, values, shape, check_invariants=False)
        total = state[rows] + matrix @ state
        y[rows] = total / (1 + matrix @ ones) if roots is None else total * roots[rows, None]


def slices(rows: int, size: int = ROWS_PER_SLICE) -> Iterator[slice]:
    """Yield slices of ``size`` rows, each small compared with a state."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
