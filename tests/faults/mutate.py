"""Damage done to a file, the same for the same seed: bytes, numbers, lines, and the members of archives."""

import bz2
import gzip
import io
import json
import lzma
import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zstandard

NUMBERS = (
    *(b"0", b"-1", b"1e400", b"nan", b"Infinity", b"1.5", b"null", b'"', b"[", b"{}", b"true"),
    *(str(number).encode() for number in (2**31, 2**63 - 1, 2**63, 2**70, 10**12, 10**30, -(2**63))),
)
WORDS = (b"\x00", b"\xff\xfe", b"\r", b"\n\n", b",,,,", b'"', b"<!--", b"[" * 3000, b"\x1b[31m", b"$x_$")


def _flip(data: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def _remove(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.choice((1, 4, 16, 200))]


def _repeat(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data))
    data[start:start] = data[start : start + random.choice((1, 8, 64, 500))] * random.choice((1, 2, 50))


def _insert(data: bytearray, random: Random) -> None:
    position = random.randrange(len(data))
    data[position:position] = random.choice(WORDS)


def _overwrite(data: bytearray, random: Random) -> None:
    position, size = random.randrange(len(data)), random.choice((1, 2, 4, 8))
    data[position : position + size] = random.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * size


def _number(data: bytearray, random: Random) -> None:
    """Replace a number that is written in digits."""
    digits = [position for position, byte in enumerate(data[:200_000]) if 48 <= byte <= 57]
    if digits:
        start = end = random.choice(digits)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        data[start:end] = random.choice(NUMBERS)


def _swap(data: bytearray, random: Random) -> None:
    lines = bytes(data).split(b"\n")
    one, other = (random.randrange(len(lines)) for _ in range(2))
    lines[one], lines[other] = lines[other], lines[one]
    data[:] = b"\n".join(lines)


def _lie(data: bytearray, random: Random) -> None:
    """Replace a binary number, as in an array."""
    kind = np.dtype(random.choice(("<i8", "<i4", "<f4", "i1")))
    lies = (np.nan, np.inf, -1.0, 1e30) if kind.kind == "f" else (-1, 0, 1, 100, np.iinfo(kind).max)
    start = random.randrange(len(data)) // kind.itemsize * kind.itemsize
    data[start : start + kind.itemsize] = np.array(random.choice(lies), kind).tobytes()


DAMAGE: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _cut, _remove, _repeat, _insert, _overwrite, _number, _swap, _lie),
)


# As people write numbers, or the lack of one.
WRITTEN = (
    *("24,383", " 2,175,612 ", "$1,200", "12%", "(3.5)", "—", "n/a", "1.234,56", "1 000"),
    *("1'000", "+5", "5-", "€5", "0x10", "1e3", "½", "٣", "1/2", "12:30", "3 kg", "1,2,3"),
    *(".5", "5.", "-", "NaN", "1e", "00012", "١٢", "1_000"),
)
VALUES_OF_DUCKDB = (
    *("'infinity'::DATE", "'-infinity'::TIMESTAMP", "'290000-01-01'::DATE", "NULL::INTEGER"),
    *("[1, NULL]::INTEGER[]", "{'a': [1]}::STRUCT(a INTEGER[])"),
    *("MAP {'k': 1}::MAP(TEXT, INTEGER)", "'1 year 2 days'::INTERVAL", "'101'::BIT"),
    *("uuid()::UUID", "170141183460469231731687303715884105727::HUGEINT", "'nan'::DOUBLE"),
    *("'-inf'::FLOAT", "12.34::DECIMAL(38, 10)", "'12:30:00+05'::TIMETZ", "'24:00:00'::TIME"),
    *("true::BOOLEAN", "'2020-01-01 00:00:00+05'::TIMESTAMPTZ", "'1677-10-01'::TIMESTAMP_NS"),
    *("'a'::BLOB", "255::UTINYINT"),
)
INVALID_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**63, 10**30, 10**9, 1e308, 1e-320, "", "x", "\ud800", "$", "=1+1", "\x1b[0m"),
    *(b"\x00\xff", [], [1], {}, {"a": []}, "9" * 400, "x" * 5000, "nan", "-inf", "2020-13-40", "[" * 5000),
)


def _tree(value: Any, random: Random) -> Any:
    """Return JSON with one value replaced, removed or duplicated."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        changed = value.copy()
        if random.random() < 0.15:
            del changed[key]
        elif random.random() < 0.1:
            changed = {**value, "more": 1} if isinstance(value, dict) else [*value, value[key]]
        else:
            changed[key] = _tree(value[key], random)
        return changed
    if isinstance(value, int | float) and random.random() < 0.5:
        return random.choice((-value, value + 1, value * 10, value / 2, 0, 10**9, float("nan"), float("inf")))
    return random.choice([one for one in INVALID_VALUES if not isinstance(one, bytes)])


def _json(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n") if b"\n{" in data else [data]  # a file may have one document per line
    position = random.randrange(len(lines))
    if lines[position]:
        lines[position] = json.dumps(_tree(json.loads(lines[position]), random)).encode()
    return b"\n".join(lines)


def _safetensors(data: bytes, random: Random) -> bytes:
    if random.random() < 0.5:
        return _tensors(data, random)
    size = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + size], random)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _sqlite(data: bytes, random: Random) -> bytes:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(data)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    table = random.choice([name for (name,) in connection.execute(query)])
    column = random.choice([row[1] for row in connection.execute(f"PRAGMA table_info({table})")])
    value = random.choice([one for one in INVALID_VALUES if not isinstance(one, list | dict)])
    if data[68:72] == b"Pair" and random.random() < 0.3:  # a store
        return _store_schema(connection, table, random)
    where = f'"{column}" = (SELECT "{column}" FROM {table} LIMIT 1 OFFSET {random.randrange(3)})'
    with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (value,))
    return bytes(connection.serialize())


def _store_schema(connection: sqlite3.Connection, table: str, random: Random) -> bytes:
    """Add an endless view or a trigger to a store, or replace a table by one."""
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    columns = ", ".join(f'i AS "{name}"' for name in names)
    endless = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {columns} FROM n"
    kind = random.choice(("view", "another", "trigger", "gone"))
    with suppress(sqlite3.Error):
        if kind in ("view", "gone"):
            connection.execute(f"DROP TABLE {table}")
        if kind in ("view", "another"):
            connection.execute(f"CREATE VIEW {table if kind == 'view' else 'records'} AS {endless}")
        if kind == "trigger":
            body = f"INSERT INTO trials SELECT {', '.join('i' for _ in names)} FROM ({endless})"
            connection.execute(f"CREATE TRIGGER again BEFORE INSERT ON trials BEGIN {body}; END")
    return bytes(connection.serialize())


def _cell(data: bytes, random: Random) -> bytes:
    separator = b"\t" if b"\t" in data else b","
    rows = [line.split(separator) for line in data.split(b"\n")]
    if random.random() < 0.3:  # a whole column in spellings of people
        column, ways = random.randrange(len(rows[0])), random.sample(WRITTEN, random.choice((1, 3, 9)))
        for row in rows[1:]:
            row[column : column + 1] = [f'"{random.choice(ways)}"'.encode()] * (column < len(row))
        return b"\n".join(separator.join(cells) for cells in rows)
    row = random.choice(rows[:3] if random.random() < 0.3 else rows)
    cell = str(random.choice(INVALID_VALUES)).encode("utf-8", "surrogatepass")
    row[random.randrange(len(row))] = random.choice((cell, *NUMBERS))
    return b"\n".join(separator.join(cells) for cells in rows)


def _duckdb(data: bytes, random: Random) -> bytes:
    """Change the type of a column, or insert values specific to DuckDB."""
    import duckdb

    value = random.choice(VALUES_OF_DUCKDB)
    kind = value.rpartition("::")[2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.duckdb"
        path.write_bytes(data)
        with duckdb.connect(path) as base, suppress(duckdb.Error):
            table = random.choice(("nodes", "edges"))
            column = random.choice([name for name, *_ in base.execute(f"DESCRIBE {table}").fetchall()])
            condition = random.choice(("", " WHERE rowid = 3"))
            base.execute(f'ALTER TABLE {table} ALTER "{column}" TYPE {kind} USING NULL')
            base.execute(f'UPDATE {table} SET "{column}" = {value}{condition}')
        return path.read_bytes()


def _tensors(data: bytes, random: Random) -> bytes:
    """Give a saved tensor another dtype, rank or shape, with a header that is right; or leave it out."""
    from safetensors.numpy import load, save

    tensors = load(data)
    name = random.choice(sorted(tensors))
    value = tensors.pop(name)
    dtype = random.choice((np.float16, np.float64, np.int64, np.int8, np.bool_, np.uint32, np.complex64))
    changes = [value.astype(dtype), value.reshape(-1), value[None], value * 0 - 1, value * 0 + 100]
    if value.ndim:
        changes += [value[:0], value.T, value.repeat(2, axis=0)]
    if value.dtype.kind == "f":
        changes += [np.full_like(value, np.nan), np.full_like(value, np.inf)]
    if random.random() < 0.9:
        tensors[name] = np.ascontiguousarray(random.choice(changes))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return bytes(save(tensors, header.get("__metadata__")))


def _parquet(data: bytes, random: Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(data))
    count, position = table.num_rows, random.randrange(table.num_columns)
    columns = (
        pyarrow.array([b"\xff\x00"] * count),
        pyarrow.array([[1, 2]] * count),
        pyarrow.array([{"a": 1}] * count),
        pyarrow.array([None] * count),
        pyarrow.array([datetime(2020, 1, 1)] * count),
        pyarrow.array([Decimal("1e20")] * count),
        pyarrow.array(["a"] * count).dictionary_encode(),
        pyarrow.array([float("nan"), float("inf")] * (count // 2)),
        pyarrow.array([2**63 - 1, None] * (count // 2)),
        pyarrow.array([2**64 - 1] * count, pyarrow.uint64()),
        pyarrow.array([True] * count),
        pyarrow.array([timedelta(1)] * count),
        pyarrow.array([random.choice((2**52, -(2**40), 10**13))] * count, pyarrow.timestamp("s")),
        pyarrow.array([10**7] * count, pyarrow.date32()),
        pyarrow.array([86_399] * count, pyarrow.time32("s")),
        pyarrow.array([[("k", 1)]] * count, pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        pyarrow.array([2**63] * count, pyarrow.decimal256(76, 30)),
        pyarrow.array([b"ab"] * count, pyarrow.binary(2)),
        pyarrow.array([1.5] * count, pyarrow.float16()),
    )
    name = random.choice((table.column_names[position], "", table.column_names[0], "x" * 3000))
    target = io.BytesIO()
    parquet.write_table(table.set_column(position, name, random.choice(columns)), target)
    return target.getvalue()


def _structured(data: bytes) -> Callable[[bytes, Random], bytes] | None:
    """Return the function that damages values of a format but keeps it readable, if there is one."""
    if data[:1] == b"{":
        return _json
    if data[:6] == b"SQLite":
        return _sqlite
    if data[:4] == b"PAR1":
        return _parquet
    if data[8:12] == b"DUCK":
        return _duckdb
    if data[8:9] == b"{":
        return _safetensors
    return _cell if data[:300].isascii() and data[:1].isalpha() and data[:2] != b"PK" else None


BOMB_SHARE, BOMB_BYTES, BOMB_KEYS = 0.01, 2**29, 20_000
"""Share of files made to unpack to far more than their size, and the number of bytes or columns."""


def _bomb(data: bytes, random: Random) -> bytes | None:
    """Return a small file of the same format that unpacks to a large one, where there is one."""
    unit = random.choice((b"a", b"\n", b" ", b"1,2,3\n", b"\x00"))
    block = unit * (2**20 // len(unit))
    repeated = BOMB_BYTES // len(block)
    for magic, pack in ((b"\x1f\x8b", gzip.compress), (b"BZh", bz2.compress), (b"\xfd7zXZ", lzma.compress)):
        if data.startswith(magic):
            return data + pack(block) * repeated  # concatenated streams are one stream
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return bytes(zstandard.compress(zstandard.decompress(data, 2**24) + block * repeated))
    if b"<graphml" in data[:300]:
        key = '<key id="k{0}" for="node" attr.name="{0}" attr.type="int"><default>1</default></key>'
        keys = (key.format(number) for number in range(BOMB_KEYS))
        return data.replace(b"<key", "".join(keys).encode() + b"<key", 1)
    if data[:2] == b"PK" and b"xl/worksheets/" in data and random.random() < 0.5:
        return _far_cell(data, random)
    if data[:2] == b"PK":
        target = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(data)) as old,
            zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in old.namelist():
                end = block * (repeated // 8) if name.endswith((".csv", ".xml", ".npy")) else b""
                new.writestr(name, old.read(name) + end, compresslevel=1)
        return target.getvalue()
    if data[:4] == b"PAR1":
        from pyarrow import parquet

        table, target = parquet.read_table(io.BytesIO(data)), io.BytesIO()
        with parquet.ParquetWriter(target, table.schema) as writer:
            part = table.take([0] * 10**6)
            for _ in range(20):
                writer.write_table(part)
        return target.getvalue()
    return data + block * 64 if data[:1] in b"{[" or data[:1].isalpha() else None


def _far_cell(data: bytes, random: Random) -> bytes:
    """Move the last cell of each sheet of a workbook to the last possible row and column."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.startswith("xl/worksheets/"):
                row = b'<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>'
                content = re.sub(b'<dimension ref="[^"]*"', b'<dimension ref="A1:XFD1048576"', content)
                content = content.replace(b"</sheetData>", row)
            new.writestr(name, content)
    return target.getvalue()


def mutated(data: bytes, random: Random) -> bytes:
    """Return a damaged file: its bytes, or what they mean; members of archives keep the right checksums."""
    if random.random() < BOMB_SHARE and (bomb := _bomb(data, random)) is not None:
        return bomb
    structured = _structured(data)
    if structured is not None and random.random() < 0.6:
        return structured(data, random)
    if data[:2] == b"PK" and random.random() < 0.6:
        return _archive(data, random)
    if data[:2] == b"\x1f\x8b" and random.random() < 0.6:
        return gzip.compress(mutated(gzip.decompress(data), random))
    if data[:4] not in (b"SQLi", b"PAR1") and data[:1] not in b"{<" and random.random() < 0.2:
        return _header(data, random)
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        if changed:
            random.choice(DAMAGE)(changed, random)
    return bytes(changed)


def _header(data: bytes, random: Random) -> bytes:
    """Damage the first bytes only, where sizes and offsets stand."""
    head = bytearray(data[:400])
    random.choice((_flip, _overwrite, _number))(head, random)
    return bytes(head) + data[400:]


def _archive(data: bytes, random: Random) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        names = old.namelist()
        victim = random.choice(names)
        for name in names:
            content = old.read(name)
            if name == victim:
                content = _member(content, random)
            new.writestr(name, content)
    return target.getvalue()


def _member(content: bytes, random: Random) -> bytes:
    """Damage one array or other member of an archive; an array may stay readable with wrong values."""
    if content[:6] != b"\x93NUMPY" or random.random() < 0.3:
        return mutated(content, random)
    values = np.load(io.BytesIO(content), allow_pickle=False)
    if values.dtype.kind in "iuf" and values.size:
        values = values.copy()
        position = random.randrange(values.size)
        lies = (-1, 0, 10**9, 2**62, values.size, values.size + 1)
        if values.dtype.kind == "f":
            values.flat[position] = random.choice((np.nan, np.inf, -1.0, 1e300, 0.0))
        else:
            bounds = np.iinfo(values.dtype)
            values.flat[position] = min(max(random.choice(lies), bounds.min), bounds.max)
        if random.random() < 0.3:
            values = values[: random.randrange(values.size)] if values.ndim == 1 else values.T
    written = io.BytesIO()
    np.save(written, values)
    return written.getvalue()
