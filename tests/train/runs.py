"""Program of a long run, which tests interrupt or kill."""

import sys
from pathlib import Path

from pairnorm.data import csbm
from pairnorm.train import Progress, Spec, Store, run

GRAPH = {"nodes": 200, "classes": 4, "features": 60, "seed": 1}
SHORT = [Spec("csbm", "GCN", depth, epochs=20) for depth in (1, 2)]
LONG = [Spec("csbm", "GCN", depth, epochs=500_000) for depth in (3, 4)]
SEEDS = range(2)


def print_progress(progress: Progress) -> None:
    print(progress.done, progress.total, progress.label, flush=True)


if __name__ == "__main__":
    path, workers = sys.argv[1:]
    graphs = {"csbm": csbm(**GRAPH)}
    with Store(Path(path)) as store:
        # Long jobs start first; so that some finish, the short ones are a separate run.
        for specs, count in ((SHORT, 1), (LONG, int(workers))):
            pairs = [(spec, seed) for spec in specs for seed in SEEDS]
            run(pairs, store, device="cpu", graphs=graphs, workers=count, progress=print_progress)
