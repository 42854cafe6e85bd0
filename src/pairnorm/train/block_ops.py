"""The arithmetic of propagations over packed graphs, on a CPU or a GPU, and the memory that it takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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
from pairnorm.data.packed import PackedGraph
from pairnorm.nn.ops.kernels import find_kernels

MIN_MEAN_SQUARE, MIN_MEAN_SQUARE_HALF = 2.0**-40, 2.0**-4
# The largest number of a float16 state is not multiplied beyond this: the type ends at 65504.
LARGEST_HALF = 2.0**14
ROWS_PER_SLICE = 2**14
NUMBERS_PER_SLICE, ENTRIES_PER_COPY = 2**24, 2**25
MAX_WIDTH, MAX_CUDA_WIDTH = 64, 128
# A cache line holds 16 float32 columns: narrower blocks waste a part of it.
COLUMNS_PER_LINE = 16
# Bytes of Python, torch and numba with its kernels; of CUDA and the parts of a state in float32 on a GPU.
BASE_BYTES, CUDA_BASE_BYTES = 225 * 10**6, 2 * 10**9

suppress_csr_warning()

Array = NDArray[np.float32]
Index = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    r"""The memory that a propagation takes, known before it starts. Mapped pages of files do not count.

    $$\text{bytes} = 8 n (B + 1) + 16 n + 4 B r k + 32 F r + 64 C r + 32 C^2 + 2.7 \cdot 10^8$$

    for n nodes, blocks of B of the F columns, r rows stored of k depths, and C classes: two states; the
    numbers per node of imputations and PN-SI; the stored rows of a block; the data and the probabilities of
    the regression; the confusion matrix; Python.

    Args:
        nodes: n.
        features: F.
        rows: r.
        depths: k.
        memory: bytes that it may take.
        max_width: the most columns of a block.
        classes: C.
    """

    nodes: int
    features: int
    rows: int
    depths: int
    memory: int
    max_width: int = MAX_WIDTH
    classes: int = 0

    def peak(self, width: int) -> int:
        """Return the peak memory in bytes with blocks of ``width`` columns."""
        states = 8 * self.nodes * (width + 1) + 16 * self.nodes
        regression = 32 * self.features * self.rows + 64 * self.classes * self.rows + 32 * self.classes**2
        return states + 4 * width * self.rows * self.depths + regression + BASE_BYTES

    @cached_property
    def width(self) -> int:
        """The number of columns of the widest block that fits into memory."""
        most = max(1, min(self.max_width, self.features))
        lines = range(most // COLUMNS_PER_LINE * COLUMNS_PER_LINE, 0, -COLUMNS_PER_LINE)
        for width in [most, *lines, *(narrow for narrow in (8, 4, 2, 1) if narrow < most)]:
            if self.peak(width) <= self.memory:
                return int(width)
        raise PairNormError(
            f"a propagation over {self.nodes:,} nodes that stores {self.rows:,} rows of {self.depths} depths "
            f"for {self.classes:,} classes takes {size(self.peak(1))} for a single column",
            code="too-large",
            value=self.peak(1),
            expected=f"at most {size(self.memory)}",
            hint="Allow {memory}, or ask for fewer depths, or merge rare classes.",
            memory=size(1.1 * self.peak(1)),
        )


@dataclass(frozen=True)
class CudaPlan(Plan):
    r"""The memory of a GPU that a propagation takes.

    $$\text{bytes} = 4 e (1 + w) + 13 n + 2 b n (B + 1) + 2 \cdot 10^9$$

    for e entries, w = 1 if these have weights, and states of b bytes per number: 4 if all columns fit in one
    block, or else 2.

    Args:
        entries: e.
        weighted: whether entries have weights.
    """

    entries: int = 0
    weighted: bool = False

    @cached_property
    def bytes_per_number(self) -> int:
        """4 for states in float32, 2 for states in float16."""
        return 4 if self._peak(min(self.max_width, self.features), 4) <= self.memory else 2

    def peak(self, width: int) -> int:
        """Return the peak memory of the GPU in bytes with blocks of ``width`` columns."""
        return self._peak(width, self.bytes_per_number)

    def _peak(self, width: int, size: int) -> int:
        graph = 4 * self.entries * (1 + self.weighted) + 13 * self.nodes
        return graph + 2 * size * self.nodes * (width + 1) + CUDA_BASE_BYTES


class BlockOps(ABC):
    """The arithmetic of propagations over one packed graph on one device. A state is [n, columns]."""

    name = "cpu"
    threads = 1
    graph: PackedGraph

    def slices(self, width: int) -> Iterator[slice]:
        """Yield slices of the nodes that are read together from files of ``width`` columns."""
        return slices(self.graph.facts.nodes)

    @abstractmethod
    def empty(self, width: int, exact: bool = False) -> Any:
        """Return a new state without values, in float32 if ``exact``."""

    @abstractmethod
    def empty_like(self, state: Any) -> Any:
        """Return a new state of the same shape and type, without values."""

    @abstractmethod
    def write(self, state: Any, rows: slice, values: Array, weight: Array | None = None) -> None:
        """Write the first columns of some rows: ``values``, or ``values @ weight``."""

    @abstractmethod
    def read(self, state: Any, rows: Index) -> Array:
        """Return some rows."""

    @abstractmethod
    def propagate(self, source: Any, result: Any, symmetric: bool = False) -> None:
        """Write D̃⁻¹ Ã source, or if symmetric D̃^(-1/2) Ã D̃^(-1/2) source, to ``result``."""

    @abstractmethod
    def center(self, state: Any) -> float:
        """Subtract the mean of every column in place and return the mean squared row norm."""

    @abstractmethod
    def multiply(self, state: Any, factor: float) -> None:
        """Multiply in place."""

    @abstractmethod
    def add(self, state: Any, rows: NDArray[Any], columns: NDArray[Any], value: float) -> None:
        """Add a number at some positions."""

    @abstractmethod
    def write_known(self, state: Any) -> None:
        """Write 1 to the last column of nodes that have features, else 0."""

    @abstractmethod
    def copy_known(self, source: Any, result: Any) -> None:
        """Copy the rows of nodes that have features."""

    def min_mean_square(self, state: Any) -> float:
        """The mean square of a state below which it is multiplied by a power of two."""
        return MIN_MEAN_SQUARE

    def max_factor(self, state: Any) -> float:
        """The largest factor that does not overflow."""
        return math.inf


class _TorchOps(BlockOps):
    """States are tensors on a device, those of features in half precision if they do not fit otherwise.

    Args:
        graph: the packed graph, which is copied to the device.
        device: of the states.
        dtype: of the states of features.
    """

    def __init__(self, graph: PackedGraph, device: torch.device, dtype: torch.dtype) -> None:
        self.graph, self.device, self.dtype = graph, device, dtype
        self.threads = max(4, torch.get_num_threads())
        self.name = f"{device.type}-{dtype}"
        self.crow = self._copied(graph.crow)
        self.column = self._copied(graph.column)
        self.weight = None if graph.weight is None else self._copied(graph.weight)
        self._known = self._copied(graph.missing) != 2

    def _copied(self, array: NDArray[Any]) -> Tensor:
        """Copy a mapped array to the device, in parts that threads read at once."""
        result = torch.empty(len(array), dtype=_DTYPES[array.dtype.name], device=self.device)

        def copy(start: int) -> None:
            stop = start + ENTRIES_PER_COPY
            result[start:stop].copy_(self._pinned(np.array(array[start:stop])), non_blocking=True)

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(copy, range(0, len(array), ENTRIES_PER_COPY)))
        return result

    def _pinned(self, values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    @cached_property
    def _roots(self) -> Tensor:
        """D̃^(-1/2) [n], with self-loops."""
        roots = torch.empty(len(self.crow) - 1, device=self.device)
        for rows in slices(len(roots), 2**22):
            crow = self.crow[rows.start : rows.stop + 1]
            degree = crow.diff().double()
            if self.weight is not None:
                owner = torch.arange(len(degree), device=self.device).repeat_interleave(crow.diff())
                weights = self.weight[int(crow[0]) : int(crow[-1])].double()
                degree = torch.zeros_like(degree).index_add_(0, owner, weights)
            roots[rows] = (degree + 1).rsqrt().float()
        return roots

    def slices(self, width: int) -> Iterator[slice]:
        return slices(self.graph.facts.nodes, max(2**10, NUMBERS_PER_SLICE // max(1, width)))

    def empty(self, width: int, exact: bool = False) -> Tensor:
        dtype = torch.float32 if exact else self.dtype
        return torch.empty(self.graph.facts.nodes, width, dtype=dtype, device=self.device)

    def empty_like(self, state: Tensor) -> Tensor:
        return torch.empty_like(state)

    def write(self, state: Tensor, rows: slice, values: Array, weight: Array | None = None) -> None:
        given = self._pinned(values).to(self.device, non_blocking=True)
        if weight is not None:
            given = given @ torch.from_numpy(np.ascontiguousarray(weight)).to(self.device)
        state[rows, : given.size(1)] = given.to(state.dtype)

    def read(self, state: Tensor, rows: Index) -> Array:
        index = rows if isinstance(rows, slice) else torch.from_numpy(np.asarray(rows)).to(self.device)
        result: Array = state[index].float().cpu().numpy()
        return result

    def propagate(self, source: Tensor, result: Tensor, symmetric: bool = False) -> None:
        kernels = find_kernels("block_propagation", source)
        step = reference_propagate if kernels is None else kernels.propagate
        step(self.crow, self.column, self.weight, self._roots if symmetric else None, source, result)

    def center(self, state: Tensor) -> float:
        parts = [state[rows] for rows in self.slices(state.size(1))]
        total = torch.stack([part.float().sum(0).double() for part in parts]).sum(0)
        mean = (total / len(state)).float()
        squares = []
        for part in parts:
            part.copy_(part.float() - mean)
            squares.append(part.float().square().sum().double())
        return float(torch.stack(squares).sum()) / len(state)

    def multiply(self, state: Tensor, factor: float) -> None:
        state.mul_(factor)

    def min_mean_square(self, state: Tensor) -> float:
        return MIN_MEAN_SQUARE if state.dtype == torch.float32 else MIN_MEAN_SQUARE_HALF

    def max_factor(self, state: Tensor) -> float:
        if state.dtype == torch.float32:
            return math.inf
        largest = max(float(state[rows].abs().amax()) for rows in self.slices(state.size(1)))
        return LARGEST_HALF / largest

    def add(self, state: Tensor, rows: NDArray[Any], columns: NDArray[Any], value: float) -> None:
        index = (torch.from_numpy(np.asarray(part, np.int64)).to(self.device) for part in (rows, columns))
        state[tuple(index)] += value

    def write_known(self, state: Tensor) -> None:
        state[:, -1] = self._known.to(state.dtype)

    def copy_known(self, source: Tensor, result: Tensor) -> None:
        for rows in self.slices(source.size(1)):
            torch.where(self._known[rows, None], source[rows], result[rows], out=result[rows])


_DTYPES = {"int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "float32": torch.float32}


def reference_propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``; sums are in float32."""
    values = torch.ones(len(column), device=x.device) if weight is None else weight
    nodes, state = len(x), x.float()
    matrix = torch.sparse_csr_tensor(crow, column.long(), values, (nodes, nodes), check_invariants=False)
    if roots is None:
        degree = 1 + matrix @ torch.ones(nodes, 1, device=x.device)
        y.copy_((state + matrix @ state) / degree)
    else:
        state = state * roots[:, None]
        y.copy_((state + matrix @ state) * roots[:, None])


def torch_ops(graph: PackedGraph, plan: Plan, device: str) -> BlockOps:
    """Return the arithmetic of torch on a device, to which the graph is copied."""
    half = isinstance(plan, CudaPlan) and plan.bytes_per_number == 2
    return _TorchOps(graph, torch.device(device), torch.float16 if half else torch.float32)


def make_plan(
    graph: PackedGraph,
    rows: int,
    depths: int,
    memory: int | None = None,
    device: str = "cpu",
    workers_memory: int | None = None,
) -> Plan:
    """Plan a propagation within some memory of a device. Default: what is free.

    Workers of a cluster have ``workers_memory``, and narrow blocks, so that every worker has some.
    """
    facts = graph.facts
    sizes = facts.nodes, facts.features, rows, depths
    classes = len(facts.classes)
    if device != "cpu":
        memory = memory or int(0.95 * torch.cuda.mem_get_info(device)[0])
        return CudaPlan(*sizes, memory, MAX_CUDA_WIDTH, classes, facts.entries, facts.weighted)
    memory = memory or free_memory()
    if workers_memory is not None:
        return Plan(*sizes, min(memory, workers_memory), COLUMNS_PER_LINE, classes)
    return Plan(*sizes, memory, MAX_WIDTH, classes)


def slices(rows: int, size: int = ROWS_PER_SLICE) -> Iterator[slice]:
    """Yield slices of ``size`` rows, each small compared with a state."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
