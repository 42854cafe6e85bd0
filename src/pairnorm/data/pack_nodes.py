"""Number the ids of tables of nodes of any size, and decide how to encode each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from pairnorm.base.errors import PairNormError, quoted, whole_number
from pairnorm.base.memory import BYTES_PER_CELL
from pairnorm.data.columns import encoder_notes
from pairnorm.data.encoder import EACH, Column, ColumnOptions, Encoder
from pairnorm.data.labels import (
    PARTS,
    bin_names,
    choose_classes,
    cut_points,
    numbers_first,
    reject_bins,
    reject_part,
)
from pairnorm.data.nodes import repeated_rows_note
from pairnorm.data.packed import MOST_NODES, ROWS_PER_BATCH
from pairnorm.data.profile import ColumnProfile, Decision, decide, decide_typed, near_duplicate_notes
from pairnorm.data.queries import (
    DURATION,
    NUMERIC,
    Database,
    Files,
    as_number,
    as_text,
    has_other_text,
    sql_name,
    sql_text,
)
from pairnorm.data.tables import Source, read_blocks

if TYPE_CHECKING:
    import pandas

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
        draft: the folder; what is not to stay goes to ``work`` in it.
        files: the tables.
        options: what the columns are.
        tick: is called with the stage and the share of it that is done.
    """

    nodes = 0
    classes: tuple[str, ...] = ()
    numbered = False

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.options, self.tick = base, draft, options, tick
        self.work = draft / "work"
        self.source, self.table, self.kinds, self.sources = base.open(files, options.delimiter)
        self.parts: dict[str, str] = {}
        self.at_once = max(4, min(COLUMNS_AT_ONCE, base.memory // BYTES_PER_COLUMN))
        self.class_of: dict[str, str] = {}
        self.bins: tuple[float, ...] = ()
        self.decisions: dict[str, Decision] = {}
        self.columns = self._name_nodes()

    def _name_nodes(self) -> list[Column]:
        """Number the nodes in the order of their rows, and find out what every column is."""
        source, options = self.source, self.options
        self.name = name = options.check(source)
        self._reject_nested(source, name)
        self.tick("names", 0.0)
        self._number_names()
        self._check_names(source)
        self._split_columns()
        roles = options.roles(name)
        columns = [
            Column(column, roles[column], self._classes(source, column) if roles[column] == "label" else ())
            for column in source.columns
            if column in roles
        ]
        if options.split is not None:
            self._check_split(source, options.split)
        chosen = [column for column in source.columns if column not in roles]
        return columns + list(self._features(source, chosen))

    def _check_names(self, source: Source) -> None:
        ((self.nodes, empty, plain),) = self.base.run(
            "SELECT count(*), count(*) FILTER (name IS NULL), "
            "count(*) FILTER (try_cast(name AS BIGINT)::VARCHAR = name) FROM names"
        )
        if self.nodes == 0:
            problem = f"{source.name}: there are no rows under the header"
            raise PairNormError(problem, code="no-rows", expected="a row per node")
        whole_number("the number of nodes", self.nodes, most=MOST_NODES)
        if empty:
            problem = f"{source.name}: {empty:,} nodes have no id"
            hint = "Give every node a name of its own."
            raise PairNormError(problem, code="empty-cell", value=empty, hint=hint)
        self.whole = plain == self.nodes  # '007' and '7' may be two customers
        if self.whole:
            self.base.run("ALTER TABLE names ALTER name TYPE BIGINT")
        for (name,) in self.base.run("SELECT name FROM names GROUP BY name HAVING count(*) > 1 LIMIT 1"):
            if self._drop_repeated_rows(source):
                self._check_names(source)
                return
            problem = f"{source.name}: two nodes have the id {quoted(name)}"
            hint = "Give every node an id of its own."
            raise PairNormError(problem, code="duplicate-id", value=name, hint=hint)
        path = sql_text(str(self.draft / "ids.parquet"))
        self.base.run(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {path} (FORMAT parquet)")
        with open(self.work / "hashes", "wb") as file:
            for (hashes,) in self.base.batches(
                "SELECT hash(name) FROM names ORDER BY number", ROWS_PER_BATCH
            ):
                hashes.tofile(file)

    def _drop_repeated_rows(self, source: Source) -> bool:
        """Read the tables from a copy without exact repetitions of rows; return whether there were some."""
        names = ", ".join(map(sql_name, source.columns))
        ((rows, distinct),) = self.base.run(
            f"SELECT (SELECT count(*) FROM {self.table}), count(*) "
            f"FROM (SELECT DISTINCT {names} FROM {self.table})"
        )
        if rows == distinct:
            return False
        source.notes.append(repeated_rows_note(source.name, rows - distinct))
        copy = self.work / "nodes.parquet"
        path = sql_text(str(copy))
        self.base.run(
            f"COPY (SELECT {names} FROM (SELECT *, row_number() OVER () AS row_number_ FROM {self.table}) "
            f"QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY row_number_) = 1 "
            f"ORDER BY row_number_) TO {path} (FORMAT parquet)"
        )
        self.table, self.sources = (
            f"read_parquet({path})",
            [replace(source, load=partial(_read, copy))],
        )
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
        """Return the SQL of the tables that hold some columns, row by row."""
        parts = dict.fromkeys(self.parts[name] for name in names) if self.parts else [self.table]
        return " POSITIONAL JOIN ".join(parts)

    def _number_names(self) -> None:
        cell = as_text(self.name, self.kinds[self.name])
        self.base.run(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {cell} AS name FROM {self._tables([self.name])})"
        )

    def _texts(self, column: str, limit: int) -> dict[str, int]:
        """Return at most ``limit`` distinct texts of a column, sorted, and how many cells hold each."""
        cell = as_text(column, self.kinds[column])
        rows = self.base.run(
            f"SELECT {cell} AS c, count(*) FROM {self._tables([column])} WHERE {cell} IS NOT NULL "
            f"GROUP BY c LIMIT {limit}"
        )
        return dict(sorted(rows))

    def _classes(self, source: Source, column: str) -> tuple[str, ...]:
        options = self.options
        self._reject_nested(source, column)
        self.numbered = source.text is not None or self.kinds[column] != "VARCHAR"
        if isinstance(options.classes, int):
            return self._binned_classes(source, column, options.classes)
        counts = self._texts(column, MAX_CLASSES + 1)
        if len(counts) > MAX_CLASSES and options.classes == EACH:
            raise PairNormError(
                f"{source.name}: column {quoted(column)} holds more than {MAX_CLASSES:,} classes",
                code="too-many-classes",
                value=column,
                expected=f"from 2 to {MAX_CLASSES:,}",
            )
        each, merge = options.classes == EACH, bool(options.merge_classes)
        self.class_of = choose_classes(source, column, counts, each=each, merge=merge)
        self.classes = tuple(sorted({*self.class_of.values()}, key=numbers_first))
        return self.classes

    def _binned_classes(self, source: Source, column: str, classes: int) -> tuple[str, ...]:
        number = f"{self._number(column)}::FLOAT::DOUBLE"  # in the precision of features
        shares = [part / classes for part in range(1, classes)]
        ((cuts, low, known, filled),) = self.base.run(
            f"SELECT quantile_cont({number}, {shares}), min({number}), count({number}), "
            f"count({as_text(column, self.kinds[column])}) FROM {self._tables([column])}"
        )
        if not known or known < filled:
            reject_bins(source, column, classes)
        self.bins = cut_points(cuts, low)
        self.classes = bin_names(self.bins)
        return self.classes

    def _number(self, column: str) -> str:
        """Return the SQL of a cell as a plain number."""
        return as_number(column) if self.kinds[column] == "VARCHAR" else f"{sql_name(column)}::DOUBLE"

    def _check_split(self, source: Source, column: str) -> None:
        for text in self._texts(column, MAX_CLASSES):
            if text.lower() not in PARTS:
                reject_part(source, column, text)

    def _features(self, source: Source, names: Sequence[str]) -> Iterator[Column]:
        """Decide how to encode columns, by the rules of ``pairnorm.data.profile``."""
        plain = self._plain_numbers([name for name in names if self.kinds[name] == "VARCHAR"])
        for name in names:
            kind, options = self.kinds[name], self.options
            self._reject_nested(source, name)
            named = "category" if name in options.categorical else None
            keep = name in options.keep
            dtype = None if named else "number" if name in plain else _dtype(kind)
            if dtype is not None:
                count = None if keep else partial(self._counts, name)
                yield Column(name, source.note(name, decide_typed(dtype, name, count)).kind)
            else:
                counts = self._texts(name, MAX_SAMPLED_TEXTS)
                decision = self._decide(source, name, counts, named, keep)
                self.decisions[name] = decision
                if decision.kind == "category" and len(counts) == MAX_SAMPLED_TEXTS:
                    counts = self._texts(name, MOST_NODES)
                texts = tuple(counts) if decision.kind == "category" else ()
                yield Column(name, decision.kind, texts, decision.form)

    def _decide(
        self, source: Source, name: str, counts: Mapping[str, int], kind: str | None, keep: bool
    ) -> Decision:
        texts, numbers = np.array([*counts, None], dtype=object)[:-1], np.array([*counts.values()], np.int64)
        profile = ColumnProfile(texts, numbers)
        if len(counts) == MAX_SAMPLED_TEXTS:
            cell = as_text(name, self.kinds[name])
            ((filled, distinct),) = self.base.run(
                f"SELECT count(c), count(DISTINCT c) FROM (SELECT {cell} AS c FROM {self._tables([name])})"
            )
            profile = ColumnProfile(texts, numbers, filled, distinct)

        def reject(
            text: str | None, problem: str, code: str, value: object = name, **fields: Any
        ) -> NoReturn:
            raise PairNormError(f"{source.name}: {problem}", code=code, value=value, **fields)

        settings: dict[str, Any] = {"decimal": self.options.decimal, "kind": kind, "keep": keep}
        return source.note(name, decide(profile, name, reject, **settings))

    def _reject_nested(self, source: Source, name: str) -> None:
        """Refuse a column of lists, structures or bytes."""
        kind = self.kinds[name]
        if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION", "BLOB", "BIT", "VARIANT")):
            raise PairNormError(
                f"{source.name}: column {quoted(name)} holds values of type {kind.lower()[:60]}",
                code="not-a-cell",
                value=name,
                expected="a number or a text",
                hint="Give each of its numbers a column, or pass {ignore}.",
                ignore=[name],
            )

    def _counts(self, name: str) -> tuple[int, int, int]:
        """Return the filled cells of a column of numbers, the distinct ones, and the fractions."""
        (counts,) = self.base.run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {self._number(name)} AS c FROM {self._tables([name])})"
        )
        filled, distinct, fractions = counts
        return filled, distinct, fractions

    def _plain_numbers(self, names: Sequence[str]) -> set[str]:
        """Return the columns of text whose cells are plain numbers, without leading zeros, or missing."""
        plain = set[str]()
        for start in range(0, len(names), self.at_once):
            some = names[start : start + self.at_once]
            (row,) = self.base.run(f"SELECT {', '.join(map(has_other_text, some))} FROM {self._tables(some)}")
            plain |= {name for name, others in zip(some, row, strict=True) if not others}
        return plain

    def notes(self, encoder: Encoder) -> tuple[str, ...]:
        """Return the notes on the nodes, as ``Graph.from_files`` has them."""
        similar: list[str] = []
        if not self.whole and self.nodes <= MAX_COMPARED_IDS:
            similar = near_duplicate_notes(
                [name for (name,) in self.base.run("SELECT name FROM names ORDER BY number")]
            )
        return (*self.source.all_notes(), *similar, *encoder_notes(encoder, self.classes, self.options))


def _dtype(kind: str) -> Literal["number", "date", "duration"] | None:
    """Return what a type of DuckDB is among ours, None for text."""
    if kind == DURATION:
        return "duration"
    if kind.startswith(("DATE", "TIMESTAMP")):
        return "date"
    return "number" if kind.startswith(NUMERIC) else None


def _read(path: Path) -> pandas.DataFrame:
    import pandas

    return pandas.read_parquet(path)
