"""Training what experiments lack: ``python -m pairnorm.paper.runner table1 --store results.sqlite``.

The command for machines that have little but torch: no terminal library, no tables, no figures. It prints a
line now and then, can be interrupted or given a time limit, and goes on where it stopped.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pairnorm.data import load
from pairnorm.errors import PairNormError
from pairnorm.paper.case_study import file_beside, lacking, measure_layers, read_layers, write_layers
from pairnorm.paper.experiments import CASE_STUDY, NAMES, Experiment, Selection, split_names, split_numbers
from pairnorm.paper.results import Results
from pairnorm.train import Progress, Spec, Store, run
from pairnorm.train.engine import find_device

Report = Callable[[str, Progress], None]
SECONDS_BETWEEN_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """What a run did: trials trained now, and those still lacking because time was up."""

    trained: int
    left: int


def reproduce(
    experiments: Sequence[Experiment],
    store: Store,
    *,
    device: str | torch.device = "auto",
    root: str | Path | None = None,
    workers: int | None = None,
    minutes: float | None = None,
    progress: Report = lambda stage, progress: None,
) -> Outcome:
    """Train whatever of the experiments the store lacks.

    Args:
        experiments: what is wanted.
        store: where results are and go; the case study's lie in a file beside it.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        root: folder of the graphs' files.
        workers: processes on a CPU. Default: one for each core.
        minutes: start nothing more after this time.
        progress: is told the stage and how far it is.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def should_stop() -> bool:
        return end is not None and time.monotonic() >= end

    def train(stage: str, pairs: Iterable[tuple[Spec, int]], measures: Sequence[str] = ()) -> int:
        return run(
            pairs,
            store,
            device=device,
            root=root,
            workers=workers,
            measures=measures,
            progress=lambda now: progress(stage, now),
            should_stop=should_stop,
        )

    trained = 0
    stored = [experiment for experiment in experiments if experiment.name != CASE_STUDY.name]
    for measures in dict.fromkeys(experiment.measures for experiment in stored):
        some = [experiment for experiment in stored if experiment.measures == measures]
        stage = ", ".join(experiment.name for experiment in some)
        trained += train(stage, (pair for experiment in some for pair in experiment.pairs()), measures)
    for experiment in stored:
        if experiment.search_runs is not None and not should_stop():
            found = Results.of(store, experiment)
            trained += train(f"{experiment.name}, the best again", found.second_stage(experiment))
    for experiment in experiments:
        if experiment.name == CASE_STUDY.name:
            trained += _study(experiment, store, find_device(device), root, progress, should_stop)
    return Outcome(trained, count_lacking(experiments, store))


def count_lacking(experiments: Sequence[Experiment], store: Store) -> int:
    """Return how many trials of the experiments are not in the store."""
    wanted: dict[Spec, set[int]] = {}
    for experiment in experiments:
        if experiment.name == CASE_STUDY.name:
            continue
        for spec, seed in experiment.pairs():
            wanted.setdefault(spec, set()).add(seed)
        if experiment.search_runs is not None:
            for spec, seed in Results.of(store, experiment).second_stage(experiment):
                wanted.setdefault(spec, set()).add(seed)
    count = sum(len(store.missing(spec, seeds)) for spec, seeds in wanted.items())
    studies = [experiment for experiment in experiments if experiment.name == CASE_STUDY.name]
    return count + sum(len(lacking(_studied(study), file_beside(store.path))) for study in studies)


def _studied(experiment: Experiment) -> list[Spec]:
    return [experiment.candidates(place)[-1] for place in experiment.places()]


def _study(
    experiment: Experiment,
    store: Store,
    device: torch.device,
    root: str | Path | None,
    progress: Report,
    should_stop: Callable[[], bool],
) -> int:
    path = file_beside(store.path)
    todo = lacking(_studied(experiment), path)
    costs = [1 if spec.model == "SGC" else spec.epochs for spec in todo]
    done = 0

    def tick(epochs: int) -> None:
        nonlocal done
        done += epochs
        progress(experiment.name, Progress(done, sum(costs), len(todo), str(spec)))

    for number, spec in enumerate(todo):
        if should_stop():
            return number
        graph = load(spec.dataset, root, split=spec.split)
        found = measure_layers(graph, spec, 0, device, tick)
        write_layers(path, {**read_layers(path), spec: found})
        tick(sum(costs[: number + 1]) - done)
    return len(todo)


class Lines:
    """Tells of progress in a line now and then: how far, how fast, how much longer."""

    def __init__(self) -> None:
        self._stage, self._began, self._first, self._last = "", 0.0, 0, 0.0

    def __call__(self, stage: str, progress: Progress) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._last, self._first = stage, now, now, progress.done
            print(f"{stage}: {progress.trials:,} trials to train", flush=True)
        if now - self._last < SECONDS_BETWEEN_LINES or progress.done == self._first:
            return
        self._last = now
        rate = (progress.done - self._first) / (now - self._began)
        left = (progress.total - progress.done) / rate
        print(
            f"{stage}: {progress.done / progress.total:.1%}, {rate:,.0f} layer-epochs a second, "
            f"{left / 60:.1f} min left; {progress.label}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pairnorm.paper.runner",
        description="Train what a table or figure of the paper needs; not again what the store has.",
    )
    parser.add_argument("what", nargs="+", metavar="WHAT", help=", ".join(NAMES))
    parser.add_argument("--store", required=True, help="SQLite file of the results")
    parser.add_argument("--dataset", help="such as cora,citeseer; default: all four")
    parser.add_argument("--runs", type=int, help="runs of everything; default: the paper's")
    parser.add_argument("--epochs", type=int, help="epochs; default: the paper's")
    parser.add_argument("--depths", help="such as 2,4; default: the paper's")
    parser.add_argument("--missing", help="percentages such as 0,100; default: the paper's")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--root", help="folder of the graphs' raw files")
    parser.add_argument("--workers", type=int, help="processes on a CPU; default: one for each core")
    parser.add_argument("--minutes", type=float, help="start nothing more after this time")
    options = parser.parse_args(arguments)
    try:
        selection = Selection(
            options.what,
            split_names(options.dataset),
            options.runs,
            options.epochs,
            split_numbers("depths", options.depths),
            split_numbers("missing", options.missing),
        )
        with Store(options.store) as store:
            outcome = reproduce(
                selection.experiments(),
                store,
                device=options.device,
                root=options.root,
                workers=options.workers,
                minutes=options.minutes,
                progress=Lines(),
            )
    except PairNormError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nStopped; all that had finished is in {options.store}. The same command goes on.")
        return 130
    print(f"{outcome.trained:,} trials trained, {outcome.left:,} left; results in {options.store}")
    if outcome.left:
        print("The same command goes on from here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
