"""Find and open files: patterns, compression, standard input, encodings; explain files that are broken."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import json
import lzma
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from io import BytesIO, TextIOWrapper
from itertools import islice
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import IO, Any

from pairnorm.base.errors import PairNormError, load_library, quoted
from pairnorm.base.files import check_path
from pairnorm.base.memory import MemoryLimit, as_file, size

PathOrPaths = str | PathLike[str] | Sequence[str | PathLike[str]]
Open = Callable[[], IO[bytes]]

STDIN = "-"
MAX_CELL = 2**24
"""Characters of a cell of text."""
# Of the memory of ``pack``, the share that the characters of a block of rows may take.
CHARS_SHARE = 8
SIGNS = (",", ";", "\t", "|")
COMMENT, MAX_COMMENT_LINES = ("#", "%"), 1000
PADDED = re.compile("0[0-9]+")
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


def find_files(paths: Iterable[str | PathLike[str]]) -> list[Any]:
    """Expand names, patterns and folders of Parquet files to files; ``'-'``, standard input, stays."""
    files: list[Any] = []
    for place in paths:
        path = check_path(Path(place))
        if "://" in fspath(place) and not path.exists():
            problem = f"{fspath(place)}: it is a URL, not a file"
            hint = "Download the file; or pass the URL of a database as {database}"
            raise PairNormError(problem, code="file-missing", value=fspath(place), hint=hint, database=...)
        if fspath(place) == STDIN:
            files.append(STDIN)
        elif path.is_dir() and (inside := sorted(path.glob("*.parquet"))):
            files += inside
        elif not path.exists() and is_pattern(fspath(place)):
            matching = sorted(map(Path, glob(fspath(place), recursive=True)))
            if not matching:
                raise PairNormError(f"{place}: no file matches", code="file-missing", value=str(place))
            files += matching
        else:
            files.append(path)
    return files


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern with ``*``, ``?`` or ``[``."""
    return any(sign in name for sign in "*?[")


def check_is_file(path: Path) -> Path:
    """Return a path if it is a file, else raise an error that names it."""
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():  # reading a pipe or a device could wait for ever
        problem = f"{path}: it is a pipe or a device"
        hint = "Write its contents to a file, or pipe them to the standard input: -"
        raise PairNormError(problem, code="not-a-file", value=str(path), expected="a regular file", hint=hint)
    problem = f"{path}: there is no such file"
    raise PairNormError(problem, code="file-missing", value=str(path), hint="Check the name and the folder.")


def check_utf8_name(path: Path) -> None:
    """Raise an error for a file whose name DuckDB cannot take."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        problem, hint = f"{path}: the name is not valid UTF-8, which DuckDB needs", "Rename the file."
        raise PairNormError(problem, code="unusable-path", value=str(path), hint=hint) from error


def file_type(path: PurePath) -> str:
    """Return a file's suffix without that of a compression; for a zip, the suffix of the file inside.

    >>> file_type(PurePath("nodes.CSV.gz"))
    '.csv'
    """
    if ".xlsx#" in path.name.lower():  # the sheet of a workbook
        return ".xlsx"
    ending = path.suffix.lower()
    if ending == ".zip" and not PurePath(path.stem).suffix and Path(path).is_file():
        with explain_read_errors(path.name):
            return file_type(PurePath(_only_member(Path(path))))
    return PurePath(path.stem).suffix.lower() if ending in COMPRESSED else ending


def name_of_files(paths: PathOrPaths) -> tuple[str, str]:
    """Return the name of the first file, with its endings (kind and compression) and without.

    >>> name_of_files("tables/v1.2.csv.gz")
    ('v1.2.csv.gz', 'v1.2')
    """
    path = Path(paths if isinstance(paths, str | PathLike) else next(iter(paths), ""))
    return path.name, PurePath(path.stem).stem if path.suffix.lower() in COMPRESSED else path.stem


def empty_file(name: str) -> PairNormError:
    """Return the error about a file without contents."""
    return PairNormError(f"{name}: the file is empty", code="file-empty", expected="a header line and rows")


@contextmanager
def explain_read_errors(name: str) -> Iterator[None]:
    """Convert any error of a reader about a broken file into an error that names the file."""
    try:
        yield
    except PairNormError as error:
        raise error.within(name) from error
    except MemoryError as error:
        problem = f"{name}: it asks for more memory than there is ({quoted(str(error))})"
        raise PairNormError(problem, code="too-large") from error
    except UnicodeDecodeError as error:
        problem = f"{name}: byte {error.start} is not {error.encoding.upper()}"
        hint = "Name the encoding of the file: {encoding}"
        raise PairNormError(problem, code="wrong-encoding", hint=hint, encoding=...) from error
    except Exception as error:
        problem = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        hint = ""
        if fields := re.match(r"Expected (\d+) fields in line (\d+), saw (\d+)", problem):
            expected, line, cells = fields.groups()
            problem = f"line {line} has {cells} cells, expected {expected}"
            hint = "Quote a cell that holds a delimiter."
        elif problem.startswith("field larger"):
            problem = f"a cell has more than {MAX_CELL:,} characters"
            hint = "The end of a quote may be missing."
        elif problem.startswith("Length of header"):
            problem, hint = "its rows have more cells than its header", "Give every column a name."
        problem = problem[:300] or type(error).__name__
        raise PairNormError(f"{name}: {problem}", code="file-damaged", hint=hint) from error


def open_plain(path: Path) -> IO[bytes]:
    """Open a file that is not compressed."""
    return open(path, "rb")


def _only_member(path: Path) -> str:
    """Return the name of the one file in a zip."""
    with zipfile.ZipFile(path) as archive:
        names = [member.filename for member in archive.infolist() if not member.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        problem, more = f"it holds {len(names)} files: {quote_names(names)}", {"hint": "Unpack it."}
        raise PairNormError(problem, code="unknown-contents", value=names, expected="one table", **more)
    return names[0]


COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: load_library("zstandard", "reading zstd").open(path, "rb"),
    ".zip": lambda path: zipfile.ZipFile(path).open(_only_member(path)),  # noqa: SIM115
}


def read_stdin(name: str, role: str, memory: MemoryLimit) -> tuple[str, bytes]:
    """Return the ending that the standard input would have as a file, and its bytes, unpacked."""
    with explain_read_errors(name):
        data = memory.read(name, sys.stdin.buffer)
        if not data:
            problem = f"{name}: there is nothing left to read for the {role}"
            raise PairNormError(problem, code="file-empty", expected="a table; only one can be piped in")
        kind = _detect_format(data)
        if kind not in COMPRESSED:
            return kind, data
        with COMPRESSED[kind](BytesIO(data)) as file:
            data = memory.read(name, file)
        return _detect_format(data), data


def _detect_format(data: bytes) -> str:
    """Return the ending that a file with these bytes would have."""
    start = data[:64].removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        return ".json"
    if start.startswith(b"{"):
        line, _, rest = data.strip().partition(b"\n")
        with suppress(ValueError, RecursionError):
            json.loads(line)
            return ".jsonl" if rest else ".json"
        return ".json"
    return next((kind for magic, kind in MAGIC.items() if data.startswith(magic)), ".csv")


@dataclass(frozen=True)
class TextFile:
    """A table in a text file: its bytes, and how to read them.

    Args:
        open: gives the bytes from the beginning.
        delimiter: separates cells.
        encoding: of the characters.
        has_header: whether the first line names the columns.
        is_converted: whether ``open`` gives other bytes than the file has: tabs for spaces, no comments.
    """

    open: Open
    delimiter: str = ","
    encoding: str = "utf-8"
    has_header: bool = True
    is_converted: bool = False

    @contextmanager
    def characters(self, errors: str = "strict") -> Iterator[IO[str]]:
        """Open the file as text."""
        with self.open() as file:
            yield TextIOWrapper(file, self.encoding, errors, newline="")

    @contextmanager
    def rows(self, errors: str = "strict") -> Iterator[Any]:
        """Give a csv reader, for long cells."""
        with long_cells(), self.characters(errors) as file:
            yield csv.reader(file, delimiter=self.delimiter, skipinitialspace=True)

    def line_of(self, row: int) -> int:
        """Return the line in which a row begins, as an editor counts them."""
        # Counted only when something is wrong, for blank lines and quoted line breaks make it slow work.
        with self.rows(errors="replace") as reader:
            seen, start = -self.has_header, 1
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    if seen == row:
                        break
                    seen += 1
                start = reader.line_num + 1
        return start

    def padded_columns(self) -> set[int]:
        """Return the positions of columns in which whole numbers have leading zeros."""
        around = rf'[^{re.escape(self.delimiter)}"\s]'
        cell = re.compile(rf"0[0-9](?<!{around}0[0-9])[0-9]*(?!{around})")
        with self.characters() as file:
            if not any(map(cell.search, file)):  # much faster than by column
                return set()
        with self.rows() as rows:
            return {place for cells in rows for place, text in enumerate(cells) if is_padded(text.strip())}


def is_padded(text: str) -> bool:
    """Return whether a text is a whole number with a leading zero, as a postcode may be."""
    return PADDED.fullmatch(text) is not None


@contextmanager
def long_cells() -> Iterator[None]:
    """Let ``csv`` take cells of up to ``MAX_CELL`` characters; its limit is global, so it is put back."""
    limit = csv.field_size_limit(MAX_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


class CountedText:
    """A text file that counts the characters read of a block of rows, up to a limit."""

    def __init__(self, name: str, file: IO[str], limit: float) -> None:
        self._name, self._file, self._limit, self.count = name, file, limit, 0

    def read(self, count: int = -1) -> str:
        """Read as a text file does."""
        text = self._file.read(count)
        self.count += len(text)
        if self.count > self._limit:
            problem = f"{self._name}: a row, or a few, have more than {int(self._limit):,} characters"
            hint = "The end of a quote may be missing. If not, allow {memory}."
            memory = size(2 * CHARS_SHARE * self._limit)
            raise PairNormError(problem, code="memory-limit", value=self.count, hint=hint, memory=memory)
        return text

    __iter__ = None  # pandas asks for it, and reads


def quote_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first few names, quoted."""
    return ", ".join(map(quoted, names[:count])) + (", …" if len(names) > count else "")


def check_encoding(name: str) -> None:
    """Raise an error unless Python knows an encoding."""
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:
        problem = f"encoding is {quoted(name)}"
        expected = "one that Python knows, such as 'utf-8', 'utf-16' or 'latin-1'"
        raise PairNormError(problem, code="unknown-choice", value=name, expected=expected) from error


def find_encoding(name: str, opened: Open) -> tuple[str, list[str]]:
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
        encoding = next((codec for codec in ("utf-8", "cp1252") if _decodes(opened, codec)), "latin-1")
    if encoding == "utf-8":
        return encoding, []
    title = {"cp1252": "Windows-1252 (Latin-1)", "latin-1": "Latin-1"}.get(encoding, encoding.upper())
    return encoding, [f"{name} is not UTF-8 and is read as {title}; --encoding (encoding=) names another"]


def _decodes(opened: Open, encoding: str) -> bool:
    """Return whether all bytes are characters of an encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with opened() as file:
        try:
            while block := file.read(2**20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def find_comments_and_spaces(opened: Open, encoding: str, max_cells: float) -> tuple[bool, bool]:
    """Return whether a text begins with comments, and whether spaces separate the cells of its first line."""
    has_comments = False
    with opened() as file, TextIOWrapper(file, encoding, errors="replace") as text:
        for line in islice(text, MAX_COMMENT_LINES):
            if line.startswith(COMMENT):
                has_comments = True
            elif line.strip():
                has_spaces = 2 <= len(line.split()) <= max_cells
                return has_comments, has_spaces and not any(sign in line for sign in ',;|\t"')
    return False, False


def find_delimiter(text: TextFile, rows: int) -> str:
    """Return the sign that splits the first rows into equally many cells, none with a quote.

    The delimiter comes first; it is returned, too, where no sign does so.
    """
    for sign in dict.fromkeys((text.delimiter, *SIGNS)):
        with replace(text, delimiter=sign).rows(errors="replace") as reader:
            first = list(islice(filter(any, reader), rows))
        has_quotes = any('"' in cell for cells in first for cell in cells)
        if not has_quotes and len({len(cells) for cells in first}) == 1 < len(first[0]):
            return sign
    return text.delimiter


def open_converted(opened: Open, encoding: str, has_spaces: bool) -> IO[bytes]:
    """Open a text as UTF-8 with empty lines for comments and, if it ``has_spaces``, a tab between cells."""
    text = TextIOWrapper(opened(), encoding)
    return as_file(_convert_lines(text, has_spaces), text)


def _convert_lines(text: IO[str], has_spaces: bool) -> Iterator[bytes]:
    """Yield lines without comments, a tab between their cells, as UTF-8."""
    while lines := text.readlines(2**16):
        rows = ("" if line.startswith(COMMENT) else line.rstrip("\r\n") for line in lines)
        if has_spaces:
            rows = ("\t".join(row.split()) for row in rows)
        yield ("\n".join(rows) + "\n").encode()


def open_text(
    name: str, opened: Open, delimiter: str, encoding: str | None, max_cells: float, may_have_spaces: bool
) -> tuple[TextFile, list[str]]:
    """Find the encoding of a text and, unless ``max_cells`` is 0, comments and cells separated by spaces."""
    if encoding is None:
        encoding, notes = find_encoding(name, opened)
    else:  # with or without a byte order mark
        is_utf8, notes = codecs.lookup(encoding).name == "utf-8", []
        encoding = "utf-8-sig" if is_utf8 else encoding
    has_comments, has_spaces = (
        find_comments_and_spaces(opened, encoding, max_cells) if max_cells else (False, False)
    )
    has_spaces &= may_have_spaces
    if not has_comments and not has_spaces:
        return TextFile(opened, delimiter, encoding), notes
    if has_spaces:
        notes.append(f"{name} is separated by spaces; lines that begin with # or % are comments")
    converted = partial(open_converted, opened, encoding, has_spaces)
    return TextFile(converted, "\t" if has_spaces else delimiter, is_converted=True), notes
