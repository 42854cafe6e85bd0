from dataclasses import replace
from pathlib import Path

import pytest

from pairnorm.data import csbm
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.runner import Batch
from pairnorm.train import Progress, Store
from pairnorm.train.schedule import Running

SGC = Experiment(
    "sgc",
    "An example",
    {"SGC": {"model": "SGC", "depth": (1, 2), "epochs": 3}},
    missing={0: 3, 100: 3},
    datasets=("csbm",),
)
GCN = replace(
    SGC,
    name="gcn",
    methods={"GCN": {"model": "GCN", "depth": (2,), "dropout": (0.0, 0.6), "epochs": 3}},
    search_runs=1,
    searched=("dropout",),
)


class Stop(Exception):
    pass


@pytest.mark.parametrize("trials", [1, 5, 9, 13, 15])
def test_resumed_batch_equals_complete_batch_bit_for_bit(tmp_path: Path, trials: int):
    """Bug: what was pending decided which trials trained together, and so the last bits of their losses."""
    graph = csbm(nodes=200, classes=4, features=60, seed=1)
    work = [(grid, list(grid.cells())) for grid in (SGC, GCN)]
    batch = Batch("both", work, graphs=lambda: {"csbm": graph}, ignore_fingerprints=True)
    running = Running("cpu", workers=1)

    def train(path: Path, most: int) -> int:
        with Store(path) as store:

            def stop(stage: str, progress: Progress) -> None:
                if len(store) >= most:
                    raise Stop

            return batch.train(store, running, lambda: False, stop)

    assert train(tmp_path / "complete.sqlite", 100) == 12 + 4 + 4
    with pytest.raises(Stop):
        train(tmp_path / "resumed.sqlite", trials)
    assert 0 < train(tmp_path / "resumed.sqlite", 100) < 20
    with Store(tmp_path / "complete.sqlite") as complete, Store(tmp_path / "resumed.sqlite") as resumed:
        assert resumed.trials_by_spec() == complete.trials_by_spec()
