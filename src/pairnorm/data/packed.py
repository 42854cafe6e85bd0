"""Graphs larger than memory, packed: arrays that are mapped from disk, so that only what is looked at is loaded.

A packed graph is a folder: ``graph.json`` (what it holds), ``crow`` and ``column`` (the adjacency as CSR, both
directions of every edge, sorted), ``weight`` where edges have weights, ``features-*`` (blocks of columns, NaN
where missing), ``labels``, ``split`` and ``ids.parquet``. ``pairnorm.data.pack`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.errors import PairNormError

FORMAT = 1
FACTS = "graph.json"
ROWS_PER_BATCH = 2**17


@dataclass(frozen=True)
class Column:
    """A column of features: where it is from, its category if it is one, and its moments over known values."""

    source: str
    category: str | None
    known: int
    mean: float
    deviation: float

    @property
    def name(self) -> str:
        """What to call it."""
        return self.source if self.category is None else f"{self.source}={self.category}"


@dataclass(frozen=True)
class Facts:
    """What ``graph.json`` says."""

    nodes: int
    entries: int
    weighted: bool
    dtype: str
    block: int
    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    format: int = FORMAT

    @property
    def blocks(self) -> list[range]:
        """The columns of every block of features."""
        count = len(self.columns)
        return [range(start, min(start + self.block, count)) for start in range(0, count, self.block)]

    def write(self, folder: Path) -> None:
        """Write ``graph.json``, the last of a folder's files: with it the graph is complete."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / FACTS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read ``graph.json``."""
        try:
            found = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            columns = tuple(Column(**column) for column in found.pop("columns"))
            classes, notes = tuple(found.pop("classes")), tuple(found.pop("notes"))
            facts = cls(**found, columns=columns, classes=classes, notes=notes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PairNormError(
                f"{folder}: this is no packed graph ({error})",
                code="file-damaged",
                value=str(folder),
                remedy="Name the folder that `pairnorm pack` wrote.",
            ) from error
        if facts.format != FORMAT:
            raise PairNormError(
                f"{folder}: its format is {facts.format!r}",
                code="unknown-format",
                value=facts.format,
                expected=str(FORMAT),
                remedy="Pack the graph again with this version.",
            )
        return facts


@dataclass(frozen=True, eq=False)
class PackedGraph:
    """A packed graph, opened.

    Args:
        folder: where it is.
        facts: what it holds.
    """

    folder: Path
    facts: Facts

    @classmethod
    def open(cls, folder: str | PathLike[str]) -> PackedGraph:
        """Open what ``pack`` wrote; the sizes it claims are held against what the files really have.

        Args:
            folder: the folder.
        """
        graph = cls(Path(folder), Facts.read(Path(folder)))
        for name, size in graph._sizes().items():
            path = graph.folder / name
            held = path.stat().st_size if path.is_file() else 0
            if held != size:
                raise PairNormError(
                    f"{path}: it has {held:,} bytes",
                    code="file-damaged",
                    value=held,
                    expected=f"{size:,}",
                    remedy="Pack the graph again.",
                )
        return graph

    def _sizes(self) -> dict[str, int]:
        nodes, entries = self.facts.nodes, self.facts.entries
        width = np.dtype(self.facts.dtype).itemsize * nodes
        sizes = {"crow": 8 * (nodes + 1), "column": 4 * entries, "labels": 4 * nodes, "split": nodes}
        if self.facts.weighted:
            sizes["weight"] = 4 * entries
        blocks = enumerate(self.facts.blocks)
        return sizes | {f"features-{number:04d}": width * len(columns) for number, columns in blocks}

    def _array(self, name: str, dtype: str, *shape: int) -> NDArray[Any]:
        if 0 in shape:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)

    @cached_property
    def crow(self) -> NDArray[np.int64]:
        """int64 [n + 1]: where the neighbours of every node begin."""
        return self._array("crow", "<i8", self.facts.nodes + 1)

    @cached_property
    def column(self) -> NDArray[np.int32]:
        """int32 [entries]: the neighbours, node after node, rising."""
        return self._array("column", "<i4", self.facts.entries)

    @cached_property
    def weight(self) -> NDArray[np.float32] | None:
        """float32 [entries], or None where all edges weigh 1."""
        return self._array("weight", "<f4", self.facts.entries) if self.facts.weighted else None

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """int32 [n]: the class of every node, -1 where unknown."""
        return self._array("labels", "<i4", self.facts.nodes)

    @cached_property
    def split(self) -> NDArray[np.int8]:
        """int8 [n]: 0 train, 1 validation, 2 test, -1 none."""
        return self._array("split", "i1", self.facts.nodes)

    def features(self, number: int) -> NDArray[Any]:
        """Return a block of columns as it was packed, [n, columns]; NaN where missing."""
        columns = self.facts.blocks[number]
        return self._array(f"features-{number:04d}", self.facts.dtype, self.facts.nodes, len(columns))

    def ids(self) -> Iterator[NDArray[Any]]:
        """Yield the names of the nodes, batch by batch."""
        from pyarrow import parquet

        with parquet.ParquetFile(self.folder / "ids.parquet") as file:
            for batch in file.iter_batches(ROWS_PER_BATCH):
                yield batch.column(0).to_numpy(zero_copy_only=False)

    def __repr__(self) -> str:
        facts = self.facts
        return (
            f"PackedGraph({str(self.folder)!r}: {facts.nodes:,} nodes, {facts.entries // 2:,} edges, "
            f"{len(facts.columns):,} features, {len(facts.classes)} classes)"
        )
