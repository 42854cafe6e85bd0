"""Pack tables of nodes: number the ids, decide how to encode each column, write features in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted, whole_number
from pairnorm.data.encoder import EACH, Column, ColumnOptions, Encoder
from pairnorm.data.labels import PARTS, bin_names, choose_classes, cut_points, numbers_first
from pairnorm.data.names import near_duplicate_notes, repeated_rows_note
from pairnorm.data.nodes import encoder_notes
from pairnorm.data.packed import MOST_NODES, ROWS_PER_BATCH
from pairnorm.data.profile import (
    DROPPED_NAMES,
    DURATIONS_NOTE,
    EMPTY_NOTE,
    ID_NAME,
    MAX_CATEGORIES,
    ColumnProfile,
    Decision,
    date_note,
    decide,
    is_row_id,
    parse_dates,
    parse_numbers,
)
from pairnorm.data.queries import (
    DURATION,
    NUMERIC,
    Database,
    Files,
    as_id,
    as_number,
    as_text,
    filled_cell,
    sql_list,
    sql_name,
    sql_text,
)
from pairnorm.data.tables import Source

MAX_CLASSES = 10_000
# Distinct texts of a column from which its encoding is decided.
MAX_SAMPLED_TEXTS = 100_000
# Nodes up to which ids are compared for near-duplicates.
MAX_COMPARED_IDS = 1_000_000
# DuckDB takes time for the plan of a query with the square of its columns, and memory for each of them.
COLUMNS_AT_ONCE, BYTES_PER_COLUMN = 64, 2 * 10**7

Tick = Callable[[str, float], None]
Feature = tuple[str, Callable[[NDArray[Any]], NDArray[np.float64]] | None]


class NodePacker:
    """The tables of nodes on their way into a folder.

    Args:
        base: where their names are numbered, in the table ``names``.
        draft: the folder; what is not to stay goes to ``work`` in it.
        files: the tables.
        options: what the columns are.
        tick: is options the stage and what share of it is done.
    """

    nodes = 0
    classes: tuple[str, ...] = ()
    numbered = False

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.options, self.tick = base, draft, options, tick
        self.work = draft / "work"
        self.source, self.table, self.kinds = base.open(files, options.delimiter)
        self.at_once = max(4, min(COLUMNS_AT_ONCE, base.memory // BYTES_PER_COLUMN))
        self.class_of: dict[str, str] = {}
        self.bins: tuple[float, ...] = ()
        self.decisions: dict[str, Decision] = {}
        self.columns = self._name_nodes()

    def _name_nodes(self) -> list[Column]:
        """Number the nodes in the order of their rows, and find out what every column is."""
        source, options = self.source, self.options
        options.check(source)
        self.name = name = source.columns[0] if options.id is None else source.column("id", options.id)
        self.label = options.label or ""
        self._reject_nested(source, name)
        self.tick("names", 0.0)
        self._number_names()
        self._check_names(source)
        named = (("label", options.label), ("split", options.split))
        roles = dict.fromkeys(options.ignore, "ignored") | {name: "id"}
        roles |= {column: role for role, column in named if column is not None}
        columns = [
            Column(column, roles[column], self._classes(source, column) if roles[column] == "label" else ())  # type: ignore[arg-type]
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
        path = sql_text(str(self.work / "nodes.parquet"))
        self.base.run(
            f"COPY (SELECT {names} FROM (SELECT *, row_number() OVER () AS row_number_ FROM {self.table}) "
            f"QUALIFY row_number() OVER (PARTITION BY {names} ORDER BY row_number_) = 1 "
            f"ORDER BY row_number_) TO {path} (FORMAT parquet)"
        )
        self.table = f"read_parquet({path})"
        self.base.run("DROP TABLE names")
        self._number_names()
        return True

    def _number_names(self) -> None:
        cell = as_text(self.name, self.kinds[self.name])
        self.base.run(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {cell} AS name FROM {self.table})"
        )

    def _texts(self, column: str, limit: int) -> dict[str, int]:
        """Return at most ``limit`` distinct texts of a column, sorted, and how many cells hold each."""
        cell = as_text(column, self.kinds[column])
        rows = self.base.run(
            f"SELECT {cell} AS c, count(*) FROM {self.table} WHERE {cell} IS NOT NULL "
            f"GROUP BY c LIMIT {limit}"
        )
        return dict(sorted(rows))

    def _classes(self, source: Source, column: str) -> tuple[str, ...]:
        options = self.options
        self._reject_nested(source, column)
        self.numbered = source.delimiter is not None or self.kinds[column] != "VARCHAR"
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
            f"count({as_text(column, self.kinds[column])}) FROM {self.table}"
        )
        if not known or known < filled:
            problem = f"{source.name}: column {quoted(column)} holds no numbers, but classes is {classes}"
            hint = "Leave it out: {classes}"
            raise PairNormError(problem, code="not-a-number", value=column, hint=hint, classes=classes)
        self.bins = cut_points(cuts, low)
        self.classes = bin_names(self.bins)
        return self.classes

    def _number(self, column: str) -> str:
        """Return the SQL of a cell as a plain number."""
        return as_number(column) if self.kinds[column] == "VARCHAR" else f"{sql_name(column)}::DOUBLE"

    def _check_split(self, source: Source, column: str) -> None:
        for text in self._texts(column, MAX_CLASSES):
            if text.lower() not in PARTS:
                problem = f"{source.name}: {quoted(text)} in column {quoted(column)}"
                expected = "'train', 'validation', 'test' or an empty cell"
                raise PairNormError(problem, code="unknown-part", value=text, expected=expected)

    def _features(self, source: Source, names: Sequence[str]) -> Iterator[Column]:
        """Decide how to encode columns, by the rules of ``pairnorm.data.profile``."""
        plain = self._plain_numbers([name for name in names if self.kinds[name] == "VARCHAR"])
        for name in names:
            kind, options = self.kinds[name], self.options
            self._reject_nested(source, name)
            named = "category" if name in options.categorical else None
            keep = name in options.keep
            if named is None and (kind.startswith(NUMERIC) or name in plain):
                if not keep and self._is_row_id(name):
                    source.note_column(DROPPED_NAMES, name)
                    yield Column(name, "ignored")
                else:
                    yield Column(name, "number")
            elif named is None and kind == DURATION:
                source.note_column(DURATIONS_NOTE, name)
                yield Column(name, "number")
            elif named is None and kind.startswith(("DATE", "TIMESTAMP")):
                source.note_column(date_note(""), name)
                yield Column(name, "date")
            else:
                decision = self._decide(source, name, named, keep)
                self.decisions[name] = decision
                texts: tuple[str, ...] = ()
                if decision.kind == "category":
                    texts = tuple(self._texts(name, MOST_NODES if named or keep else MAX_CATEGORIES))
                yield Column(name, decision.kind, texts, decision.form)

    def _decide(self, source: Source, name: str, kind: str | None, keep: bool) -> Decision:
        counts = self._texts(name, MAX_SAMPLED_TEXTS)
        texts, numbers = np.array([*counts, None], dtype=object)[:-1], np.array([*counts.values()], np.int64)
        profile = ColumnProfile(texts, numbers)
        if len(counts) == MAX_SAMPLED_TEXTS:
            cell = as_text(name, self.kinds[name])
            ((filled, distinct),) = self.base.run(
                f"SELECT count(c), count(DISTINCT c) FROM (SELECT {cell} AS c FROM {self.table})"
            )
            profile = ColumnProfile(texts, numbers, filled, distinct)

        def reject(
            text: str | None, problem: str, code: str, value: object = name, **fields: Any
        ) -> NoReturn:
            raise PairNormError(f"{source.name}: {problem}", code=code, value=value, **fields)

        decision = decide(profile, name, reject, decimal=self.options.decimal, kind=kind, keep=keep)
        for note in decision.notes:
            source.note_column(note, name)
        return decision

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

    def _is_row_id(self, name: str) -> bool:
        if not ID_NAME.search(name):
            return False
        ((filled, distinct, fractions),) = self.base.run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {self._number(name)} AS c FROM {self.table})"
        )
        return is_row_id(name, filled, distinct, not fractions)

    def _plain_numbers(self, names: Sequence[str]) -> set[str]:
        """Return the columns of text whose cells are plain numbers, without leading zeros, or missing."""
        cells = [(filled_cell(name), as_number(name)) for name in names]
        counts = self._counts(
            [
                (f"count({cell})", f"count({number})", f"coalesce(bool_or({cell} GLOB '0[0-9]*'), false)")
                for cell, number in cells
            ]
        )
        dashes = self._counts(
            [(f"count(*) FILTER (trim({sql_name(name)}) IN ('—', '–', '-'))",) for name in names]
        )
        return {
            name
            for name, (filled, numbers, padded), (dashed,) in zip(names, counts, dashes, strict=True)
            if filled == numbers and not padded and not dashed
        }

    def _counts(self, columns: Sequence[tuple[str, ...]]) -> list[tuple[int, ...]]:
        """Return what is counted of every column, a few columns at a time."""
        found = []
        for start in range(0, len(columns), self.at_once):
            some = columns[start : start + self.at_once]
            (row,) = self.base.run(f"SELECT {', '.join(chain(*some))} FROM {self.table}")
            numbers = iter(row)
            found += [tuple(islice(numbers, len(one))) for one in some]
        return found

    def notes(self, encoder: Encoder) -> tuple[str, ...]:
        """Return the notes on the nodes, as ``Graph.from_files`` has them."""
        similar: list[str] = []
        if not self.whole and self.nodes <= MAX_COMPARED_IDS:
            similar = near_duplicate_notes(
                [name for (name,) in self.base.run("SELECT name FROM names ORDER BY number")]
            )
        return (*self.source.all_notes(), *similar, *encoder_notes(encoder, self.classes, self.options))

    def write(self, dtype: str, block: int) -> dict[str, Any]:
        """Write labels, split, features and which are missing; return what ``Facts`` says of the features."""
        self._write_labels()
        features = [
            expression for column in self.columns if column.width for expression in self._expressions(column)
        ]
        moments = _Moments(len(features))
        gaps = np.memmap(self.work / "gaps", np.int32, "w+", shape=self.nodes)
        width = max(block, self.at_once // block * block)
        for start in range(0, len(features), width):
            self._write_features(features[start : start + width], start, dtype, block, moments, gaps)
            self.tick("features", min(1.0, (start + width) / len(features)))
        missing = np.zeros(3, np.int64)
        with open(self.draft / "missing", "wb") as file:
            for start in range(0, self.nodes, ROWS_PER_BATCH):
                absent = gaps[start : start + ROWS_PER_BATCH]
                kind = (absent > 0).astype("i1") + (absent == max(len(features), 1))
                kind.tofile(file)
                missing += np.bincount(kind, minlength=3)
        for column, count in zip(Encoder(tuple(self.columns)).feature_names, moments.count, strict=True):
            if count == 0:
                self.source.note_column(EMPTY_NOTE, column)
        deviation = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        return {
            "missing": (int(missing[2]), int(missing[1])),
            "known": tuple(moments.count.astype(int).tolist()),
            "mean": tuple(moments.mean.tolist()),
            "deviation": tuple(deviation.tolist()),
        }

    def _read_again(self, expressions: Sequence[str]) -> Iterator[tuple[slice, list[NDArray[Any]]]]:
        """Yield some rows and the values of expressions there, in the order of the nodes' numbers."""
        names = f"hash({as_id(self.name, self.kinds[self.name], self.whole)})"
        # With row_number DuckDB reads in the order of the rows; without, now and then it does not.
        listed = ["row_number() OVER ()", names, *expressions]
        query = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(listed))
        hashes, start = np.memmap(self.work / "hashes", np.uint64, "r"), 0
        at_once = max(1024, min(ROWS_PER_BATCH, self.base.memory // 8 // (16 * len(listed))))  # of doubles
        for _, found, *values in self.base.batches(f"SELECT {query} FROM {self.table}", at_once):
            rows = slice(start, start + len(found))
            if not np.array_equal(found, hashes[rows]):
                problem = "the nodes were not the same when they were read again"
                hint = "Leave the files alone meanwhile."
                raise PairNormError(problem, code="file-changed", hint=hint)
            yield rows, values
            start = rows.stop

    def _write_labels(self) -> None:
        training = np.zeros(len(self.classes), np.int64)
        numbers = {text: self.classes.index(name) for text, name in self.class_of.items()}
        label = self._place(self.options.label, numbers) if not self.bins else self._number(self.label)
        places = (label, self._place(self.options.split, PARTS, lower=True))
        with open(self.draft / "labels", "wb") as labels, open(self.draft / "split", "wb") as splits:
            for rows, (classes, parts) in self._read_again(places):
                if self.bins:
                    values = classes.astype(np.float32)
                    bins = np.searchsorted(self.bins, values, side="right")
                    classes = np.where(np.isnan(values), -1, bins)
                _check_labeled(classes, parts, rows.start)
                training += np.bincount(classes[parts == 0], minlength=len(training))
                classes.astype("<i4").tofile(labels)
                parts.astype("i1").tofile(splits)
        if self.options.split is not None and (training == 0).any():
            name = self.classes[int((training == 0).argmax())]
            problem = f"class {quoted(name)} has no training node"
            hint = f"Mark one of its nodes 'train' in column {quoted(self.options.split)}."
            raise PairNormError(problem, code="class-without-training", value=name, hint=hint)

    def _write_features(
        self,
        features: Sequence[Feature],
        first: int,
        dtype: str,
        block: int,
        moments: _Moments,
        gaps: NDArray[np.int32],
    ) -> None:
        """Write some columns in blocks, add to their moments, and count what every node lacks of them."""
        starts = range(0, len(features), block)
        with ExitStack() as stack:
            files = [
                stack.enter_context(open(self.draft / f"features-{(first + start) // block:04d}", "wb"))
                for start in starts
            ]
            for rows, values in self._read_again([expression for expression, _ in features]):
                found = np.empty((len(values[0]), len(values)), np.float32)
                with np.errstate(over="ignore"):
                    for place, ((_, parse), value) in enumerate(zip(features, values, strict=True)):
                        found[:, place] = value if parse is None else parse(value)
                self._check_finite(found, first, dtype)
                moments.add(found, first)
                gaps[rows] += np.isnan(found).sum(1, dtype=np.int32)
                for file, start in zip(files, starts, strict=True):
                    np.ascontiguousarray(found[:, start : start + block], dtype).tofile(file)

    def _check_finite(self, found: NDArray[np.float32], first: int, dtype: str) -> None:
        most = float(np.finfo(dtype).max)
        if (wrong := np.abs(found) > most).any():
            row, place = (int(axis[0]) for axis in np.nonzero(wrong))
            name = Encoder(tuple(self.columns)).feature_names[first + place]
            problem = f"{found[row, place]:g} in column {quoted(name)} is not finite or beyond {dtype}"
            hint = "Correct it, leave the cell empty, or pass {dtype}."
            raise PairNormError(
                problem, code="not-finite", value=float(found[row, place]), hint=hint, dtype="float32"
            )

    def _expressions(self, column: Column) -> Iterator[Feature]:
        """Yield the SQL of each feature of a column, NULL where missing, and what parses its texts."""
        name, kind = column.name, self.kinds[column.name]
        decision = self.decisions.get(name, Decision("number"))
        if column.kind == "category":
            cell = as_text(name, kind)
            yield from ((f"({cell} = {sql_text(category)})::DOUBLE", None) for category in column.categories)
        elif decision.kind == "date":
            yield as_text(name, kind), partial(parse_dates, form=decision.dates)
        elif not decision.numbers.is_plain:
            yield as_text(name, kind), partial(parse_numbers, form=decision.numbers)
        elif column.kind == "date":
            cell = sql_name(name)
            yield f"CASE WHEN isfinite({cell}) THEN epoch({cell}) / 86400 END", None
        elif kind == "VARCHAR":
            # As short as possible, because every part of it takes memory; missing words are no numbers.
            yield f"try_cast(trim({sql_name(name)}) AS DOUBLE)", None
        else:
            yield f"{sql_name(name)}::DOUBLE", None

    def _place(self, column: str | None, numbers: Mapping[str, int], lower: bool = False) -> str:
        """Return the SQL of the number of a text; -1 where it has none."""
        if column is None:
            return "-1"
        cell = as_text(column, self.kinds[column])
        cell = f"lower({cell})" if lower else cell
        return f"coalesce({list(numbers.values())}[list_position({sql_list(list(numbers))}, {cell})], -1)"


class _Moments:
    """Count, mean and squares about it of every column, merged as Chan does; NaN takes no part."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, columns))

    def add(self, values: NDArray[np.float32], first: int) -> None:
        """Take in more rows of the columns from the first on."""
        known = ~np.isnan(values)
        count = known.sum(0)
        mean = np.where(known, values, 0).sum(0, dtype=np.float64) / np.maximum(count, 1)
        squares = np.square(np.where(known, values - mean, 0)).sum(0)
        place = slice(first, first + values.shape[1])
        apart, both = mean - self.mean[place], np.maximum(self.count[place] + count, 1)
        self.squares[place] += squares + apart**2 * self.count[place] * count / both
        self.mean[place] += apart * count / both
        self.count[place] += count


def _check_labeled(classes: NDArray[Any], parts: NDArray[Any], first: int) -> None:
    if (blank := (parts >= 0) & (classes < 0)).any():
        problem = f"node {first + int(blank.argmax()) + 1:,} is in a part of the split but has no label"
        hint = "Label it, or empty its cell in the column of the split."
        raise PairNormError(problem, code="label-missing", hint=hint)
