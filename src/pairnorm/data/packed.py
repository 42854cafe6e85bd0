"""Packed graphs, which may be larger than memory: arrays mapped from disk and loaded where they are read.

A packed graph is a folder: ``graph.json`` (what it holds), ``crow`` and ``column`` (the adjacency as CSR,
both directions of every edge, sorted), ``weight`` where edges have weights, ``features-*`` (blocks of
columns, NaN where missing), ``missing``, ``labels``, ``split`` and ``ids.parquet``. It is written by
``pairnorm.data.packing``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
from pairnorm.data.adjacency import mark_validated
from pairnorm.data.encoder import Encoder
from pairnorm.data.files import check_is_file, explain_read_errors
from pairnorm.data.masks import Split

FORMAT = 1
FACTS = "graph.json"
MAX_NODES = 2**31 - 1
ROWS_PER_BATCH = 2**16
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Facts:
    """The contents of ``graph.json``: sizes, names and the encoder of a packed graph.

    Args:
        nodes: how many there are.
        entries: of the adjacency, two for every edge.
        weighted: whether edges have weights.
        dtype: of the features on disk.
        block: how many columns of features lie together.
        missing: how many nodes have no features at all, and how many lack some.
        encoder: what the columns of the nodes are.
        known: of every feature, how many nodes have it.
        mean: of the known values.
        deviation: likewise.
        classes: their names.
        notes: what was odd.
        numbered: whether classes were not given as texts, see ``Graph``; older folders do not say.
        format: of the folder.
    """

    nodes: int
    entries: int
    weighted: bool
    dtype: str
    block: int
    missing: tuple[int, int]
    encoder: Encoder
    known: tuple[int, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    numbered: bool = False
    format: int = FORMAT

    @property
    def features(self) -> int:
        """The number of features of a node."""
        return len(self.known)

    @property
    def blocks(self) -> list[range]:
        """The columns of every block of features."""
        return blocks(self.features, self.block)

    def write(self, folder: Path) -> None:
        """Write ``graph.json``, the last of a folder's files."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / FACTS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read and validate ``graph.json``."""
        from pydantic import TypeAdapter

        try:
            if not (folder / FACTS).is_file():  # a pipe would be waited for
                raise FileNotFoundError(f"there is no {FACTS}")
            facts = TypeAdapter(cls).validate_json((folder / FACTS).read_bytes(), strict=True)
            if facts.format != FORMAT:
                raise ValueError(f"its format is {facts.format}, expected {FORMAT}")
            facts.check()
        except (OSError, ValueError) as error:
            problem = f"{folder}: this is no packed graph ({' '.join(str(error).split())[:200]})"
            hint = "Name the folder that `pairnorm pack` wrote, or pack the graph again."
            raise PairNormError(problem, code="file-damaged", value=str(folder), hint=hint) from error
        return facts

    def check(self) -> None:
        """Raise an error unless counts and lists agree; the contents of the arrays are checked later."""
        whole_number("nodes", self.nodes, 1, MAX_NODES)
        whole_number("entries", self.entries, 0, MAX_NODES**2)
        whole_number("block", self.block, 1)
        one_of("dtype", self.dtype, DTYPES)
        for count in (*self.missing, *self.known):
            whole_number("a count of nodes", count, 0, self.nodes)
        largest = float(np.finfo(np.float32).max)
        for number in (*self.mean, *self.deviation):
            real_number("a mean or deviation", number, least=-largest, most=largest)
        widths = {len(part) for part in (self.known, self.mean, self.deviation, self.encoder.feature_names)}
        if len(widths) != 1:
            raise ValueError("its lists of features differ in length")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have one name")


def blocks(count: int, width: int) -> list[range]:
    """Divide columns into blocks of ``width`` columns.

    >>> blocks(5, 2)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(start, min(start + width, count)) for start in range(0, count, width)]


@dataclass(frozen=True, eq=False)
class PackedGraph:
    """A packed graph, opened: its arrays are mapped, not read.

    Args:
        folder: where it is.
        facts: what it holds.
    """

    folder: Path
    facts: Facts

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> PackedGraph:
        """Open the folder that ``pack`` wrote, and compare its declared sizes with those of the files.

        Args:
            folder: the folder.
        """
        graph = cls(Path(folder), Facts.read(Path(folder)))
        for name, (dtype, shape) in graph._layout.items():
            path, expected = graph.folder / name, np.dtype(dtype).itemsize * math.prod(shape)
            held = path.stat().st_size if path.is_file() else 0
            if held != expected:
                raise _damaged(path, f"it has {held:,} bytes", f"{expected:,}")
        if graph.crow[0] != 0 or graph.crow[-1] != graph.facts.entries:
            raise _damaged(graph.folder / "crow", "its ends do not fit", f"0 and {graph.facts.entries:,}")
        return graph

    def check(self) -> None:
        """Read the adjacency once; raise an error if an index would lead a kernel outside of its arrays."""
        nodes, step = self.facts.nodes, 2**22
        for start in range(0, nodes, step):
            if (np.diff(self.crow[start : start + step + 1]) < 0).any():
                raise _damaged(self.folder / "crow", "a row ends before it starts", "rising numbers")
        for start in range(0, self.facts.entries, step):
            part = self.column[start : start + step]
            if part.min() < 0 or part.max() >= nodes:
                raise _damaged(self.folder / "column", "a neighbor is not there", f"0 to {nodes - 1:,}")
            if self.weight is not None:
                weights = self.weight[start : start + step]
                if not ((weights > 0) & (weights < np.inf)).all():
                    raise _damaged(self.folder / "weight", "a weight is not one", "positive numbers")
        for name, labels, count in (
            ("labels", self.labels, len(self.facts.classes)),
            ("split", self.split, 3),
            ("missing", self.missing, 3),
        ):
            if labels.min() < -1 or labels.max() >= count:
                raise _damaged(self.folder / name, "a number is out of range", f"-1 to {count - 1}")

    @cached_property
    def _layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The type and the shape of the array in each file."""
        nodes, entries = self.facts.nodes, self.facts.entries
        layout: dict[str, tuple[str, tuple[int, ...]]] = {
            "crow": ("<i8", (nodes + 1,)),
            "column": ("<i4", (entries,)),
            "labels": ("<i4", (nodes,)),
            "split": ("i1", (nodes,)),
            "missing": ("i1", (nodes,)),
        }
        if self.facts.weighted:
            layout["weight"] = ("<f4", (entries,))
        for number, columns in enumerate(self.facts.blocks):
            layout[f"features-{number:04d}"] = (self.facts.dtype, (nodes, len(columns)))
        return layout

    def _array(self, name: str) -> NDArray[Any]:
        """Map a file as an array."""
        dtype, shape = self._layout[name]
        if 0 in shape:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)

    @cached_property
    def crow(self) -> NDArray[np.int64]:
        """int64 [n + 1]: where the neighbors of every node begin."""
        return self._array("crow")

    @cached_property
    def column(self) -> NDArray[np.int32]:
        """int32 [entries]: the neighbors, node after node, rising."""
        return self._array("column")

    @cached_property
    def weight(self) -> NDArray[np.float32] | None:
        """float32 [entries], or None where all edges weigh 1."""
        return self._array("weight") if self.facts.weighted else None

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """int32 [n]: the class of every node, -1 where unknown."""
        return self._array("labels")

    @cached_property
    def split(self) -> NDArray[np.int8]:
        """The part of each node, int8 [n]: 0 train, 1 validation, 2 test, -1 none."""
        return self._array("split")

    @cached_property
    def missing(self) -> NDArray[np.int8]:
        """int8 [n]: 0 where all features are known, 1 where some are missing, 2 where all are."""
        return self._array("missing")

    def features(self, rows: slice, columns: range) -> NDArray[np.float32]:
        """Return features as they were packed, float32 [rows, columns]; NaN where missing.

        Args:
            rows: a range of nodes.
            columns: of the features, in any blocks.
        """
        parts = [np.empty((len(range(self.facts.nodes)[rows]), 0), np.float32)]
        for number, name in self._blocks(columns):
            held = self.facts.blocks[number]
            low, high = max(columns.start, held.start), min(columns.stop, held.stop)
            parts.append(self._array(name)[rows, low - held.start : high - held.start].astype(np.float32))
        return np.concatenate(parts, 1) if len(parts) > 2 else parts[-1]

    def _blocks(self, columns: range) -> list[tuple[int, str]]:
        """Return the number and the array's name of each block of features that holds one of the columns."""
        numbers = range(columns.start // self.facts.block, -(-columns.stop // self.facts.block))
        return [(number, f"features-{number:04d}") for number in numbers]

    def ids(self) -> Iterator[NDArray[Any]]:
        """Yield the names of the nodes, whole numbers or texts, batch by batch."""
        from pyarrow import parquet, types

        path, count = check_is_file(self.folder / "ids.parquet"), 0
        with explain_read_errors(str(path)), parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH):
                ids = batch.column(0)
                if ids.null_count or not (types.is_integer(ids.type) or types.is_string(ids.type)):
                    raise _damaged(path, f"it holds {ids.type}", "a whole number or a text for every node")
                count += len(ids)
                if count > self.facts.nodes:
                    break
                yield ids.to_numpy(zero_copy_only=False)
        if count != self.facts.nodes:
            raise _damaged(path, f"it holds {count:,} ids", f"{self.facts.nodes:,}")

    def parts(self) -> dict[str, Any]:
        """Read the whole graph; return the parts of a ``Graph``."""
        self.check()
        facts = self.facts
        weights = np.ones(facts.entries, np.float32) if self.weight is None else np.array(self.weight)
        arrays = (np.array(self.crow), self.column.astype(np.int64), weights)
        crow, column, values = map(torch.from_numpy, arrays)
        adjacency = sparse_csr(crow, column, values, (facts.nodes, facts.nodes))
        missing, features = None, self.features(slice(None), range(facts.features))
        if not facts.missing[1]:
            missing = torch.from_numpy(self.missing == 2)
            np.nan_to_num(features, copy=False, nan=0)
        split = {part: torch.from_numpy(self.split == number) for number, part in enumerate(Split._fields)}
        return split | {
            "adjacency": mark_validated(adjacency),
            "features": torch.from_numpy(features),
            "labels": torch.from_numpy(self.labels.astype(np.int64)),
            "missing": missing,
            "node_names": np.concatenate(list(self.ids())),
            "class_names": facts.classes,
            "numbered": facts.numbered,
            "encoder": facts.encoder,
            "name": self.folder.name,
            "notes": facts.notes,
        }

    def describe(self) -> list[tuple[str, str]]:
        """Return the facts about the graph: pairs of a property, such as ``"nodes"``, and a text."""
        facts = self.facts
        labeled = int(np.count_nonzero(self.labels >= 0))
        return [
            ("nodes", f"{facts.nodes:,}"),
            ("edges", f"{facts.entries // 2:,} undirected, {facts.entries / facts.nodes:.1f} per node"),
            ("features", f"{facts.features:,} as {facts.dtype}"),
            ("classes", f"{len(facts.classes)}"),
            ("labeled", f"{labeled:,} ({100 * labeled / facts.nodes:.3g}%)"),
            ("missing", f"{facts.missing[0]:,} vectors, and single entries of {facts.missing[1]:,} nodes"),
            *(("note", note) for note in facts.notes),
        ]

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"PackedGraph({str(self.folder)!r}: {facts.nodes:,} nodes, {facts.entries // 2:,} edges, "
            f"{facts.features:,} features, {len(facts.classes)} classes)"
        )


def _damaged(path: Path, problem: str, expected: str) -> PairNormError:
    """Return the error about a file of a packed graph that has other contents than declared."""
    more = {"expected": expected, "hint": "Pack the graph again."}
    return PairNormError(f"{path}: {problem}", code="file-damaged", value=str(path), **more)
