"""Write tables of nodes of any size to a packed graph: names, labels, split and features."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted, whole_number
from pairnorm.base.memory import size
from pairnorm.data.encoder import EACH, Column, ColumnOptions, Encoder
from pairnorm.data.features import class_sort_key
from pairnorm.data.ids import near_duplicate_notes
from pairnorm.data.labels import (
    PARTS,
    bin_codes,
    bin_names,
    check_training,
    choose_classes,
    cut_points,
    encoder_notes,
    known_labels,
    reject_bins,
    reject_part,
)
from pairnorm.data.packed import MAX_NODES, ROWS_PER_BATCH
from pairnorm.data.profile import EMPTY_NOTE, Decision
from pairnorm.data.queries import Database, Files, QueriedTable, sql_text
from pairnorm.data.tables import repeated_rows_note

MAX_CLASSES = 10_000
# Nodes up to which ids are compared for near-duplicates.
MAX_COMPARED_IDS = 1_000_000
# Blocks of features that are written at once, a file each.
BLOCKS_AT_ONCE = 256

Tick = Callable[[str, float], None]


class NodePacker:
    """Number the names in tables of nodes, decide how to encode each column, and write arrays to a folder.

    Args:
        base: where the nodes are numbered by name, in the table ``names``.
        draft: the folder; temporary files go to that of ``base``.
        files: the tables.
        options: what the columns are.
        tick: is called with the stage and the share of it that is done.
    """

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.options, self.tick = base, draft, options, tick
        self.table = QueriedTable(base, files, "nodes", options)
        self.source, self.cells = self.table.source, self.table.cells
        self.name = options.check(self.source)
        self.table.reject_nested(self.name)
        tick("names", 0.0)
        self._number_names()
        self.nodes, self.are_integers = self._check_names()
        self._write_names()
        self.classes: tuple[str, ...] = ()
        self.bins: tuple[float, ...] = ()
        self.labels = self.parts = "NULL"  # the SQL of the number of the class and of the part of each node
        if (label := options.label) is not None:
            self._choose_classes(label)
        self.numbered = label is not None and (
            self.source.text is not None or self.cells[label].kind != "VARCHAR"
        )
        if options.split is not None:
            for text in self.table.texts(options.split, MAX_CLASSES):
                if text.lower() not in PARTS:
                    reject_part(self.source, options.split, text)
            self.parts = base.lookup(f"lower({self.cells[options.split].text})", PARTS)
        roles = options.roles(self.name)
        self.decisions: dict[str, Decision] = {}
        features = self._choose_features([name for name in self.source.columns if name not in roles])
        columns = (
            Column(name, roles[name], self.classes if roles[name] == "label" else ())
            for name in self.source.columns
            if name in roles
        )
        self.encoder = Encoder((*columns, *features), **options.reading_options(), bins=self.bins)

    def _number_names(self) -> None:
        """Make the table of names, numbered in the order of the rows."""
        self.base.run(
            "CREATE OR REPLACE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {self.cells[self.name].text} AS name FROM {self.table.from_([self.name])})"
        )

    def _check_names(self) -> tuple[int, bool]:
        """Check the names of the nodes; return their number, and whether all names are integers."""
        source = self.source
        ((nodes, empty, plain),) = self.base.run(
            "SELECT count(*), count(*) FILTER (name IS NULL), "
            "count(*) FILTER (try_cast(name AS BIGINT)::VARCHAR = name) FROM names"
        )
        if nodes == 0:
            source.reject(None, "there are no rows under the header", "no-rows", expected="a row per node")
        whole_number("the number of nodes", nodes, most=MAX_NODES)
        if empty:
            hint = "Give every node a name of its own."
            source.reject(None, f"{empty:,} nodes have no id", "empty-cell", value=empty, hint=hint)
        for (name,) in self.base.run("SELECT name FROM names GROUP BY name HAVING count(*) > 1 LIMIT 1"):
            if repeated := self.table.drop_repeated_rows():
                source.notes.append(repeated_rows_note(source.name, repeated))
                self._number_names()
                return self._check_names()
            problem, hint = f"two nodes have the id {quoted(name)}", "Give every node an id of its own."
            source.reject(None, problem, "duplicate-id", value=name, hint=hint)
        return nodes, plain == nodes  # '007' and '7' may be two customers

    def _write_names(self) -> None:
        """Write the names, and a hash of each, by which a change of the files is noticed."""
        if self.are_integers:
            self.base.run("ALTER TABLE names ALTER name TYPE BIGINT")
        path = sql_text(str(self.draft / "ids.parquet"))
        self.base.run(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {path} (FORMAT parquet)")
        query = "SELECT hash(name) FROM names ORDER BY number"
        with open(self.base.folder / "hashes", "wb") as file:
            for (hashes,) in self.base.batches(query, ROWS_PER_BATCH):
                file.write(hashes.data)

    def _choose_classes(self, column: str) -> None:
        """Choose the classes of a label, by its texts or by ranges of its numbers."""
        self.table.reject_nested(column)
        classes = self.options.classes
        if isinstance(classes, int):
            self._choose_bins(column, classes)
            return
        counts = known_labels(self.table.texts(column, MAX_CLASSES + 1), self.options.unknown_label)
        if len(counts) > MAX_CLASSES and classes == EACH:
            problem = f"column {quoted(column)} holds more than {MAX_CLASSES:,} classes"
            expected = f"from 2 to {MAX_CLASSES:,}"
            self.source.reject(None, problem, "too-many-classes", value=column, expected=expected)
        class_of = choose_classes(self.source, column, counts, self.options)
        self.classes = tuple(sorted({*class_of.values()}, key=class_sort_key))
        numbers = {name: number for number, name in enumerate(self.classes)}
        class_numbers = {text: numbers[name] for text, name in class_of.items()}
        self.labels = self.base.lookup(self.cells[column].text, class_numbers)

    def _choose_bins(self, column: str, classes: int) -> None:
        """Cut a label of numbers into classes of equal size."""
        decision, _ = self.table.decide(column, kind="number")
        if decision.kind != "number":
            reject_bins(self.source, column, classes)
        self.labels = self.table.number(column, decision)
        number = f"nullif({self.labels}, 'NaN'::DOUBLE)::FLOAT::DOUBLE"  # in the precision of features
        shares = [part / classes for part in range(1, classes)]
        ((cuts, low),) = self.base.run(
            f"SELECT quantile_cont({number}, {shares}), min({number}) FROM {self.table.from_([column])}"
        )
        if low is None:
            reject_bins(self.source, column, classes)
        self.bins = cut_points(cuts, low)
        self.classes = bin_names(self.bins)

    def _choose_features(self, names: Sequence[str]) -> Iterator[Column]:
        """Decide how to encode columns."""
        self.table.find_plain_numbers(names)
        for name in names:
            kind = "category" if name in self.options.categorical else None
            decision, texts = self.table.decide(name, kind=kind, keep=name in self.options.keep)
            self.decisions[name] = decision
            categories = tuple(texts) if decision.kind == "category" else ()
            yield Column(name, decision.kind, categories, decision.form)

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the nodes, as ``Graph.from_files`` has them."""
        similar: list[str] = []
        if not self.are_integers and self.nodes <= MAX_COMPARED_IDS:
            names = [name for (name,) in self.base.run("SELECT name FROM names ORDER BY number")]
            similar = near_duplicate_notes(names)
        return (*self.source.all_notes(), *similar, *encoder_notes(self.encoder, self.classes, self.options))

    def write(self, dtype: str, block: int) -> dict[str, Any]:
        """Write labels, split, features and missing mask; return the fields of ``Facts`` about features."""
        self._write_labels()
        used = [column for column in self.encoder.columns if column.width]
        width = sum(column.width for column in used)
        self._check_disk(used, width * self.nodes * np.dtype(dtype).itemsize)
        moments = _Moments(width)
        gaps = np.memmap(self.base.folder / "gaps", np.int32, "w+", shape=self.nodes)
        for features in self._passes(used, block):
            self._write_features(used, features, dtype, block, moments, gaps)
            self.tick("features", features.stop / width)
        missing = np.zeros(3, np.int64)
        with open(self.draft / "missing", "wb") as file:
            for start in range(0, self.nodes, ROWS_PER_BATCH):
                absent = gaps[start : start + ROWS_PER_BATCH]
                kind = (absent > 0).astype("i1") + (absent == max(width, 1))
                file.write(kind.data)
                missing += np.bincount(kind, minlength=3)
        for column, count in zip(self.encoder.feature_names, moments.count, strict=True):
            if count == 0:
                self.source.add_column_note(EMPTY_NOTE, column)
        deviation = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        return {
            "missing": (int(missing[2]), int(missing[1])),
            "known": tuple(moments.count.astype(int).tolist()),
            "mean": tuple(moments.mean.tolist()),
            "deviation": tuple(deviation.tolist()),
        }

    def _check_disk(self, columns: Sequence[Column], needed: int) -> None:
        """Raise an error if the ``needed`` bytes of the features do not fit on the disk."""
        free = shutil.disk_usage(self.draft).free
        if needed > free:
            widest = max(columns, key=lambda column: column.width)
            problem = f"the features of {self.nodes:,} nodes take {size(needed)}, but the disk has "
            problem += (
                f"{size(free)} left; column {quoted(widest.name)} alone makes {widest.width:,} features"
            )
            hint, ignore = "Leave it out, {ignore}, or give it fewer different texts.", [widest.name]
            self.source.reject(None, problem, "disk-full", value=needed, hint=hint, ignore=ignore)

    def _passes(self, columns: Sequence[Column], block: int) -> Iterator[slice]:
        """Yield ranges of features to read together: whole blocks, of few columns, that fit in memory."""
        ends = np.cumsum([column.width for column in columns])
        widest = min(BLOCKS_AT_ONCE * block, max(block, self.base.memory // 8 // 2**14))
        start, total = 0, int(ends[-1]) if len(ends) else 0
        while start < total:
            first = int(np.searchsorted(ends, start, side="right"))
            last = min(first + self.table.at_once, len(ends)) - 1
            stop = min(int(ends[last]), start + widest)
            if stop < total:
                stop = min(max(start + block, stop // block * block), total)
            yield slice(start, stop)
            start = stop

    def _read_batches(
        self, columns: Sequence[str], expressions: Sequence[str], width: int = 1
    ) -> Iterator[tuple[slice, list[NDArray[Any]]]]:
        """Yield slices of nodes and the values of SQL expressions there, in the order of the nodes."""
        digest = f"hash({self.cells[self.name].endpoint(self.are_integers)})"
        # With row_number DuckDB reads in the order of the rows; without, now and then it does not.
        listed = ["row_number() OVER ()", digest, *expressions]
        query = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(listed))
        hashes, start = np.memmap(self.base.folder / "hashes", np.uint64, "r"), 0
        at_once = max(1024, min(ROWS_PER_BATCH, self.base.memory // 8 // (16 * max(width, len(listed)))))
        tables = self.table.from_([self.name, *columns])
        for _, names, *values in self.base.batches(f"SELECT {query} FROM {tables}", at_once):
            rows = slice(start, start + len(names))
            if not np.array_equal(names, hashes[rows]):
                problem = "the nodes were not the same when they were read again"
                hint = "Leave the files alone meanwhile."
                raise PairNormError(problem, code="file-changed", hint=hint)
            yield rows, values
            start = rows.stop

    def _write_labels(self) -> None:
        """Write the class and the part of each node."""
        training = np.zeros(len(self.classes), np.int64)
        names = [name for name in (self.options.label, self.options.split) if name is not None]
        with open(self.draft / "labels", "wb") as labels, open(self.draft / "split", "wb") as splits:
            for rows, (numbers, codes) in self._read_batches(names, [self.labels, self.parts]):
                classes, parts = _codes(numbers), _codes(codes)
                if self.bins:
                    classes = bin_codes(numbers.astype(np.float32), self.bins)
                if (blank := (parts >= 0) & (classes < 0)).any():
                    node = rows.start + int(blank.argmax()) + 1
                    problem = f"node {node:,} is in a part of the split but has no label"
                    hint = "Label it, or empty its cell in the column of the split."
                    raise PairNormError(problem, code="label-missing", hint=hint)
                training += np.bincount(classes[parts == 0], minlength=len(training))
                labels.write(classes.astype("<i4").data)
                splits.write(parts.astype("i1").data)
        if self.options.split is not None:
            check_training(self.source, self.options.split, training, self.classes)

    def _write_features(
        self,
        columns: Sequence[Column],
        features: slice,
        dtype: str,
        block: int,
        moments: _Moments,
        gaps: NDArray[np.int32],
    ) -> None:
        """Write columns in blocks, add to their moments, and count the missing features of every node."""
        ends = np.cumsum([column.width for column in columns])
        first, last = np.searchsorted(ends, [features.start, features.stop - 1], side="right")
        used = columns[first : last + 1]
        expressions = [self._expression(column) for column in used]
        width, starts = features.stop - features.start, range(features.start, features.stop, block)
        with ExitStack() as stack:
            paths = [self.draft / f"features-{start // block:04d}" for start in starts]
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            names = [column.name for column in used]
            for rows, values in self._read_batches(names, expressions, width):
                filled = np.empty((rows.stop - rows.start, width), np.float32)
                offset = int(ends[first] - columns[first].width) - features.start
                with np.errstate(over="ignore"):
                    for column, value in zip(used, values, strict=True):
                        if column.kind == "category":
                            _write_one_hot(filled, _codes(value), offset, column.width)
                        else:
                            filled[:, offset] = value
                        offset += column.width
                self._check_finite(filled, features.start, dtype)
                moments.add(filled, features.start)
                gaps[rows] += np.isnan(filled).sum(1, dtype=np.int32)
                for file, start in zip(files, starts, strict=True):
                    low = start - features.start
                    file.write(np.ascontiguousarray(filled[:, low : low + block], dtype).data)

    def _check_finite(self, values: NDArray[np.float32], first: int, dtype: str) -> None:
        """Raise an error that names the first feature that is infinite in the type on disk."""
        if (wrong := np.abs(values) > float(np.finfo(dtype).max)).any():
            row, place = (int(axis[0]) for axis in np.nonzero(wrong))
            name, value = self.encoder.feature_names[first + place], float(values[row, place])
            problem = f"{value:g} in column {quoted(name)} is not finite or beyond {dtype}"
            hint, more = "Correct it, or leave the cell empty.", {}
            if dtype != "float32":
                hint, more = "Correct it, leave the cell empty, or pass {dtype}.", {"dtype": "float32"}
            self.source.reject(None, problem, "not-finite", value=value, hint=hint, **more)

    def _expression(self, column: Column) -> str:
        """Return the SQL of a column, NULL where missing; of categories, their number."""
        if column.kind == "category":
            numbers = {text: code for code, text in enumerate(column.categories)}
            return self.base.lookup(self.cells[column.name].text, numbers)
        return self.table.number(column.name, self.decisions[column.name])


def _codes(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers of classes or categories as integers, -1 for NaN and None."""
    if numbers.dtype == object:
        return np.full(len(numbers), -1)
    codes: NDArray[np.int64] = np.nan_to_num(numbers, nan=-1).astype(np.int64)
    return codes


def _write_one_hot(filled: NDArray[np.float32], codes: NDArray[np.int64], offset: int, width: int) -> None:
    """Write the one-hot columns of categories that lie within a block, NaN where the category is unknown."""
    low, high = max(offset, 0), min(offset + width, filled.shape[1])
    filled[:, low:high] = np.where(codes < 0, np.nan, 0)[:, None]
    places = codes + offset
    rows = np.flatnonzero((codes >= 0) & (places >= low) & (places < high))
    filled[rows, places[rows]] = 1


class _Moments:
    """Count, mean and squares about it of every column, merged as Chan does; NaN takes no part."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, columns))

    def add(self, values: NDArray[np.float32], first: int) -> None:
        """Add rows of the columns from ``first`` on."""
        known = ~np.isnan(values)
        count = known.sum(0)
        mean = np.where(known, values, 0).sum(0, dtype=np.float64) / np.maximum(count, 1)
        squares = np.square(np.where(known, values - mean, 0)).sum(0)
        place = slice(first, first + values.shape[1])
        apart, both = mean - self.mean[place], np.maximum(self.count[place] + count, 1)
        self.squares[place] += squares + apart**2 * self.count[place] * count / both
        self.mean[place] += apart * count / both
        self.count[place] += count
