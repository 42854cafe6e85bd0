import csv
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from hashlib import sha256
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pairnorm
from pairnorm.base.errors import PairNormError
from pairnorm.train import store as store_module
from pairnorm.train.result import TYPES, Origin, Result, Trial
from pairnorm.train.spec import STORED_NAMES, Spec
from pairnorm.train.store import APPLICATION, SCHEMA_VERSION, Merged, Store, connect, transaction

RESULTS = Path(__file__).parents[2] / "results"


def columns(connection: sqlite3.Connection, table: str = "trials") -> dict[str, str]:
    return {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({table})")}


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a row, of the present version."""
    path = tmp_path / "results.sqlite"
    with Store(path) as store:
        store.add(SPEC, [a_trial(0)], seconds=1.0)
    return path


def test_view_has_the_columns_of_results(path: Path) -> None:
    with closing(connect(path)) as connection:
        view = columns(connection, "results")
        assert version(connection) == SCHEMA_VERSION
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
        # No write-ahead log: the one file must be complete.
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    kinds = {bool: "INTEGER", int: "INTEGER", float: "REAL"}
    assert view | {"hash": "TEXT"} == {name: kinds.get(TYPES[name], "TEXT") for name in TYPES}


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS hash, i AS seed FROM n"


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE trials", f"CREATE VIEW trials AS {ENDLESS}"],
        ["DROP VIEW results", f"CREATE VIEW results AS {ENDLESS}", f"CREATE VIEW records AS {ENDLESS}"],
        ["CREATE TRIGGER more AFTER INSERT ON trials BEGIN DELETE FROM trials; END"],
        ["CREATE VIRTUAL TABLE more USING fts5(text)"],
    ],
    ids=["trials", "records", "trigger", "virtual"],
)
def test_store_with_views_or_triggers_raises(raises: Any, path: Path, statements: list[str]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    _check_raises(raises, path, "store-damaged")


def test_endless_view_is_not_read(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP VIEW results")
        connection.execute(f"CREATE VIEW results AS {ENDLESS}")
    with Store(path) as store:
        assert store.trials(SPEC) == [a_trial(0)]
        store.export(tmp_path / "rows.csv")


def test_records_are_kept_by_collection_and_key(store: Store, tmp_path: Path) -> None:
    assert store.records("case-study") == {}
    store.write_records("case-study", {"b": {"layers": [1, 2.5]}, "a": None})
    store.write_records("evaluations", {"b": [0.1]})
    store.write_records("case-study", {"b": {"layers": [3]}})
    assert list(store.records("case-study").items()) == [("a", None), ("b", {"layers": [3]})]
    with Store(tmp_path / "other.sqlite") as other:
        other.write_records("evaluations", {"b": ["kept"], "c": 1})
        other.merge(store.path)
        assert other.records("evaluations") == {"b": ["kept"], "c": 1}
        assert other.records("case-study") == store.records("case-study")


def test_damaged_record_raises(raises: Any, store: Store) -> None:
    store.write_records("evaluations", {"a": 1})
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE records SET value = '{'")
    with raises("store-damaged"):
        store.records("evaluations")


def test_specs_protocols_and_origins_are_stored_once(tmp_path: Path) -> None:
    groups = {SPEC.replace(depth=depth): [a_trial(seed) for seed in range(3)] for depth in (2, 10, 4)}
    with Store(tmp_path / "one.sqlite") as store, Store(tmp_path / "two.sqlite") as two:
        add_trials(store, groups)
        two.add(SPEC, [a_trial(0)], seconds=1.0)
        two.merge(store.path)
        two.merge(store.path)
        for path, origins in ((store.path, 1), (two.path, 2)):
            with closing(sqlite3.connect(path)) as connection:
                counts = [
                    connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                    for table in ("protocols", "specs", "origins", "trials")
                ]
            assert counts == [1, 3, origins, 9]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "newer-store"),
        (f"PRAGMA user_version = {SCHEMA_VERSION - 1}", "older-store"),
        ("PRAGMA application_id = 5", "not-a-store"),
        *((content, "not-a-store") for content in (b"x", b"dataset,model\n" * 5, bytes(5000))),
        (b"SQLite format 3\0" + bytes(100), "not-a-store"),
    ],
)
def test_store_of_another_version_raises(raises: Any, path: Path, content: str | bytes, code: str) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(content)
    _check_raises(raises, path, code)


@pytest.mark.parametrize("statement", ["CREATE TABLE trials (seed INTEGER)", "PRAGMA user_version = 1"])
def test_database_of_another_program_raises(raises: Any, tmp_path: Path, statement: str) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    _check_raises(raises, path, "not-a-store")


def _check_raises(raises: Any, path: Path, code: str) -> None:
    before = path.read_bytes()
    for read_only in (True, False):
        with raises(code):
            connect(path, read_only=read_only)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_invalid_path_raises(raises: Any, tmp_path: Path) -> None:
    with raises("not-a-file"):
        connect(tmp_path)
    with raises("file-missing"):
        connect(tmp_path / "none.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_empty_file_is_a_new_store_but_not_readable(raises: Any, tmp_path: Path) -> None:
    path = tmp_path / "a ?name# with%20signs"
    path.touch()
    with raises("empty-store"):
        connect(path, read_only=True)
    with closing(connect(path)) as connection:
        assert version(connection) == SCHEMA_VERSION
    assert list(tmp_path.iterdir()) == [path]


def test_failed_transaction_is_rolled_back(path: Path) -> None:
    with closing(connect(path)) as connection:
        with pytest.raises(sqlite3.OperationalError), transaction(connection):
            connection.executemany("DELETE FROM trials WHERE ? = seed OR nothing()", [(0,)])
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (1,)


def test_journal_of_killed_writer_is_rolled_back_or_explained(
    raises: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = path.read_bytes()
    journal = path.with_name(f"{path.name}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # With a small cache, changes reach the file before the commit, as in an interrupted commit.
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE trials SET curves = hex(zeroblob(100000))")
        shutil.copy(path, path.with_name("copy"))
        shutil.copy(journal, path.with_name("copy-journal"))
        connection.execute("ROLLBACK")
    copy = path.with_name("copy")
    assert copy.read_bytes() != whole
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        with raises("not-writable") as caught:
            connect(copy, read_only=True)
        assert "copy it with copy-journal to where you may write" in caught.value.hint
    with closing(connect(copy, read_only=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT curves FROM trials").fetchall() == [(None,)]


METRICS = (
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "test_loss",
    "test_accuracy",
)
SPEC = Spec("cora", "GCN", 10, norm="PN-SI", missing_rate=1.0)

numbers = st.floats(width=64)
any_trial = st.builds(
    Trial,
    seed=st.integers(0, 2**63 - 1),
    diverged=st.booleans(),
    best_epoch=st.integers(0, 1000),
    **dict.fromkeys(METRICS, numbers),
    measures=st.dictionaries(st.sampled_from(["apd", "row_diff"]), numbers).map(
        lambda measures: dict(sorted(measures.items()))
    ),
    curves=st.none() | st.dictionaries(st.just("test_loss"), st.lists(numbers)),
)


def add_trials(store: Store, groups: dict[Spec, list[Trial]], seconds: float = 1.0) -> None:
    """Add the trials of several specs that were computed together."""
    pairs = [(spec, trial) for spec, trials in groups.items() for trial in trials]
    origin = Origin.here(seconds=seconds, shared_by=len(pairs), device="cpu")
    store.add_results(Result(spec, trial, origin) for spec, trial in pairs)


def a_trial(seed: int, value: float = 0.1 + 0.2, **more: Any) -> Trial:
    return Trial(seed=seed, best_epoch=seed + 1, **dict.fromkeys(METRICS, value), **more)


@settings(max_examples=40, deadline=None)
@given(st.lists(any_trial, unique_by=lambda trial: trial.seed, max_size=3))
def test_trials_round_trip_exactly_also_through_csv(group: list[Trial]) -> None:
    # By repr, which is exact for numbers, as NaN is not equal to itself.
    expected = [repr(trial) for trial in sorted(group, key=lambda trial: trial.seed)]
    with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/one.sqlite") as one:
        assert one.add(SPEC, group, seconds=1.5) == len(group) == len(one)
        assert [repr(trial) for trial in one.trials(SPEC)] == expected
        exported = one.export(f"{folder}/one.csv").read_bytes()
        with Store(f"{folder}/rebuilt.sqlite") as rebuilt:
            assert rebuilt.merge(f"{folder}/one.csv") == Merged(added=len(group), same=0, different=0)
            assert [repr(trial) for trial in rebuilt.trials(SPEC)] == expected
            assert rebuilt.export(f"{folder}/rebuilt.csv").read_bytes() == exported


def test_missing_returns_seeds_without_trials(store: Store) -> None:
    assert store.missing(SPEC, range(3)) == [0, 1, 2]
    store.add(SPEC, [a_trial(1)], seconds=1.0)
    assert store.missing(SPEC, [2, 1, 0, 2]) == [2, 0]
    assert store.missing(SPEC.replace(depth=2), [1]) == [1]


def test_first_result_is_kept(store: Store) -> None:
    assert store.add(SPEC, [a_trial(0, 0.1)], seconds=1.0) == 1
    assert store.add(SPEC, [a_trial(0, 0.2), a_trial(1, 0.2)], seconds=1.0) == 1
    assert [trial.test_loss for trial in store.trials(SPEC)] == [0.1, 0.2]


def test_add_is_atomic(raises: Any, store: Store) -> None:
    def group() -> Iterator[Trial]:
        yield a_trial(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add(SPEC, group(), seconds=1.0)
    with raises("name-taken", value="seed"):
        store.add(SPEC, [a_trial(0), a_trial(1, measures={"seed": 1.0})], seconds=1.0)
    with raises("not-a-number"):
        store.add(SPEC, [a_trial(0)], seconds=nan)
    assert len(store) == 0
    assert store.add(SPEC, [a_trial(0)], seconds=1.0) == 1


def test_row_has_spec_metrics_and_origin(store: Store) -> None:
    other = Spec("cora", "SGC", 2)
    add_trials(store, {SPEC: [a_trial(0), a_trial(1)], other: [a_trial(0)]}, seconds=6)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [
            dict(row) for row in connection.execute("SELECT * FROM results WHERE model = 'GCN' AND seed = 1")
        ]
    assert len(rows) == 1
    row = rows[0]
    for field in fields(SPEC):
        assert row[STORED_NAMES.get(field.name, field.name)] == getattr(SPEC, field.name)
    assert (row["hash"], row["seconds"], row["shared_by"], row["best_epoch"]) == (SPEC.hash, 6.0, 3, 2)
    assert (row["pairnorm_version"], row["torch_version"]) == (pairnorm.__version__, torch.__version__)
    assert row["test_accuracy"] == 0.1 + 0.2


def test_where_accepts_fields_and_columns(store: Store) -> None:
    specs = [Spec("cora", "GCN", 2, method=name) for name in ("none", "GCNII")]
    add_trials(store, {spec: [a_trial(0)] for spec in specs})
    assert (
        list(store.trials_by_spec(method="GCNII")) == list(store.trials_by_spec(remedy="GCNII")) == specs[1:]
    )


def test_trials_by_spec_are_sorted_and_filtered(raises: Any, store: Store) -> None:
    specs = [Spec("cora", "GCN", depth, norm=norm) for depth in (2, 10) for norm in ("PN", "none")]
    for spec in reversed(specs):
        store.add(spec, [a_trial(1), a_trial(0)], seconds=1.0)
    assert list(store.trials_by_spec()) == specs
    assert [trial.seed for trial in store.trials_by_spec()[specs[0]]] == [0, 1]
    assert list(store.trials_by_spec(depth=10)) == specs[2:]
    assert list(store.trials_by_spec(depth=[2, 10], norm="PN", missing_rate=0)) == specs[::2]
    assert store.trials_by_spec(seed=1, depth=2, norm="PN") == {specs[0]: [a_trial(1)]}
    grouped = store.results_by_spec(depth=10)
    assert {spec: [one.trial for one in some] for spec, some in grouped.items()} == store.trials_by_spec(
        depth=10
    )
    assert [one for some in grouped.values() for one in some] == store.results(depth=10)
    assert store.trials_by_spec(dataset="citeseer") == {}
    with raises("unknown-choice", value="dept"):
        store.trials_by_spec(dept=2)


def test_frame_has_a_column_per_measure(store: Store) -> None:
    empty = store.frame()
    store.add(SPEC, [a_trial(0, nan, diverged=True), a_trial(1, measures={"row_diff": 2.5})], seconds=1.0)
    frame = store.frame()
    assert list(frame.columns) == [*empty.columns, "row_diff"]
    assert frame["diverged"].tolist() == [True, False]
    assert frame["diverged"].dtype == empty["diverged"].dtype == bool
    assert frame["depth"].dtype == empty["depth"].dtype == np.int64
    assert isnan(frame["test_loss"][0])
    assert frame["test_loss"][1] == 0.1 + 0.2
    assert isnan(frame["row_diff"][0])
    assert frame["row_diff"][1] == 2.5
    assert store.frame(seed=1)["row_diff"].tolist() == [2.5]


def test_export_depends_on_trials_only(tmp_path: Path, store: Store) -> None:
    groups = {
        SPEC.replace(depth=depth): [a_trial(seed, 1 / depth) for seed in range(3)] for depth in (2, 10, 4)
    }
    add_trials(store, groups, seconds=1 / 3)
    exported = store.export(tmp_path / "one.csv").read_bytes()
    with Store(tmp_path / "backwards.sqlite") as other:
        lines = (tmp_path / "one.csv").read_text().splitlines()
        (tmp_path / "backwards.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
        other.merge(tmp_path / "backwards.csv")
        assert other.export(tmp_path / "other.csv").read_bytes() == exported


def test_export_is_readable_by_pandas(raises: Any, tmp_path: Path, store: Store) -> None:
    store.add(SPEC, [a_trial(0, nan), a_trial(1, measures={"row_diff": 1 / 3})], seconds=1.0)
    frame = store.frame()
    with store.export(tmp_path / "new folder" / "one.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert [first[name] for name in ("test_loss", "row_diff", "curves", "diverged")] == [
        "nan",
        "",
        "",
        "False",
    ]
    assert (float(second["test_loss"]), float(second["row_diff"])) == (0.1 + 0.2, 1 / 3)
    assert second["device"] == frame["device"][1]
    with raises("unknown-choice", value=".txt"):
        store.export(tmp_path / "one.txt")


def test_failed_export_keeps_the_old_file(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = store.export(tmp_path / "one.csv")
    before = target.read_bytes()
    store.add(SPEC, [a_trial(0)], seconds=1.0)
    monkeypatch.setattr("pairnorm.train.result.csv.writer", lambda file, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.export(target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "one.csv"]


def test_copied_store_is_merged_back(raises: Any, tmp_path: Path, store: Store) -> None:
    store.add(SPEC, [a_trial(0), a_trial(1, nan)], seconds=1.0)
    # The one file is complete while the store is still open.
    shutil.copy(store.path, tmp_path / "away.sqlite")
    with Store(tmp_path / "away.sqlite") as away:
        assert away.missing(SPEC, range(4)) == [2, 3]
        away.add(SPEC, [a_trial(2), a_trial(3, 0.4)], seconds=1.0)
    store.add(SPEC, [a_trial(3, 0.3)], seconds=1.0)
    assert store.merge(tmp_path / "away.sqlite") == Merged(added=1, same=2, different=1)
    assert [trial.test_loss for trial in store.trials(SPEC)][2:] == [0.1 + 0.2, 0.3]
    assert store.merge(tmp_path / "away.sqlite") == Merged(added=0, same=3, different=1)
    assert store.merge(store.path) == Merged(added=0, same=4, different=0)
    with raises("file-missing"):
        store.merge(tmp_path / "nowhere.sqlite")
    assert not (tmp_path / "nowhere.sqlite").exists()


@pytest.mark.parametrize("by_flag", [True, False])
def test_write_protected_file_is_readable(
    raises: Any, store: Store, by_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(SPEC, [a_trial(0)], seconds=1.0)
    store.path.chmod(0o444)
    if not by_flag:  # root may write whatever the mode says
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with Store(store.path, read_only=by_flag) as reader:
        assert reader.read_only
        assert reader.trials(SPEC) == [a_trial(0)]
        with raises("read-only"):
            reader.add(SPEC, [a_trial(1)], seconds=1.0)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("DELETE FROM trials")


def _run_writers(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("writers.py")), *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _check_store(path: Path, reported: set[str]) -> dict[Spec, list[Trial]]:
    """Check that the file is valid and has every reported group, none in part."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with Store(path) as store:  # on a slow machine, all writers may be killed before there is a table
        groups = store.trials_by_spec()
    assert reported <= {spec.hash for spec in groups}
    for group in groups.values():
        assert [trial.seed for trial in group] == list(range(10))
        assert len({trial.best_epoch for trial in group}) == 1, "two writers wrote one group"
        assert all(trial.curves == group[0].curves for trial in group)
    return groups


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
def test_kill_loses_at_most_the_unfinished_write(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with _run_writers("killed", path, 5) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = output.split()
    assert lines.count("half-written") == 5, "no writer was killed while it wrote"
    reported = set(lines) - {"half-written"}
    groups = _check_store(path, reported)
    killed = {spec.dataset for spec in groups}
    assert len(groups) <= len(reported) + len(killed)
    with Store(path) as store:
        assert store.add(SPEC, [a_trial(0)], seconds=1.0) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
def test_concurrent_writers(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with _run_writers("together", path, 4, 6) as process:
        while process.poll() is None:
            if path.exists():
                with Store(path) as reader:
                    assert all(len(group) == 10 for group in reader.trials_by_spec().values()), (
                        "a part of a group is visible"
                    )
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    groups = _check_store(path, set(output.split()))
    names = [*(f"own-{writer}" for writer in range(4)), "shared"]
    assert set(groups) == {Spec(name, "GCN", depth) for name in names for depth in range(1, 7)}


def test_first_write_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.sqlite"
    with Store(path) as store:
        assert (len(store), store.trials_by_spec(), store.missing(SPEC, [1])) == (0, {}, [1])
        assert not path.parent.exists()
        with Store(path) as other:
            other.add(SPEC, [a_trial(0)], seconds=1.0)
        assert store.trials(SPEC) == [a_trial(0)], "the write of another is visible"


def test_check_writable_raises_early(store: Store) -> None:
    store.check_writable()
    before = store.path.read_bytes()
    store.check_writable()
    assert len(before) == len(store.path.read_bytes())
    in_the_way = store.path / "results.sqlite"
    with pytest.raises(PairNormError), Store(in_the_way) as other:
        other.check_writable()


def test_locked_store_raises(raises: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0)
    with Store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with raises("store-locked"):
            store.add(SPEC, [a_trial(1)], seconds=1.0)
        with raises("store-locked"):
            store.trials_by_spec()
        other.execute("ROLLBACK")
        assert store.add(SPEC, [a_trial(1)], seconds=1.0) == 1


def test_damaged_page_raises(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with Store(path) as store:
        add_trials(store, {SPEC.replace(depth=depth): [a_trial(0)] for depth in range(1, 500)})
    whole, codes = path.read_bytes(), set()
    for page in range(1, len(whole) // 4096):
        path.write_bytes(whole[: 4096 * page] + b"\xff" * 4096 + whole[4096 * (page + 1) :])
        try:
            with Store(path) as store:
                store.results()
                store.add(SPEC.replace(depth=600), [a_trial(0)], seconds=1.0)
        except PairNormError as error:
            codes.add(error.code)
    assert codes == {"store-damaged"}


def test_damage_with_invalid_text_raises(raises: Any, path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE VIEW results", b"CREATE \x83IEW results"))
    with raises("store-damaged"):
        Store(path, read_only=True)


def test_full_disk_raises_and_loses_nothing(raises: Any, path: Path) -> None:
    with Store(path) as store:
        assert store._connection is not None
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with raises("not-writable"):
            store.add(SPEC, [a_trial(1, curves={"test_loss": [0.1] * 10_000})], seconds=1.0)
        assert store.trials(SPEC) == [a_trial(0)]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.sqlite")), ids=lambda path: path.name)
def test_specs_of_committed_stores_keep_their_hashes(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        stored = {hash for (hash,) in connection.execute("SELECT printf('%016x', hash) FROM specs")}
    with Store(path, read_only=True) as store:
        specs = list(store.trials_by_spec())
    assert {spec.hash for spec in specs} == stored
    assert all(Spec.parse(spec.text) == Spec.parse(str(spec)) == spec for spec in specs[:: len(specs) // 500])


def test_specs_with_two_older_texts_are_read_as_one(tmp_path: Path) -> None:
    """Bug: of two specs that differ in a field without effect only one was read; exports were refused."""
    idle, canonical = Spec("cora", "GCN", 8, skip=2), Spec("cora", "GCN", 2)
    as_written = canonical.text.replace("skip=0", "skip=2")
    with Store(tmp_path / "s.sqlite") as store:
        add_trials(store, {idle: [a_trial(0)], canonical: [a_trial(1)]})
        exported = store.export(tmp_path / "s.csv")
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("UPDATE specs SET depth = 2")
        assert {seed.seed for seed in store.trials_by_spec()[canonical]} == {0, 1}
    hash_ = sha256(as_written.encode()).hexdigest()[:16]
    text = exported.read_text().replace(idle.hash, hash_).replace(",GCN,8,", ",GCN,2,")
    exported.write_text(text)
    with Store(tmp_path / "other.sqlite") as other:
        assert other.merge(exported) == Merged(2, 0, 0)
        assert [trial.seed for trial in other.trials(canonical)] == [0, 1]
