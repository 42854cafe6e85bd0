"""Measure memory, parse sizes such as ``'8GB'``, and limit the memory that reading a file may take."""

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

from pairnorm.base.errors import PairNormError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
ASSUMED_FREE = 4 * 10**9
"""Free memory where psutil is not installed to measure it."""
MAX_LINE_SHARE = 16
"""A line of text may take this fraction of the limit: readers hold several copies of it."""
MAX_BLANKS = 2**24
"""Bytes of a run of spaces and line breaks, which readers skip slowly."""
BYTES_PER_TEXT_BYTE, BYTES_PER_JSON_BYTE, BYTES_PER_XML_BYTE, BYTES_PER_CELL = 2, 10, 10, 32
"""Memory that a byte of a text file, of JSON and of XML takes once it is read, and a cell of a table."""
CHUNK = 2**20


def parse_memory(memory: int | str) -> int:
    """Return bytes, from a number or a text such as ``'8GB'``, ``'500 MB'`` or ``'7.5GiB'``.

    >>> parse_memory("8GB"), parse_memory("1GiB")
    (8000000000, 1073741824)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", str(memory).strip(), re.IGNORECASE)
    if not match or float(match[1]) == 0:
        expected = "a size such as '8GB' or '500MB'"
        raise PairNormError(f"memory is {memory!r}", code="not-a-size", value=memory, expected=expected)
    unit = match[2].upper()
    return int(float(match[1]) * (2 ** (10 * list(UNITS).index(unit)) if match[3] else UNITS[unit]))


def size(count: float) -> str:
    """Return bytes as a readable text.

    >>> size(8.04e9), size(1_500)
    ('8.0GB', '2KB')
    """
    for unit, digits in (("T", 1), ("G", 1), ("M", 0), ("K", 0)):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.{digits}f}{unit}B"
    return f"{count:.0f}B"


def free_memory() -> int:
    """Return the bytes that can be allocated without swapping, within the limit of a container."""
    try:
        import psutil

        free = int(psutil.virtual_memory().available)
    except ImportError:
        free = ASSUMED_FREE
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        return min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def peak_memory() -> int | None:
    """Return the largest memory of this process so far in bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else 1024 * peak)


@dataclass(frozen=True)
class MemoryLimit:
    """The memory that reading files may take; sizes that they declare, and that are read, stay below it.

    Args:
        limit: bytes; None for tables that are read in parts; only their lines are limited.
        line_limit: bytes of a line of text. Default: a sixteenth of ``limit``.
    """

    limit: int | None
    line_limit: int = 0

    def __post_init__(self) -> None:
        line_limit = self.line_limit or (self.limit or ASSUMED_FREE) // MAX_LINE_SHARE
        object.__setattr__(self, "line_limit", line_limit)

    @classmethod
    def of(cls, memory: int | str | None) -> "MemoryLimit":
        """Return the limit in bytes or as a text such as ``'8GB'``. Default: half of the free memory."""
        return cls(free_memory() // 2 if memory is None else parse_memory(memory))

    def check(self, name: str, needed: float, what: str) -> None:
        """Raise an error if a file needs more memory than the limit; ``what`` says what takes it."""
        if self.limit is not None and needed > self.limit:
            raise PairNormError(
                f"{name}: {what}, {size(needed)} in memory, is more than the limit of {size(self.limit)}",
                code="memory-limit",
                value=int(needed),
                hint="Check the file; or allow more, {memory}, or pack the tables with `pairnorm pack`.",
                memory=size(1.2 * needed),
            )

    def check_cells(self, name: str, rows: int, columns: int) -> None:
        """Raise an error if a table of this size takes more memory than the limit."""
        needed = rows * columns * BYTES_PER_CELL
        self.check(name, needed, f"a table of {rows:,} rows and {columns:,} columns")

    def read(self, name: str, file: IO[bytes]) -> bytes:
        """Return all bytes of a file."""
        chunks, total = [], 0
        while chunk := file.read(CHUNK):
            chunks.append(chunk)
            total += len(chunk)
            self.check(name, total, "what it unpacks to")
        return b"".join(chunks)

    def stream(self, name: str, file: IO[bytes], delimiter: str | None = None) -> IO[bytes]:
        """Return a text file whose bytes are counted while they are read.

        Args:
            name: of the file in messages.
            file: is closed with the stream.
            delimiter: of the cells of a table, which are counted too; None for JSON.
        """
        return as_file(self._counted(name, file, delimiter.encode() if delimiter else None), file)

    def _counted(self, name: str, file: IO[bytes], delimiter: bytes | None) -> Iterator[bytes]:
        total = cells = line = blanks = 0
        factor = BYTES_PER_TEXT_BYTE if delimiter else BYTES_PER_JSON_BYTE
        while data := file.read(CHUNK):
            total += len(data)
            self.check(name, total * factor, f"a text of more than {size(total)}")
            if delimiter:
                cells += data.count(delimiter) + data.count(b"\n")
                self.check(name, cells * BYTES_PER_CELL, f"a table of more than {cells:,} cells")
            end = max(data.rfind(b"\n"), data.rfind(b"\r"))
            line = line + len(data) if end < 0 and delimiter else len(data) - end
            blanks = blanks + len(data) if not data.strip(b" \t\r\n\0") else 0
            for what, count, limit in (
                ("a line", line, self.line_limit),
                ("a run of spaces and line breaks", blanks, min(MAX_BLANKS, self.line_limit)),
            ):
                if count > limit:
                    problem = f"{name}: {what} has more than {size(count)}, the limit is {size(limit)}"
                    raise PairNormError(problem, code="memory-limit", value=count, hint="Check the file.")
            yield data


NO_LIMIT = MemoryLimit(None)


def as_file(chunks: Iterator[bytes], source: IO[Any]) -> IO[bytes]:
    """Return a file of chunks that are made when they are read; it closes ``source``, their origin."""
    return BufferedReader(_Chunks(chunks, source), CHUNK)


class _Chunks(RawIOBase):
    def __init__(self, chunks: Iterator[bytes], source: IO[Any]) -> None:
        self._chunks, self._source, self._rest = chunks, source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._rest or memoryview(next(self._chunks, b""))
        part, self._rest = part[: len(buffer)], part[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._source.close()
        super().close()


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn off garbage collection, which takes long among a million live objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, since returning it page by page takes time in every epoch."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD; 2**25 is the largest value that it takes
