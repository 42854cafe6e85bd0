"""Stores of synthetic trials: one confirms the claims of the paper, one contradicts them."""

from pathlib import Path
from random import Random

from pairnorm.paper.evidence import Layers, write_layers
from pairnorm.paper.experiments import CASE_STUDY, EXPERIMENTS, Selection
from pairnorm.paper.runner import BINS
from pairnorm.sweep.grid import Experiment
from pairnorm.train import Spec, Store, Trial
from pairnorm.train.result import Origin, Result

SMALL = Selection(("all",), runs=2, epochs=7, depths=(2, 4, 8))


def accuracy(spec: Spec, contrary: bool = False) -> float:
    """Return a plausible accuracy: depth hurts, but with PairNorm it helps where much is missing."""
    normalized = spec.norm != "none"
    if contrary:
        normalized = not normalized
    helped = normalized or spec.skip > 0
    missing = spec.missing_rate
    peak = 2 + (6 * missing if helped else 0)
    level = 0.8 - (0.08 if helped else 0.3) * missing - (0.015 if normalized and missing < 0.5 else 0.0)
    gradient = 0.002 if helped else 0.01
    preferred = 0.001 * (spec.scale == 10) + 0.01 * (spec.learning_rate == 0.05)
    preferred += 0.004 * (spec.norm == "PN-SI") - 0.02 * (spec.order == "before")
    preferred += 0.003 * (spec.adjacency == "rw")
    return level - gradient * abs(spec.depth - peak) + preferred


def trial(spec: Spec, seed: int, contrary: bool = False) -> Trial:
    chance = Random(f"{spec.text} {seed}")
    right = accuracy(spec, contrary) + chance.uniform(-0.0005, 0.0005)
    depth = 60 - spec.depth if contrary else spec.depth
    shrink = 0.9**depth if spec.norm == "none" else 1.0
    return Trial(
        seed=seed,
        best_epoch=3,
        train_loss=0.5 + 0.01 * depth,
        train_accuracy=min(1.0, right + 0.1),
        validation_loss=1.1,
        validation_accuracy=right - 0.01,
        test_loss=1.2,
        test_accuracy=right,
        measures={"row_diff": shrink * spec.scale, "col_diff": 0.001 * shrink}
        if spec.split == "random"
        else {},
    )


def layers(spec: Spec, contrary: bool = False) -> Layers:
    plain = (spec.norm == "none") != contrary
    shrink = 0.5 if plain else 0.99
    depth = spec.depth if spec.model == "SGC" else spec.depth - 1
    random = [shrink**layer for layer in range(depth)]
    connected = [0.5 * value for value in random]
    if contrary:
        connected = random
    apsd = [value**2 for value in random] if plain else [1.0] * depth
    edges = [number / BINS for number in range(BINS + 1)]
    histogram = [0] * (BINS - 1) + [10]
    return Layers(
        test_accuracy=None if spec.model == "SGC" else 0.3 if plain else 0.75,
        apd={"connected": connected, "random": random},
        apsd={"connected": connected, "random": apsd},
        edges=dict.fromkeys(("connected", "random"), edges),
        histograms={kind: [histogram] * depth for kind in ("connected", "random")},
    )


def fill(path: Path, experiments: list[Experiment], contrary: bool = False) -> Path:
    """Write a store with all trials, and the case study, of the experiments."""
    cells: dict[Spec, dict[int, Trial]] = {}
    for experiment in experiments:
        if experiment.name == CASE_STUDY.name:
            specs = [spec for cell in experiment.cells() for spec in experiment.candidates(cell)]
            with Store(path) as store:
                write_layers(store, {spec: layers(spec, contrary) for spec in specs})
            continue
        for cell in experiment.cells():
            for seed in experiment.seeds(cell):
                for spec in experiment.candidates(cell, seed):
                    cells.setdefault(spec, {})[seed] = trial(spec, seed, contrary)
    with Store(path) as store:
        origin = Origin.here(seconds=1.0, shared_by=1, device="cpu")
        store.add_results(
            Result(spec, one, origin) for spec, trials in cells.items() for one in trials.values()
        )
    return path


def narrowed(selection: Selection, *names: str) -> list[Experiment]:
    """Return the selected part of the named experiments, of all by default."""
    parts = [selection.narrow(experiment) for experiment in EXPERIMENTS.values()]
    return [part for part in parts if part is not None and (not names or part.name in names)]


def small_experiments(*names: str) -> list[Experiment]:
    return narrowed(SMALL, *names)
