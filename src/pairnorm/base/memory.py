"""Measure memory, parse sizes such as ``'8GB'``, and limit the memory that reading a file may take."""

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
        limit: bytes; None for tables that are read in parts, of which only a line is limited.
        line_limit: bytes of a line of text. Default: a sixteenth of ``limit``.
    """

    limit: int | None
    line_limit: int = 0

    def __post_init__(self) -> None:
        line_limit = self.line_limit or (self.limit or ASSUMED_FREE) // MAX_LINE_SHARE
        object.__setattr__(self, "line_limit", line_limit)

    @classmethod
    def of(cls, memory: int | str | None) -> "MemoryLimit":
        """Return the limit that a user names. Default: half of the free memory."""
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
        return BufferedReader(_CountedStream(self, name, file, delimiter), CHUNK)


NO_LIMIT = MemoryLimit(None)


class _CountedStream(RawIOBase):
    """The bytes of a file, counted."""

    def __init__(self, limit: MemoryLimit, name: str, file: IO[bytes], delimiter: str | None) -> None:
        self._limit, self._name, self._file = limit, name, file
        self._delimiter = delimiter and delimiter.encode()
        self._factor = BYTES_PER_TEXT_BYTE if delimiter else BYTES_PER_JSON_BYTE
        self._total = self._cells = self._line = self._blanks = 0

    def readable(self) -> bool:
        """Return True, as ``io`` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as ``io`` asks."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._total += len(data)
        self._limit.check(self._name, self._total * self._factor, f"a text of more than {size(self._total)}")
        if self._delimiter:
            self._cells += data.count(self._delimiter) + data.count(b"\n")
            self._limit.check(
                self._name, self._cells * BYTES_PER_CELL, f"a table of more than {self._cells:,} cells"
            )
        if data:
            self._check_runs(data)
        return len(data)

    def _check_runs(self, data: bytes) -> None:
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self._line = self._line + len(data) if end < 0 and self._delimiter else len(data) - end
        self._blanks = self._blanks + len(data) if not data.strip(b" \t\r\n\0") else 0
        blank_limit = min(MAX_BLANKS, self._limit.line_limit)
        for what, count, limit in (
            ("a line", self._line, self._limit.line_limit),
            ("a run of spaces and line breaks", self._blanks, blank_limit),
        ):
            if count > limit:
                problem = f"{self._name}: {what} has more than {size(count)}, the limit is {size(limit)}"
                raise PairNormError(problem, code="memory-limit", value=count, hint="Check the file.")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
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
