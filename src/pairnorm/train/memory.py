"""The memory of a worker: what an epoch frees, the next one needs again."""

import ctypes
import sys

# Parameters of mallopt in glibc's malloc.h; the second is the largest value that it takes.
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 2**30), (-3, 2**25)


def keep_freed_memory() -> None:
    """Have the C library keep what is freed; by default it goes back to the system and comes page by page.

    This is for processes that train and then end. Where there is no glibc it does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(*TRIM_THRESHOLD)
        mallopt(*MMAP_THRESHOLD)
