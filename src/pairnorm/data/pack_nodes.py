"""Number the ids of tables of nodes of any size, and decide how to encode each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pandas

from pairnorm.base.errors import quoted, whole_number
from pairnorm.base.memory import BYTES_PER_CELL
from pairnorm.data.encoder import EACH, Column, ColumnOptions, Encoder
from pairnorm.data.features import class_sort_key
from pairnorm.data.labels import (
    PARTS,
    bin_names,
    choose_classes,
    cut_points,
    encoder_notes,
    near_duplicate_notes,
    reject_bins,
    reject_part,
)
from pairnorm.data.packed import MAX_NODES, ROWS_PER_BATCH
from pairnorm.data.profile import (
    ColumnProfile,
    Decision,
    decide_typed,
)
from pairnorm.data.queries import (
    DURATION,
    NUMERIC,
    Database,
    Files,
    as_double,
    as_text,
    has_other_text,
    sql_name,
    sql_text,
)
from pairnorm.data.tables import read_blocks, repeated_rows_note

MAX_CLASSES = 10_000
# Distinct texts of a column from which its encoding is decided.
MAX_SAMPLED_TEXTS = 100_000
# Nodes up to which ids are compared for near-duplicates.
MAX_COMPARED_IDS = 1_000_000
# DuckDB takes time for the plan of a query with the square of its columns, and memory for each of them.
COLUMNS_AT_ONCE, BYTES_PER_COLUMN = 64, 2 * 10**7
# A text table of more columns is copied to files of fewer: each query reads the header of its whole table.
MAX_COLUMNS, COLUMNS_PER_PART = 512, 256

Tick = Callable[[str, float], None]


class NodeTable:
    """Tables of nodes: their ids, numbered, and how to encode each column.

    Args:
        base: where their names are numbered, in the table ``names``.
        draft: the folder; temporary files go to ``work`` in it.
        files: the tables.
        options: what the columns are.
        tick: is called with the stage and the share of it that is done.
    """

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.options, self.tick = base, draft, options, tick
        self.work = draft / "work"
        self.source, self.table, self.kinds, self.sources = base.open(files, "nodes", options)
        self.parts: dict[str, str] = {}
        self.at_once = max(4, min(COLUMNS_AT_ONCE, base.memory // BYTES_PER_COLUMN))
        self.classes: tuple[str, ...] = ()
        self.class_of: dict[str, str] = {}
        self.bins: tuple[float, ...] = ()
        self.decisions: dict[str, Decision] = {}
        self.name = options.check(self.source)
        self._reject_nested(self.name)
        tick("names", 0.0)
        self._number_names()
        self.nodes, self.whole = self._check_names()
        self._write_names()
        self._split_columns()
        label = options.label
        self.numbered = label is not None and (self.source.text is not None or self.kinds[label] != "VARCHAR")
        if label is not None:
            self._find_classes(label)
        for text in self._texts(options.split, MAX_CLASSES) if options.split is not None else ():
            if text.lower() not in PARTS:
                reject_part(self.source, str(options.split), text)
        roles = options.roles(self.name)
        columns = [
            Column(name, roles[name], self.classes if roles[name] == "label" else ())
            for name in self.source.columns
            if name in roles
        ]
        features = self._choose_features([name for name in self.source.columns if name not in roles])
        settings = options.reading_options()
        self.encoder = Encoder((*columns, *features), **settings, bins=self.bins)

    def _number_names(self) -> None:
        cell = as_text(self.name, self.kinds[self.name])
        self.base.run(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {cell} AS name FROM {self._tables([self.name])})"
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
            if self._drop_repeated_rows():
                return self._check_names()
            problem, hint = f"two nodes have the id {quoted(name)}", "Give every node an id of its own."
            source.reject(None, problem, "duplicate-id", value=name, hint=hint)
        return nodes, plain == nodes  # '007' and '7' may be two customers

    def _write_names(self) -> None:
        if self.whole:
            self.base.run("ALTER TABLE names ALTER name TYPE BIGINT")
        path = sql_text(str(self.draft / "ids.parquet"))
        self.base.run(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {path} (FORMAT parquet)")
        query = "SELECT hash(name) FROM names ORDER BY number"
        with open(self.work / "hashes", "wb") as file:
            for (hashes,) in self.base.batches(query, ROWS_PER_BATCH):
                hashes.tofile(file)

    def _drop_repeated_rows(self) -> bool:
        """Read the tables from a copy without exact repetitions of rows; return whether there were some."""
        names = ", ".join(map(sql_name, self.source.columns))
        ((rows, distinct),) = self.base.run(
            f"SELECT (SELECT count(*) FROM {self.table}), count(*) "
            f"FROM (SELECT DISTINCT {names} FROM {self.table})"
        )
        if rows == distinct:
            return False
        self.source.notes.append(repeated_rows_note(self.source.name, rows - distinct))
        copy = self.work / "nodes.parquet"
        path = sql_text(str(copy))
        self.base.run(
            f"COPY (SELECT {names} FROM (SELECT *, row_number() OVER () AS row_number_ FROM {self.table}) "
            f"QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY row_number_) = 1 "
            f"ORDER BY row_number_) TO {path} (FORMAT parquet)"
        )
        self.table = f"read_parquet({path})"
        self.sources = [replace(self.source, load=partial(pandas.read_parquet, copy))]
        self.base.run("DROP TABLE names")
        self._number_names()
        return True

    def _split_columns(self) -> None:
        """Copy a wide text table to files of few columns each."""
        import pyarrow
        from pyarrow import parquet

        names = [name for name in self.source.columns if name != self.name]
        if self.source.text is None or len(names) < MAX_COLUMNS:
            return
        starts = range(0, len(names), COLUMNS_PER_PART)
        groups = [[self.name], *(names[start : start + COLUMNS_PER_PART] for start in starts)]
        rows = max(100, self.base.memory // 4 // (3 * BYTES_PER_CELL * len(names)))
        with ExitStack() as stack:
            writers = []
            for number, group in enumerate(groups):
                path = self.work / f"part-{number}"
                schema = pyarrow.schema([(name, pyarrow.string()) for name in group])
                writers.append((group, stack.enter_context(parquet.ParquetWriter(path, schema))))
                self.parts |= dict.fromkeys(group, f"read_parquet({sql_text(str(path))})")
            blocks = (read_blocks(source, source.columns, rows) for source in self.sources)
            for frame in chain.from_iterable(blocks):
                for group, writer in writers:
                    cells = frame[group].astype(object)
                    table = pyarrow.Table.from_pandas(cells, writer.schema, preserve_index=False)
                    writer.write_table(table)

    def _tables(self, names: Iterable[str]) -> str:
        """Return the SQL of the tables that hold the named columns, joined row by row."""
        parts = dict.fromkeys(self.parts[name] for name in names) if self.parts else [self.table]
        return " POSITIONAL JOIN ".join(parts)

    def _texts(self, column: str, limit: int) -> dict[str, int]:
        """Return at most ``limit`` distinct texts of a column, sorted, and how many cells hold each."""
        cell = as_text(column, self.kinds[column])
        rows = self.base.run(
            f"SELECT {cell}, count(*) FROM {self._tables([column])} WHERE {cell} IS NOT NULL "
            f"GROUP BY 1 LIMIT {limit}"
        )
        return dict(sorted(rows))

    def _reject_nested(self, name: str) -> None:
        """Raise an error for a column of lists, structures or bytes."""
        kind = self.kinds[name]
        if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION", "BLOB", "BIT", "VARIANT")):
            problem = f"column {quoted(name)} holds values of type {kind.lower()[:60]}"
            more = {"expected": "a number or a text", "ignore": [name]}
            hint = "Give each of its numbers a column, or pass {ignore}."
            self.source.reject(None, problem, "not-a-cell", value=name, hint=hint, **more)

    def _find_classes(self, column: str) -> None:
        self._reject_nested(column)
        each, classes = self.options.classes == EACH, self.options.classes
        if isinstance(classes, int):
            self.bins = self._find_bins(column, classes)
            self.classes = bin_names(self.bins)
            return
        counts = self._texts(column, MAX_CLASSES + 1)
        if len(counts) > MAX_CLASSES and each:
            problem = f"column {quoted(column)} holds more than {MAX_CLASSES:,} classes"
            expected = f"from 2 to {MAX_CLASSES:,}"
            self.source.reject(None, problem, "too-many-classes", value=column, expected=expected)
        merge = bool(self.options.merge_classes)
        self.class_of = choose_classes(self.source, column, counts, each=each, merge=merge)
        self.classes = tuple(sorted({*self.class_of.values()}, key=class_sort_key))

    def _find_bins(self, column: str, classes: int) -> tuple[float, ...]:
        number = f"{as_double(column, self.kinds[column])}::FLOAT::DOUBLE"  # in the precision of features
        shares = [part / classes for part in range(1, classes)]
        ((cuts, low, known, filled),) = self.base.run(
            f"SELECT quantile_cont({number}, {shares}), min({number}), count({number}), "
            f"count({as_text(column, self.kinds[column])}) FROM {self._tables([column])}"
        )
        if not known or known < filled:
            reject_bins(self.source, column, classes)
        return cut_points(cuts, low)

    def _choose_features(self, names: Sequence[str]) -> Iterator[Column]:
        """Decide how to encode columns, by the rules of ``pairnorm.data.profile``."""
        plain = self._plain_numbers([name for name in names if self.kinds[name] == "VARCHAR"])
        for name in names:
            self._reject_nested(name)
            kind = "category" if name in self.options.categorical else None
            keep = name in self.options.keep
            dtype = None if kind else "number" if name in plain else _dtype(self.kinds[name])
            if dtype is not None:
                count = None if keep else partial(self._count_numbers, name)
                yield Column(name, self.source.note(name, decide_typed(dtype, name, count)).kind)
                continue
            counts, totals = self._texts(name, MAX_SAMPLED_TEXTS), ()
            if is_sampled := len(counts) == MAX_SAMPLED_TEXTS:
                cell = as_text(name, self.kinds[name])
                (totals,) = self.base.run(
                    f"SELECT count(c), count(DISTINCT c) FROM (SELECT {cell} AS c "
                    f"FROM {self._tables([name])})"
                )
            decision = self.source.decide(name, ColumnProfile.of(counts, *totals), kind=kind, keep=keep)
            self.decisions[name] = decision
            if decision.kind == "category" and is_sampled:
                counts = self._texts(name, MAX_NODES)
            yield Column(
                name, decision.kind, tuple(counts) if decision.kind == "category" else (), decision.form
            )

    def _count_numbers(self, name: str) -> Any:
        """Return the filled cells of a column of numbers, the distinct ones, and the fractions."""
        (counts,) = self.base.run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {as_double(name, self.kinds[name])} AS c FROM {self._tables([name])})"
        )
        return counts

    def _plain_numbers(self, names: Sequence[str]) -> set[str]:
        """Return the columns of text whose cells are plain numbers, without leading zeros, or missing."""
        plain = set[str]()
        for start in range(0, len(names), self.at_once):
            batch = names[start : start + self.at_once]
            flags = ", ".join(map(has_other_text, batch))
            (row,) = self.base.run(f"SELECT {flags} FROM {self._tables(batch)}")
            plain |= {name for name, others in zip(batch, row, strict=True) if not others}
        return plain

    def notes(self) -> tuple[str, ...]:
        """Return the notes on the nodes, as ``Graph.from_files`` has them."""
        similar: list[str] = []
        if not self.whole and self.nodes <= MAX_COMPARED_IDS:
            names = [name for (name,) in self.base.run("SELECT name FROM names ORDER BY number")]
            similar = near_duplicate_notes(names)
        return (*self.source.all_notes(), *similar, *encoder_notes(self.encoder, self.classes, self.options))


def _dtype(kind: str) -> Literal["number", "date", "duration"] | None:
    """Convert a type of DuckDB to one of ours, None for text."""
    if kind == DURATION:
        return "duration"
    if kind.startswith(("DATE", "TIMESTAMP")):
        return "date"
    return "number" if kind.startswith(NUMERIC) else None
