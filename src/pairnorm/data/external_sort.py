"""Sorting entries of a matrix that do not fit memory: dealt out by range of rows, then range by range."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.adjacency import first_of_run, merge_weights

FEWEST_PER_RANGE, ENTRIES_PER_RANGE = 2**18, 2**25
BYTES_PER_SORTED_ENTRY = 48


class Ranges:
    """Entries of a matrix in files by range of rows: keys 2 (row · n + column) + the direction listed."""

    def __init__(self, folder: Path, rows: int, nodes: int, weighted: bool) -> None:
        self.rows, self.nodes, self.weighted = rows, nodes, weighted
        self.paths = [folder / f"range-{number:05d}" for number in range(-(-nodes // rows))]
        self.kind = np.dtype([("key", "<i8"), ("weight", "<f4")] if weighted else [("key", "<i8")])

    def __enter__(self) -> Ranges:
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def add(
        self, row: NDArray[np.int64], column: NDArray[np.int64], way: int, weights: NDArray[Any] | None
    ) -> None:
        """Append entries to the files they belong to."""
        entries = np.empty(len(row), self.kind)
        entries["key"] = (row * self.nodes + column) * 2 + way
        if weights is not None:
            entries["weight"] = weights
        number = (row // self.rows).astype(np.int32)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(self.files) + 1))
        entries = entries[order]
        for place, file in enumerate(self.files):
            entries[bounds[place] : bounds[place + 1]].tofile(file)

    def sorted(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any], int]]:
        """Yield degrees, columns and weights of every range, each entry once; and how many directions."""
        for number, path in enumerate(self.paths):
            entries = np.fromfile(path, self.kind)
            path.unlink()
            if self.weighted:
                order = np.argsort(entries["key"], kind="stable")
                keys, weights = entries["key"][order], entries["weight"][order]
                del order
            else:
                keys, weights = entries["key"], np.empty(0, np.float32)
                keys.sort()
            del entries
            keys, totals = merge_weights(keys, weights)
            weights = weights if totals is None else totals
            ways = len(keys)
            keys >>= 1
            first = first_of_run(keys)
            if len(weights):
                weights = np.maximum.reduceat(weights, np.flatnonzero(first))
            keys = keys[first]
            row, low = keys // self.nodes, number * self.rows
            degrees = np.bincount(row - low, minlength=min(self.rows, self.nodes - low))
            yield degrees, keys - row * self.nodes, weights, ways
