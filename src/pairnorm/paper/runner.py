"""Train the pending trials of the paper's experiments; an interrupted run resumes where it stopped."""

from collections.abc import Callable, Sequence
from functools import partial

from pairnorm.data import load
from pairnorm.paper.case_study import measure_layers, read_layers, write_layers
from pairnorm.paper.claims import requested_runs
from pairnorm.paper.experiments import CASE_STUDY, CLAIMS_AGAIN
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.index import Batch, OnProgress, Outcome, ResultIndex, ignore_progress, train_batches
from pairnorm.train import Progress, Spec, Store, run
from pairnorm.train.engine import Pair, find_device
from pairnorm.train.schedule import Running


def reproduce(
    experiments: Sequence[Experiment],
    store: Store,
    running: Running,
    on_progress: OnProgress = ignore_progress,
) -> Outcome:
    """Train what is pending of the experiments.

    Args:
        experiments: the requested ones.
        store: where results are and go.
        running: where to train, and for how long; a case study always runs in this process.
        on_progress: called now and then.
    """
    should_stop = running.clock()
    grids = [experiment for experiment in experiments if _is_grid(experiment)]
    trained = train_batches(_batches(grids), store, running, should_stop, on_progress)
    for experiment in experiments:
        if should_stop():
            break
        if experiment.name == CLAIMS_AGAIN.name:
            pairs = _runs_for_claims(experiment, ResultIndex(store.trials_by_spec()))
            progress = partial(on_progress, experiment.name)
            trained += run(pairs, store, should_stop=should_stop, progress=progress, **running.where)
        elif experiment.name == CASE_STUDY.name:
            trained += _study(experiment, store, running, on_progress, should_stop)
    return Outcome(trained, count_pending(experiments, store))


def count_pending(experiments: Sequence[Experiment], store: Store) -> int:
    """Return how many trials of the experiments are not in the store."""
    index = ResultIndex(store.trials_by_spec())
    count = index.count_pending([one for one in experiments if _is_grid(one)])
    for experiment in experiments:
        if experiment.name == CLAIMS_AGAIN.name:
            count += sum(pair not in index for pair in _runs_for_claims(experiment, index))
        elif experiment.name == CASE_STUDY.name:
            count += len(_pending_studies(experiment, store))
    return count


def _is_grid(experiment: Experiment) -> bool:
    """Return whether the trials of an experiment are known beforehand and go into the store."""
    return experiment.name not in (CASE_STUDY.name, CLAIMS_AGAIN.name)


def _batches(experiments: Sequence[Experiment]) -> list[Batch]:
    """Put experiments with the same measures together, so that models of one architecture train together."""
    batches = []
    for measures in dict.fromkeys(one.measures for one in experiments):
        some = [one for one in experiments if one.measures == measures]
        work = [(one, list(one.cells())) for one in some]
        batches.append(Batch(", ".join(one.name for one in some), work, measures))
    return batches


def _runs_for_claims(experiment: Experiment, index: ResultIndex) -> list[Pair]:
    return [(spec, seed) for spec, seeds in requested_runs(index, experiment).items() for seed in seeds]


def _pending_studies(experiment: Experiment, store: Store) -> list[Spec]:
    specs = [experiment.candidates(cell)[-1] for cell in experiment.cells()]
    measured = read_layers(store)
    return [spec for spec in specs if spec not in measured]


def _study(
    experiment: Experiment,
    store: Store,
    running: Running,
    on_progress: OnProgress,
    should_stop: Callable[[], bool],
) -> int:
    device, pending = find_device(running.device), _pending_studies(experiment, store)
    costs = [1 if spec.model == "SGC" else spec.epochs for spec in pending]
    done = 0

    def tick(epochs: int) -> None:
        nonlocal done
        done += epochs
        on_progress(experiment.name, Progress(done, sum(costs), len(pending), str(spec)))

    for number, spec in enumerate(pending):
        if should_stop():
            return number
        graph = load(spec.dataset, running.root, split=spec.split)
        write_layers(store, {spec: measure_layers(graph, spec, 0, device, tick)})
        tick(sum(costs[: number + 1]) - done)
    return len(pending)
