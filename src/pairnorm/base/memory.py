"""Measure memory, and parse sizes such as ``'8GB'``."""

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairnorm.base.errors import PairNormError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
ASSUMED_FREE = 4 * 10**9
"""Free memory where psutil is not installed to measure it."""


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


def anonymous_memory() -> int:
    """Return the bytes of this process that are not mapped from files; the system can drop mapped pages."""
    import psutil

    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


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
