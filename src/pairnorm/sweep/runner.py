"""Train the pending trials of grids, batch by batch; an interrupted run resumes where it stopped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pairnorm.data import Graph
from pairnorm.sweep.grid import Grid
from pairnorm.sweep.index import ResultIndex
from pairnorm.train import Progress, Store, run
from pairnorm.train.engine import Pair
from pairnorm.train.schedule import Running

OnProgress = Callable[[str, Progress], None]
"""Called with the name of the stage and how far it is."""


def ignore_progress(stage: str, progress: Progress) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Outcome:
    """What a run did: trials trained now, and trials still pending because time was up."""

    trained: int
    left: int


@dataclass(frozen=True)
class Batch:
    """Cells that are trained together: first their search, then their finalists.

    Args:
        name: of the stage, for progress.
        work: grids, and the cells of each.
        measures: taken of the last hidden representation while training.
        where: columns of the store that narrow what is read to select finalists.
        graphs: returns graphs that are not loaded by name.
        ignore_fingerprints: see ``ResultIndex``.
    """

    name: str
    work: Sequence[tuple[Grid[Any], Sequence[Any]]]
    measures: tuple[str, ...] = ()
    where: Any = None
    graphs: Callable[[], dict[str, Graph]] = dict
    ignore_fingerprints: bool = False


def train_batches(
    batches: Iterable[Batch],
    store: Store,
    running: Running,
    should_stop: Callable[[], bool],
    on_progress: OnProgress = ignore_progress,
) -> int:
    """Train the pending trials of each batch and return how many were trained.

    Args:
        batches: in the order to train them.
        store: where results are and go.
        running: where to train.
        should_stop: asked before every job; no more jobs are started once it returns True.
        on_progress: called now and then.
    """
    trained = 0
    for batch in batches:
        searches = any(grid.rule.search_runs is not None for grid, _ in batch.work)
        for stage in (batch.name, f"{batch.name}: finalists")[: 2 if searches else 1]:
            if should_stop():
                return trained
            index = ResultIndex(store.trials_by_spec(**(batch.where or {})), batch.ignore_fingerprints)
            pairs: dict[Pair, None] = {}
            for grid, cells in batch.work:
                pairs |= dict.fromkeys(index.pending(grid, cells))
            trained += run(
                pairs,
                store,
                **running.where,
                graphs=batch.graphs() if pairs else {},
                measures=batch.measures,
                progress=partial(on_progress, stage),
                should_stop=should_stop,
            )
    return trained
