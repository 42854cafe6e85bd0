"""Program of processes that write groups of trials into one store, or are killed while they write."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from pairnorm.train.result import Origin, Trial
from pairnorm.train.spec import Spec
from pairnorm.train.store import Store

SEEDS = range(10)


def make_trials(writer: int) -> list[Trial]:
    """Return trials with the number of their writer, which fill many pages of the file."""
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 0.1)
    metrics |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 0.9)
    curves = {"train_loss": [float(epoch) for epoch in range(500)]}
    return [Trial(seed=seed, best_epoch=writer, **metrics, curves=curves) for seed in SEEDS]


def write(path: Path, writer: int, spec: Spec) -> None:
    with Store(path) as store:
        store.add(spec, make_trials(writer), seconds=1.0)
    # The group is stored now; one call, so that lines of several processes do not mix.
    os.write(1, f"{spec.hash}\n".encode())


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return child


def write_together(path: Path, writers: int, groups: int) -> None:
    """Each writer writes groups of its own and, in the same order as all others, groups that they share."""

    def work(writer: int) -> None:
        for number in range(1, groups + 1):
            write(path, writer, Spec(f"own-{writer}", "GCN", number))
            write(path, writer, Spec("shared", "GCN", number))

    children = [fork(lambda writer=writer: work(writer)) for writer in range(writers)]  # type: ignore[misc]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))


def write_and_be_killed(path: Path, kills: int) -> None:
    """Kill writers at random moments until ``kills`` of them had started a write, and print each of these."""
    moments = random.Random(0)
    journal = path.with_name(f"{path.name}-journal")
    for number in range(100 * kills):

        def work(number: int = number) -> None:
            for depth in count(1):
                write(path, number, Spec(f"killed-{number}", "GCN", depth))

        child = fork(work)
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if journal.exists():
            os.write(1, b"half-written\n")
            kills -= 1
        if not kills:
            break


if __name__ == "__main__":
    Origin.here(seconds=0.0, shared_by=1, device="cpu")  # asks git once, not in each child
    what, where, *numbers = sys.argv[1:]
    {"together": write_together, "killed": write_and_be_killed}[what](Path(where), *map(int, numbers))
