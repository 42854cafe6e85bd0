"""Run a propagation in a process of its own; print the peak of its memory and what was planned.

Usage: peak.py GRAPH FOLDER NORM IMPUTATION
"""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from pairnorm.data import Graph
from pairnorm.train import propagation as propagation_module
from pairnorm.train.block_ops import make_plan
from pairnorm.train.propagation import Propagation


def main(graph: str, folder: str, norm: str, imputation: str) -> None:
    propagation_module.IMPUTATION_STEPS = 2  # further steps use the same two states
    packed, peak, done = Graph.open(graph), [0], threading.Event()

    def sample() -> None:
        process = psutil.Process()
        while not done.is_set():
            info = process.memory_info()  # the system can drop shared pages, which are mapped from files
            peak[0] = max(peak[0], info.rss - info.shared)
            time.sleep(0.002)

    thread = threading.Thread(target=sample)
    thread.start()
    rows = np.arange(0, packed.facts.nodes, 100)
    plan = make_plan(packed.facts, len(rows), 2, 10**12)
    propagation = Propagation(packed, Path(folder), rows, (1, 2), plan.width, imputation, norm)
    propagation.run()
    propagation.logits(
        np.ones((packed.facts.features, 5), np.float32), np.zeros(5, np.float32), 2, Path(folder) / "out"
    )
    done.set()
    thread.join()
    print(peak[0], plan.peak(plan.width))


if __name__ == "__main__":
    main(*sys.argv[1:])
