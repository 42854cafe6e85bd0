"""Rows shared out among threads, in ranges that do not depend on how many threads there are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

# With fewer multiplications than this, to wake a thread takes longer than the work it would share.
WORTH_A_THREAD = 2**22


def share_out(rows: int, rows_per_task: int, work: Callable[[int, int], Any]) -> None:
    """Let ``torch.get_num_threads()`` threads work on ranges of rows.

    Args:
        rows: how many there are.
        rows_per_task: how many are a range.
        work: is called with the first row of a range and the one after its last, and releases the GIL.
    """
    starts = range(0, rows, rows_per_task)
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        for start in starts:
            work(start, min(start + rows_per_task, rows))
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: work(start, min(start + rows_per_task, rows)), starts))
