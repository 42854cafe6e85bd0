"""Training what experiments lack, on a machine that has little but torch; it goes on where it stopped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pairnorm.data import load
from pairnorm.paper.case_study import file_beside, lacking, measure_layers, read_layers, write_layers
from pairnorm.paper.claims import wanted_again
from pairnorm.paper.experiments import CASE_STUDY, CLAIMS_AGAIN, Experiment
from pairnorm.paper.results import Results
from pairnorm.train import Progress, Spec, Store, run
from pairnorm.train.engine import find_device
from pairnorm.train.schedule import Running

Report = Callable[[str, Progress], None]
"""Is told the stage and how far it is."""


@dataclass(frozen=True)
class Outcome:
    """What a run did: trials trained now, and those still lacking because time was up."""

    trained: int
    left: int


def reproduce(
    experiments: Sequence[Experiment],
    store: Store,
    running: Running,
    progress: Report = lambda stage, progress: None,
) -> Outcome:
    """Train whatever of the experiments the store lacks.

    Args:
        experiments: what is wanted.
        store: where results are and go; the case study's lie in a file beside it.
        running: where, and for how long; a case study is done here.
        progress: is called now and then.
    """
    should_stop, trained = running.clock(), 0
    train = partial(run, store=store, should_stop=should_stop, **running.where)
    stored, studies = _kinds(experiments)
    for measures in dict.fromkeys(experiment.measures for experiment in stored):
        some = [experiment for experiment in stored if experiment.measures == measures]
        stage = ", ".join(experiment.name for experiment in some)
        pairs = (pair for experiment in some for pair in experiment.pairs())
        trained += train(pairs=pairs, measures=measures, progress=partial(progress, stage))
    for experiment in stored:
        if _has_later(experiment) and not should_stop():
            stage = f"{experiment.name}, the best again"
            trained += train(pairs=_later(experiment, store), progress=partial(progress, stage))
    for study in studies:
        trained += _study(study, store, running, progress, should_stop)
    return Outcome(trained, count_lacking(experiments, store))


def count_lacking(experiments: Sequence[Experiment], store: Store) -> int:
    """Return how many trials of the experiments are not in the store."""
    stored, studies = _kinds(experiments)
    wanted: dict[Spec, set[int]] = {}
    for experiment in stored:
        for spec, seed in experiment.pairs():
            wanted.setdefault(spec, set()).add(seed)
        for spec, seed in _later(experiment, store) if _has_later(experiment) else ():
            wanted.setdefault(spec, set()).add(seed)
    trials = sum(len(store.missing(spec, seeds)) for spec, seeds in wanted.items())
    return trials + sum(len(lacking(_studied(study), file_beside(store.path))) for study in studies)


def _has_later(experiment: Experiment) -> bool:
    return experiment.search_runs is not None or experiment.name == CLAIMS_AGAIN.name


def _later(experiment: Experiment, store: Store) -> Iterator[tuple[Spec, int]]:
    """Yield what an experiment wants beyond its grid, which results in the store decide."""
    if experiment.name != CLAIMS_AGAIN.name:
        yield from Results.of(store, experiment).second_stage(experiment)
        return
    for spec, seeds in wanted_again(Results(store.cells()), experiment).items():
        yield from ((spec, seed) for seed in seeds)


def _kinds(experiments: Sequence[Experiment]) -> tuple[list[Experiment], list[Experiment]]:
    """Part experiments whose trials go into the store from case studies, which have a file beside it."""
    stored = [experiment for experiment in experiments if experiment.name != CASE_STUDY.name]
    return stored, [experiment for experiment in experiments if experiment.name == CASE_STUDY.name]


def _studied(experiment: Experiment) -> list[Spec]:
    return [experiment.candidates(place)[-1] for place in experiment.places()]


def _study(
    experiment: Experiment, store: Store, running: Running, progress: Report, should_stop: Callable[[], bool]
) -> int:
    path, device = file_beside(store.path), find_device(running.device)
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
        graph = load(spec.dataset, running.root, split=spec.split)
        found = measure_layers(graph, spec, 0, device, tick)
        write_layers(path, {**read_layers(path), spec: found})
        tick(sum(costs[: number + 1]) - done)
    return len(todo)
