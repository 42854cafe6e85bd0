import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from pairnorm.train.memory import keep_freed_memory
if {keep}:
    keep_freed_memory()
def epoch():
    states = [torch.ones(2**20) for _ in range(20)]
epoch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    epoch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is the C library of Linux")
def test_memory_that_was_freed_comes_without_page_faults():
    faults = {
        keep: int(subprocess.check_output([sys.executable, "-c", PROGRAM.format(keep=keep)]))
        for keep in (False, True)
    }
    pages = 5 * 20 * 2**20 * 4 // 4096
    assert faults[True] < pages / 10
    assert faults[True] < faults[False]
