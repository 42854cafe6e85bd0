"""Open tables: text in any encoding, Parquet, Excel, JSON, compressed, standard input, or a database."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from glob import glob
from io import BufferedReader, BytesIO, RawIOBase, TextIOWrapper
from itertools import islice
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.base.files import check_path
from pairnorm.base.memory import (
    BYTES_PER_TEXT_BYTE,
    NO_LIMIT,
    MemoryLimit,
)
from pairnorm.data.frames import (
    FRAMES,
    Open,
    as_seekable,
    columns_of,
    empty_file,
    existing,
    load_library,
    read_frame,
    run_query,
)
from pairnorm.data.tables import Source, readable, shown

if TYPE_CHECKING:
    pass


Given = str | PathLike[str] | Sequence[str | PathLike[str]]

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
TABLES = (*DELIMITERS, ".parquet", ".xlsx", ".json", ".jsonl")
STDIN = "-"
COMMENT, MAX_COMMENT_LINES = ("#", "%"), 1000
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark begins it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PAR1": ".parquet",
    b"PK\x03\x04": ".xlsx",
}


def open_tables(
    role: str,
    given: Given,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    database: str | None = None,
    memory: MemoryLimit = NO_LIMIT,
) -> list[Source]:
    """Look at the head of each of some tables of one ``role``: nodes, edges or features.

    They are files, patterns, ``'-'``, or queries; options are as for ``Graph.from_files``.
    """
    if decimal is not None:
        one_of("decimal", decimal, (".", ","))
    if encoding is not None:
        _check_encoding(encoding)
    several = [given] if isinstance(given, str | PathLike) else list(given)
    if database is not None:
        return [run_query(database, fspath(query), role, memory) for query in several]
    how: dict[str, Any] = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal, "memory": memory}
    return [
        _read_stdin(role, how) if place == STDIN else open_table(place, **how, role=role)
        for place in find_files(several)
    ]


def find_files(given: Iterable[str | PathLike[str]]) -> list[Any]:
    """Return the files that names, patterns and folders of Parquet files stand for; ``'-'`` stays."""
    files: list[Any] = []
    for place in given:
        path = check_path(Path(place))
        if fspath(place) == STDIN:
            files.append(STDIN)
        elif path.is_dir() and (inside := sorted(path.glob("*.parquet"))):
            files += inside
        elif not path.exists() and any(sign in fspath(place) for sign in "*?["):
            matching = sorted(map(Path, glob(fspath(place), recursive=True)))
            if not matching:
                raise PairNormError(f"{place}: no file matches", code="file-missing", value=str(place))
            files += matching
        else:
            files.append(path)
    return files


def kind_of(path: PurePath) -> str:
    """Return the ending of a file's name, without that of a compression; a zip has that of what is inside.

    >>> kind_of(PurePath("nodes.CSV.gz"))
    '.csv'
    """
    if ".xlsx#" in path.name.lower():  # the sheet of a workbook
        return ".xlsx"
    ending = path.suffix.lower()
    if ending == ".zip" and not PurePath(path.stem).suffix and Path(path).is_file():
        with readable(path.name):
            return kind_of(PurePath(_member(Path(path))))
    return PurePath(path.stem).suffix.lower() if ending in COMPRESSED else ending


def name_of(place: str) -> str:
    """Return what is before the endings of a file's name, those of its kind and of its compression.

    >>> name_of("v1.2.csv.gz")
    'v1.2'
    """
    path = PurePath(place)
    return PurePath(path.stem).stem if path.suffix.lower() in COMPRESSED else path.stem


def open_table(
    path: Path,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    role: str = "nodes",
    memory: MemoryLimit = NO_LIMIT,
) -> Source:
    """Look at the head of one file; see ``open_tables``."""
    opened: Open
    book, _, sheet = str(path).rpartition("#")
    if book.lower().endswith(".xlsx") and not path.exists():
        frame, notes = read_frame(
            path.name, ".xlsx", partial(_plain, existing(Path(book))), f"#{sheet}", memory
        )
        return Source(
            path.name, columns_of(path.name, list(frame.columns)), frame, decimal=decimal, notes=notes
        )
    if existing(path).stat().st_size == 0:
        raise empty_file(path.name)
    kind, compression = kind_of(path), path.suffix.lower()
    if compression not in COMPRESSED and kind not in FRAMES:
        bytes_ = path.stat().st_size
        memory.check(path.name, bytes_ * BYTES_PER_TEXT_BYTE, f"a text of {bytes_:,} bytes")
    opened = partial(COMPRESSED.get(compression, _plain), path)
    return _table(path.name, kind, opened, role, delimiter, encoding, decimal, memory)


def _table(
    name: str,
    kind: str,
    opened: Open,
    role: str,
    delimiter: str | None,
    encoding: str | None,
    decimal: str | None,
    memory: MemoryLimit,
) -> Source:
    if kind == ".parquet":  # may be large, and tells its columns first
        with readable(name), opened() as file:
            parquet = load_library("pyarrow.parquet", "Parquet")
            columns = columns_of(name, parquet.read_schema(as_seekable(name, file, memory)).names)
        load = partial(read_frame, name, kind, opened, role, memory)
        return Source(name, columns, load=lambda: load()[0], decimal=decimal)
    if kind in FRAMES:
        frame, notes = read_frame(name, kind, opened, role, memory)
        return Source(name, columns_of(name, list(frame.columns)), frame, decimal=decimal, notes=notes)
    given, delimiter = delimiter, "\t" if delimiter in TAB else delimiter or DELIMITERS.get(kind, ",")
    if len(delimiter) != 1:
        problem = f"delimiter is {quoted(delimiter)}"
        raise PairNormError(problem, code="out-of-range", value=delimiter, expected="one character, or 'tab'")
    unlimited, opened = opened, partial(_limited, name, opened, memory, delimiter)
    with readable(name):
        detected, notes = (_with_mark(encoding), []) if encoding else _find_encoding(name, opened)
        is_converted = role == "edges" and given is None and _is_edge_list(opened, detected)
        if is_converted:
            notes.append(f"{name} is separated by spaces; lines that begin with # or % are comments")
            opened, detected, delimiter = partial(_open_edge_list, opened, detected), "utf-8", "\t"
        source = Source(name, (), open=opened, delimiter=delimiter, encoding=detected)
        with source.lines() as lines:
            titles = ([cell.strip() for cell in cells] for cells in lines)
            header: list[str] = next(filter(any, titles), [])
    if not header:
        raise empty_file(name)
    other = next((sign for sign in (",", ";", "\t", "|") if sign != delimiter and sign in header[0]), None)
    if len(header) == 1 and other and given is None:
        result = _table(name, kind, unlimited, role, other, encoding, decimal, memory)
        note = f"{name} is separated by {other!r}; --delimiter (delimiter=) names another sign"
        return replace(result, notes=[*result.notes, note])
    if len(header) == 1 and other:
        problem = (
            f"{name}: line 1 is one column {quoted(header[0])}: separated by {other!r}, not by {delimiter!r}?"
        )
        hint = "Pass {delimiter}."
        raise PairNormError(problem, code="wrong-delimiter", value=delimiter, hint=hint, delimiter=other)
    has_header = role != "edges" or len({*header}) == len(header)
    columns = columns_of(name, header) if has_header else tuple(f"column {n + 1}" for n in range(len(header)))
    if not has_header:
        notes.append(f"line 1 of {name} is an edge, not a header")
    return Source(
        name, columns, None, opened, None, delimiter, detected, decimal, has_header, is_converted, notes
    )


def _limited(name: str, opened: Open, memory: MemoryLimit, delimiter: str) -> IO[bytes]:
    return memory.stream(name, opened(), delimiter)


def _is_edge_list(opened: Open, encoding: str) -> bool:
    """Return whether a text begins with comments, or separates the cells of its first line by spaces."""
    with opened() as file, TextIOWrapper(file, encoding, errors="replace") as text:
        for line in islice(text, MAX_COMMENT_LINES):
            if line.startswith(COMMENT):
                continue
            if line.strip():
                cells = line.split()
                return len(cells) in (2, 3, 4) and not any(sign in line for sign in ',;|\t"')
    return False


def _open_edge_list(opened: Open, encoding: str) -> IO[bytes]:
    return BufferedReader(_SpacesAsTabs(opened, encoding))


class _SpacesAsTabs(RawIOBase):
    """The bytes of an edge list with a tab between cells, and empty lines for comments."""

    def __init__(self, opened: Open, encoding: str) -> None:
        self._text = TextIOWrapper(opened(), encoding)
        self._rest = b""

    def readable(self) -> bool:
        """Return True, as ``io`` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as ``io`` asks."""
        while len(self._rest) < len(buffer) and (lines := self._text.readlines(2**16)):
            cells = ("" if line.startswith(COMMENT) else "\t".join(line.split()) for line in lines)
            self._rest += ("\n".join(cells) + "\n").encode()
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        super().close()


def _plain(path: Path) -> IO[bytes]:
    return open(path, "rb")


def _unzip(path: Path) -> IO[bytes]:
    return zipfile.ZipFile(path).open(_member(path))


def _member(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [one.filename for one in archive.infolist() if not one.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        problem = f"it holds {len(names)} files: {shown(names)}"
        raise PairNormError(
            problem, code="unknown-contents", value=names, expected="one table", hint="Unpack it."
        )
    return names[0]


def _unzstd(path: Path | IO[bytes]) -> IO[bytes]:
    zstandard = load_library("zstandard", "zstd")
    opened: IO[bytes] = zstandard.open(path, "rb")
    return opened


COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _unzstd,
    ".zip": _unzip,
}


def _read_stdin(role: str, how: dict[str, Any]) -> Source:
    name, memory = "the standard input", how["memory"]
    data = memory.read(name, sys.stdin.buffer)
    if not data:
        problem = f"{name}: there is nothing left to read for the {role}"
        raise PairNormError(problem, code="file-empty", expected="a table; only one can be piped in")
    opened: Open = partial(BytesIO, data)
    kind = _magic(data)
    with readable(name):
        if kind in COMPRESSED:
            with COMPRESSED[kind](BytesIO(data)) as file:
                data = memory.read(name, file)
            opened, kind = partial(BytesIO, data), _magic(data)
        return _table(name, kind, opened, role, **how)


def _magic(data: bytes) -> str:
    """Return the ending that a file with these bytes would have."""
    start = data[:64].lstrip(codecs.BOM_UTF8).lstrip()
    if start.startswith((b"{", b"[")):
        with suppress(ValueError):
            json.loads(data)
            return ".json"
        return ".jsonl"
    return next((kind for magic, kind in MAGIC.items() if data.startswith(magic)), ".csv")


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:
        problem = f"encoding is {quoted(name)}"
        expected = "one that Python knows, such as 'utf-8', 'utf-16' or 'latin-1'"
        raise PairNormError(problem, code="unknown-choice", value=name, expected=expected) from error


def _with_mark(encoding: str) -> str:
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _find_encoding(name: str, opened: Open) -> tuple[str, list[str]]:
    """Return the encoding of a text by its bytes, all of them, and a note unless it is UTF-8."""
    with opened() as file:
        start = file.read(2**12)
    marked = next((encoding for mark, encoding in BYTE_ORDER_MARKS.items() if start.startswith(mark)), None)
    if marked:
        return marked, []
    odd, even = start[1::2].count(0), start[::2].count(0)
    if max(odd, even) > len(start) / 4:  # every other byte of plain UTF-16 is zero
        encoding = "utf-16-le" if odd > even else "utf-16-be"
    else:
        encoding = next((one for one in ("utf-8", "cp1252") if _decodes(opened, one)), "latin-1")
    if encoding == "utf-8":
        return encoding, []
    title = {"cp1252": "Windows-1252 (Latin-1)", "latin-1": "Latin-1"}.get(encoding, encoding.upper())
    return encoding, [f"{name} is not UTF-8 and is read as {title}; --encoding (encoding=) names another"]


def _decodes(opened: Open, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    with opened() as file:
        try:
            while block := file.read(2**20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
