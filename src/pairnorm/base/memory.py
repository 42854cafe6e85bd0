"""Memory: how much is free, how much this process holds, and texts such as ``'8GB'``."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairnorm.base.errors import PairNormError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_memory(memory: int | str) -> int:
    """Return bytes, of a number or of a text such as ``'8GB'``, ``'500 MB'`` or ``'7.5GiB'``.

    >>> parse_memory("8GB"), parse_memory("1GiB")
    (8000000000, 1073741824)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", str(memory).strip(), re.IGNORECASE)
    if not found or float(found[1]) == 0:
        expected = "a size such as '8GB' or '500MB'"
        raise PairNormError(f"memory is {memory!r}", code="not-a-size", value=memory, expected=expected)
    unit = UNITS[found[2].upper()]
    return int(float(found[1]) * (2 ** (10 * list(UNITS).index(found[2].upper())) if found[3] else unit))


def size(count: float) -> str:
    """Return bytes as a person writes them.

    >>> size(8.04e9), size(1_500)
    ('8.0GB', '2KB')
    """
    for unit, digits in (("T", 1), ("G", 1), ("M", 0), ("K", 0)):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.{digits}f}{unit}B"
    return f"{count:.0f}B"


def free_memory() -> int:
    """Return the bytes that can be had without swapping, within the limit of a container."""
    free = _field(Path("/proc/meminfo"), "MemAvailable") or 4 * 10**9
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        return min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def anonymous_memory() -> int:
    """Return the bytes that are this process's own: pages mapped from files can be dropped at any time."""
    return _field(Path("/proc/self/status"), "RssAnon")


def _field(path: Path, name: str) -> int:
    """Return a field of a file of the Linux kernel in bytes; 0 where there is none."""
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", path.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 0


@contextmanager
def without_collection() -> Iterator[None]:
    """Let Python not look for garbage meanwhile.

    Among a million objects that are none it takes long, and what it frees may not be freed here.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
