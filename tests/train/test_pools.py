import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from pairnorm.train.pools import Workers

PROGRAM = """
import resource, torch
from pairnorm.base.memory import keep_freed_memory
def epoch():
    states = [torch.ones(2**20) for _ in range(20)]
for prepare in (lambda: None, keep_freed_memory):
    prepare()
    epoch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        epoch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is the C library of Linux")
def test_freed_memory_is_reused_without_page_faults() -> None:
    given_back, kept = map(int, subprocess.check_output([sys.executable, "-c", PROGRAM]).split())
    pages = 5 * 20 * 2**20 * 4 // 4096
    assert kept < pages / 10
    assert kept < given_back


def test_workers_end_with_a_killed_parent(group_is_gone: Any) -> None:
    program = """
import time
from pairnorm.train.pools import Workers
with Workers(2) as pool:
    pool.submit(print, "working", flush=True).result()
    for _ in range(2):
        pool.submit(time.sleep, 600)
    print("begun", flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["working\n", "begun\n"]
        os.kill(process.pid, signal.SIGKILL)
    assert group_is_gone(process.pid)


def test_workers_finish_calls_but_end_after_an_error(children_are_gone: Any) -> None:
    with Workers(1) as pool:
        done = pool.submit(torch.get_num_threads)
    assert done.result() == 1

    def fail() -> None:
        with Workers(1) as pool:
            pool.submit(time.sleep, 600)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert children_are_gone()
