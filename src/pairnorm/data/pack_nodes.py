"""Number the ids of tables of nodes of any size, and decide how to encode each column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pairnorm.base.errors import quoted, whole_number
from pairnorm.data.encoder import EACH, Column, ColumnOptions, Encoder
from pairnorm.data.features import class_sort_key
from pairnorm.data.labels import (
    PARTS,
    bin_names,
    choose_classes,
    cut_points,
    encoder_notes,
    known_labels,
    near_duplicate_notes,
    reject_bins,
    reject_part,
)
from pairnorm.data.packed import MAX_NODES, ROWS_PER_BATCH
from pairnorm.data.profile import Decision
from pairnorm.data.queries import Database, Files, QueriedTable, sql_text
from pairnorm.data.tables import repeated_rows_note

MAX_CLASSES = 10_000
# Nodes up to which ids are compared for near-duplicates.
MAX_COMPARED_IDS = 1_000_000

Tick = Callable[[str, float], None]


class NodeTable:
    """Tables of nodes: their ids, numbered, and how to encode each column.

    Args:
        base: where their names are numbered, in the table ``names``.
        draft: the folder; temporary files go to that of ``base``.
        files: the tables.
        options: what the columns are.
        tick: is called with the stage and the share of it that is done.
    """

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.options, self.tick = base, draft, options, tick
        self.table = QueriedTable(base, files, "nodes", options)
        self.source, self.cells = self.table.source, self.table.cells
        self.classes: tuple[str, ...] = ()
        self.class_numbers: dict[str, int] = {}
        self.bins: tuple[float, ...] = ()
        self.label_number = ""  # the SQL of a label of numbers that is cut into classes
        self.decisions: dict[str, Decision] = {}
        self.name = options.check(self.source)
        self.table.reject_nested(self.name)
        tick("names", 0.0)
        self._number_names()
        self.nodes, self.whole = self._check_names()
        self._write_names()
        label = options.label
        self.numbered = label is not None and (
            self.source.text is not None or self.cells[label].kind != "VARCHAR"
        )
        if label is not None:
            self._find_classes(label)
        for text in self.table.texts(options.split, MAX_CLASSES) if options.split is not None else ():
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
        if self.whole:
            self.base.run("ALTER TABLE names ALTER name TYPE BIGINT")
        path = sql_text(str(self.draft / "ids.parquet"))
        self.base.run(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {path} (FORMAT parquet)")
        query = "SELECT hash(name) FROM names ORDER BY number"
        with open(self.base.folder / "hashes", "wb") as file:
            for (hashes,) in self.base.batches(query, ROWS_PER_BATCH):
                hashes.tofile(file)

    def _find_classes(self, column: str) -> None:
        self.table.reject_nested(column)
        each, classes = self.options.classes == EACH, self.options.classes
        if isinstance(classes, int):
            self.bins = self._find_bins(column, classes)
            self.classes = bin_names(self.bins)
            return
        counts = known_labels(self.table.texts(column, MAX_CLASSES + 1), self.options.unknown_label)
        if len(counts) > MAX_CLASSES and each:
            problem = f"column {quoted(column)} holds more than {MAX_CLASSES:,} classes"
            expected = f"from 2 to {MAX_CLASSES:,}"
            self.source.reject(None, problem, "too-many-classes", value=column, expected=expected)
        merge = bool(self.options.merge_classes)
        class_of = choose_classes(self.source, column, counts, each=each, merge=merge)
        self.classes = tuple(sorted({*class_of.values()}, key=class_sort_key))
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.class_numbers = {text: numbers[name] for text, name in class_of.items()}

    def _find_bins(self, column: str, classes: int) -> tuple[float, ...]:
        decision, _ = self.table.decide(column, kind="number")
        if decision.kind != "number":
            reject_bins(self.source, column, classes)
        self.label_number = self.table.number(column, decision)
        number = f"nullif({self.label_number}, 'NaN'::DOUBLE)::FLOAT::DOUBLE"  # in the precision of features
        shares = [part / classes for part in range(1, classes)]
        ((cuts, low),) = self.base.run(
            f"SELECT quantile_cont({number}, {shares}), min({number}) FROM {self.table.from_([column])}"
        )
        if low is None:
            reject_bins(self.source, column, classes)
        return cut_points(cuts, low)

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
        if not self.whole and self.nodes <= MAX_COMPARED_IDS:
            names = [name for (name,) in self.base.run("SELECT name FROM names ORDER BY number")]
            similar = near_duplicate_notes(names)
        return (*self.source.all_notes(), *similar, *encoder_notes(self.encoder, self.classes, self.options))
