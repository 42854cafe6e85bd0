"""Packing nodes: names are numbered, every column gets its kind, and features go to disk in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted, whole_number
from pairnorm.data.encoder import Column, Encoder, Options
from pairnorm.data.labels import PARTS, numbers_first, without_points
from pairnorm.data.nodes import CALLED_ID, FEWEST_NAMES, LEFT_OUT, MOST_CATEGORIES, are_names
from pairnorm.data.packed import MOST_NODES, ROWS_PER_BATCH
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
    sql_row,
    sql_text,
)
from pairnorm.data.tables import (
    BLANK,
    CODES,
    DATES,
    DAY_FIRST,
    DURATIONS,
    EITHER,
    MOSTLY,
    NO_MONTH,
    TRUTH,
    Source,
)

MOST_CLASSES = 10_000
# DuckDB takes time for the plan of a query with the square of its columns, and memory for each of them.
COLUMNS_AT_ONCE, BYTES_PER_COLUMN = 64, 2 * 10**7

Tick = Callable[[str, float], None]


class NodePacker:
    """The tables of nodes on their way into a folder.

    Args:
        base: where their names are numbered, in the table ``names``.
        draft: the folder; what is not to stay goes to ``work`` in it.
        files: the tables.
        told: what the columns are.
        tick: is told the stage and what share of it is done.
    """

    nodes = 0
    classes: tuple[str, ...] = ()
    numbered = False

    def __init__(self, base: Database, draft: Path, files: Files, told: Options, tick: Tick) -> None:
        self.base, self.draft, self.told, self.tick = base, draft, told, tick
        self.work = draft / "work"
        self.source, self.table, self.kinds = base.open(files, told.delimiter)
        self.at_once = max(4, min(COLUMNS_AT_ONCE, base.memory // BYTES_PER_COLUMN))
        self.class_of: dict[str, str] = {}
        self.dates: dict[str, str] = {}
        self.truths: set[str] = set()
        self.columns = self._name_nodes()

    def _name_nodes(self) -> list[Column]:
        """Number the nodes in the order of their rows, and find out what every column is."""
        source, told = self.source, self.told
        told.check(source)
        self.name = name = source.columns[0] if told.id is None else source.column("id", told.id)
        self.tick("names", 0.0)
        cell = as_text(name, self.kinds[name])
        self.base.run(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {cell} AS name FROM {self.table})"
        )
        self._check_names(source)
        named = (("label", told.label), ("split", told.split))
        roles = dict.fromkeys(told.ignore, "ignored") | {name: "id"}
        roles |= {column: role for role, column in named if column is not None}
        columns = [
            Column(column, roles[column], self._classes(source, column) if roles[column] == "label" else ())  # type: ignore[arg-type]
            for column in source.columns
            if column in roles
        ]
        if told.split is not None:
            self._check_split(source, told.split)
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

    def _texts(self, column: str, most: int) -> list[str]:
        """Return the different texts of a column, in order; one more than ``most`` at most."""
        cell = as_text(column, self.kinds[column])
        found = self.base.run(
            f"SELECT DISTINCT {cell} AS c FROM {self.table} WHERE {cell} IS NOT NULL LIMIT {most + 1}"
        )
        return sorted(text for (text,) in found)

    def _classes(self, source: Source, column: str) -> tuple[str, ...]:
        found = self._texts(column, MOST_CLASSES)
        if not 2 <= len(found) <= MOST_CLASSES:
            raise PairNormError(
                f"{source.name}: column {quoted(column)} holds "
                f"{'more than ' if len(found) > 1 else ''}{min(len(found), MOST_CLASSES):,} classes",
                code="too-few-classes" if len(found) < 2 else "too-many-classes",
                value=column,
                expected=f"from 2 to {MOST_CLASSES:,}",
            )
        texts = source.delimiter is not None
        self.class_of = without_points(found) if texts else dict(zip(found, found, strict=True))
        self.classes = tuple(sorted({*self.class_of.values()}, key=numbers_first))
        self.numbered = source.delimiter is not None or self.kinds[column] != "VARCHAR"
        return self.classes

    def _check_split(self, source: Source, column: str) -> None:
        for text in self._texts(column, MOST_CLASSES):
            if text.lower() not in PARTS:
                problem = f"{source.name}: {quoted(text)} in column {quoted(column)}"
                expected = "'train', 'validation', 'test' or an empty cell"
                raise PairNormError(problem, code="unknown-part", value=text, expected=expected)

    def _features(self, source: Source, names: Sequence[str]) -> Iterator[Column]:
        """Tell numbers, dates, categories and names apart, by the rule of ``pairnorm.data.nodes``."""
        counts = self._count_kinds([name for name in names if self.kinds[name] == "VARCHAR"])
        for name in names:
            kind, free = self.kinds[name], name not in (*self.told.categorical, *self.told.keep)
            filled, numbers, truths, codes, lettered = counts.get(name, (0, 0, 0, 0, 0))
            if codes:  # they are texts, of which digits are the letters
                numbers, lettered = 0, filled
            if free and self._are_names(name, filled, lettered, numbers):
                source.tell(LEFT_OUT, name)
                yield Column(name, "ignored")
            elif name in self.told.categorical:
                yield self._category(source, name, free)
            elif codes:
                source.tell(CODES, name)
                yield self._category(source, name, free)
            elif kind.startswith(NUMERIC) or (kind == "VARCHAR" and filled in (numbers, truths)):
                if kind == "VARCHAR" and filled > numbers:
                    self.truths.add(name)
                yield Column(name, "number")
            elif kind == DURATION:
                source.tell(DURATIONS, name)
                yield Column(name, "number")
            elif kind == "VARCHAR" and filled - numbers <= MOSTLY * filled:
                raise PairNormError(
                    f"{source.name}: column {quoted(name)} holds {numbers:,} numbers and "
                    f"{filled - numbers:,} texts",
                    code="not-a-number",
                    value=name,
                    hint="Correct or empty the cells, or pass {categorical}.",
                    categorical=[name],
                )
            elif dates := self._days(source, name):
                self.dates[name], form = dates
                yield Column(name, "date", form=form)
            elif kind == "VARCHAR":
                yield self._category(source, name, free)
            else:
                problem = f"{source.name}: column {quoted(name)} holds {kind.lower()}s"
                hint = "Turn them into numbers, or pass {ignore}."
                raise PairNormError(problem, code="not-a-cell", value=name, hint=hint, ignore=[name])

    def _are_names(self, name: str, filled: int, lettered: int, numbers: int) -> bool:
        kind, text = self.kinds[name], self.kinds[name] == "VARCHAR"
        if text and are_names(filled, filled, lettered, numbers):  # unless too few of them differ
            cell = filled_cell(name)
            query = f"SELECT DISTINCT {cell} FROM {self.table} WHERE {cell} IS NOT NULL"
            ((different,),) = self.base.run(f"SELECT count(*) FROM ({query})")
            return are_names(filled, different, lettered, numbers)
        if not CALLED_ID.search(name) or not (kind.startswith(NUMERIC) or (text and filled == numbers)):
            return False
        cell = as_number(name) if text else f"{sql_name(name)}::DOUBLE"
        ((filled, different, fractions),) = self.base.run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {cell} AS c FROM {self.table})"
        )
        return bool(filled == different and not fractions and filled >= FEWEST_NAMES)

    def _category(self, source: Source, name: str, free: bool) -> Column:
        found = self._texts(name, MOST_CATEGORIES if free else MOST_NODES)
        if free and len(found) > MOST_CATEGORIES:
            problem = f"{source.name}: column {quoted(name)} holds more than {MOST_CATEGORIES:,} texts"
            hint = "Pass {ignore}, or {keep} to have them all."
            raise PairNormError(
                problem, code="too-many-categories", value=name, hint=hint, ignore=[name], keep=[name]
            )
        return Column(name, "category", tuple(found))

    def _days(self, source: Source, name: str) -> tuple[str, str] | None:
        """Return the SQL of dates as days since 1970-01-01, and their form, as ``Source.dates`` does."""
        if self.kinds[name].startswith(("DATE", "TIMESTAMP")):
            source.tell_dates(name, "")
            return f"epoch({sql_name(name)}) / 86400", ""
        if self.kinds[name] != "VARCHAR":
            return None
        cell = filled_cell(name)
        for pattern, form in DATES:
            moment = f"try_strptime({cell}, {sql_text(form)})"
            if form == "ISO8601":
                moment = (
                    f"try_cast(regexp_replace(replace({cell}, ',', '.'), ' ([+-])', '\\1') AS TIMESTAMPTZ)"
                )
            ((others, swapped),) = self.base.run(
                f"SELECT count(*) FILTER (NOT regexp_full_match({cell}, {sql_text(pattern)})), "
                f"count(*) FILTER (regexp_matches({cell}, {sql_text('^' + NO_MONTH)})) FROM {self.table}"
            )
            if others:
                continue
            if swapped:
                form, moment = DAY_FIRST, moment.replace(form, DAY_FIRST)
            ((wrong,),) = self.base.run(f"SELECT count({cell}) - count({moment}) FROM {self.table}")
            if wrong:
                return None
            source.tell_dates(name, form)
            return f"epoch({moment}) / 86400", form if form in EITHER else ""
        return None

    def _count_kinds(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Return how many cells of each column are filled, numbers, truths, and have a letter.

        The last but one is whether all are codes, by the rule of ``tables.are_codes``.
        """
        cells = [(filled_cell(name), as_number(name)) for name in names]
        counts = self._counts(
            [
                (
                    f"count({cell})",
                    f"count({number})",
                    f"count(*) FILTER ({cell} IN {sql_row(TRUTH)})",
                    f"bool_and({cell} NOT GLOB '*[!0-9]*') AND bool_or({cell} GLOB '0[0-9]*')",
                )
                for cell, number in cells
            ]
        )
        # Only of texts: for every column that it is asked of, DuckDB keeps a table of all letters there are.
        texts = [place for place, (filled, numbers, *_) in enumerate(counts) if numbers < filled]
        letters = self._counts(
            [(f"count(*) FILTER (regexp_matches({cells[place][0]}, '\\p{{L}}'))",) for place in texts]
        )
        lettered = dict(zip(texts, letters, strict=True))
        return {name: (*counts[place], *lettered.get(place, (0,))) for place, name in enumerate(names)}

    def _counts(self, columns: Sequence[tuple[str, ...]]) -> list[tuple[int, ...]]:
        """Return what is counted of every column, a few columns at a time."""
        found = []
        for start in range(0, len(columns), self.at_once):
            some = columns[start : start + self.at_once]
            (row,) = self.base.run(f"SELECT {', '.join(chain(*some))} FROM {self.table}")
            numbers = iter(row)
            found += [tuple(islice(numbers, len(one))) for one in some]
        return found

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
                gone = gaps[start : start + ROWS_PER_BATCH]
                kind = (gone > 0).astype("i1") + (gone == max(len(features), 1))
                kind.tofile(file)
                missing += np.bincount(kind, minlength=3)
        for column, count in zip(Encoder(tuple(self.columns)).feature_names, moments.count, strict=True):
            if count == 0:
                self.source.tell(BLANK, column)
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
        taught = np.zeros(len(self.classes), np.int64)
        numbers = {text: self.classes.index(name) for text, name in self.class_of.items()}
        places = (self._place(self.told.label, numbers), self._place(self.told.split, PARTS, lower=True))
        with open(self.draft / "labels", "wb") as labels, open(self.draft / "split", "wb") as splits:
            for rows, (classes, parts) in self._read_again(places):
                _check_labeled(classes, parts, rows.start)
                taught += np.bincount(classes[parts == 0], minlength=len(taught))
                classes.astype("<i4").tofile(labels)
                parts.astype("i1").tofile(splits)
        if self.told.split is not None and (taught == 0).any():
            name = self.classes[int((taught == 0).argmax())]
            problem = f"class {quoted(name)} has no training node"
            hint = f"Mark one of its nodes 'train' in column {quoted(self.told.split)}."
            raise PairNormError(problem, code="class-without-training", value=name, hint=hint)

    def _write_features(
        self,
        features: Sequence[str],
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
            for rows, values in self._read_again(features):
                found = np.empty((len(values[0]), len(values)), np.float32)
                with np.errstate(over="ignore"):
                    for place, value in enumerate(values):
                        found[:, place] = value
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

    def _expressions(self, column: Column) -> Iterator[str]:
        """Yield the SQL of the features of a column; NULL where the cell is empty."""
        if column.kind == "category":
            cell = as_text(column.name, self.kinds[column.name])
            yield from (f"({cell} = {sql_text(category)})::DOUBLE" for category in column.categories)
        elif column.kind == "date":
            yield self.dates[column.name]
        elif self.kinds[column.name] == "VARCHAR":
            # As short as can be, for every part of it takes memory of its own; what is empty is no number.
            cell = f"trim({sql_name(column.name)})"
            truths = " ".join(f"WHEN {sql_text(word)} THEN {value}" for word, value in TRUTH.items())
            truth = f"(CASE {cell} {truths} END)::DOUBLE"
            yield truth if column.name in self.truths else f"try_cast({cell} AS DOUBLE)"
        else:
            yield f"{sql_name(column.name)}::DOUBLE"

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
