from types import SimpleNamespace

import pytest

from pairnorm.sweep import runner
from pairnorm.sweep.grid import Experiment, TableCell
from pairnorm.train.schedule import Running

CELL = TableCell("cora", "SGC-PN", 0)
EXPERIMENT = Experiment(
    "tiny",
    "An example",
    {"SGC-PN": {"model": "SGC", "norm": "PN", "depth": (2, 4, 8), "scale": (1.0, 10.0)}},
    missing={0: 2},
    datasets=("cora",),
)


@pytest.mark.parametrize("finished", [0, 5, 11])
def test_resumed_batch_plans_all_trials_of_its_stage(monkeypatch, finished):
    """Trials that train together have the same last bits, so that ``run`` must know those in the store."""
    planned = []
    monkeypatch.setattr(runner, "run", lambda pairs, store, **options: planned.append(list(pairs)) or 0)
    everything = list(EXPERIMENT.pairs(CELL, range(6)))
    assert len(everything) == 12
    trials = {}
    for spec, seed in everything[:finished]:
        trials.setdefault(spec, []).append(SimpleNamespace(seed=seed))
    store = SimpleNamespace(trials_by_spec=lambda: trials)
    batch = runner.Batch("tiny", [(EXPERIMENT, [CELL])])
    batch.train(store, Running("cpu"), lambda: False, lambda stage, progress: None)
    assert planned == [everything]


def test_finished_batch_plans_nothing(monkeypatch):
    planned = []
    monkeypatch.setattr(runner, "run", lambda pairs, store, **options: planned.append(list(pairs)) or 0)
    trials = {spec: [SimpleNamespace(seed=seed) for seed in range(2)] for spec in EXPERIMENT.candidates(CELL)}
    store = SimpleNamespace(trials_by_spec=lambda: trials)
    batch = runner.Batch("tiny", [(EXPERIMENT, [CELL])])
    assert batch.train(store, Running("cpu"), lambda: False, lambda stage, progress: None) == 0
    assert planned == [[]]
