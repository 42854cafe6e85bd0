"""The resumable runner of sweeps: it trains the pending trials of grids, batch by batch."""

from abc import ABC, abstractmethod
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
"""Called regularly with the name of the stage and its progress."""


@dataclass(frozen=True)
class Outcome:
    """The number of results that a call computed, and of those still pending."""

    trained: int
    pending: int


@dataclass(frozen=True)
class Batch:
    """Cells of grids that are trained together: first their search, then their finalists.

    Columns of the store (``where``) narrow what is read to select finalists. ``graphs`` returns graphs that
    are not loaded by name.
    """

    name: str
    work: Sequence[tuple[Grid[Any], Sequence[Any]]]
    measures: tuple[str, ...] = ()
    where: Any = None
    graphs: Callable[[], dict[str, Graph]] = dict
    ignore_fingerprints: bool = False

    def train(
        self, store: Store, running: Running, should_stop: Callable[[], bool], on_progress: OnProgress
    ) -> int:
        """Train the pending trials, unless it is time to stop, and return how many were trained.

        What is requested does not depend on what is pending, so that a resumed run has the same jobs.
        """
        trained, earlier = 0, set[Pair]()
        has_search = any(grid.rule.search_runs is not None for grid, _ in self.work)
        for stage in (self.name, f"{self.name}: finalists")[: 2 if has_search else 1]:
            if should_stop():
                break
            index = ResultIndex(store.trials_by_spec(**(self.where or {})), self.ignore_fingerprints)
            searched = ResultIndex({}) if stage == self.name else index
            requested: dict[Pair, None] = {}
            for grid, cells in self.work:
                for cell in cells:
                    pairs = grid.pairs(cell, searched.finalists(grid, cell))
                    requested |= dict.fromkeys(pair for pair in pairs if pair not in earlier)
            earlier |= requested.keys()
            pending = [pair for pair in requested if pair not in index]
            trained += run(
                pending,
                store,
                **running.where,
                requested=requested,
                graphs=self.graphs() if pending else {},
                measures=self.measures,
                progress=partial(on_progress, stage),
                should_stop=should_stop,
            )
        return trained


class Sweep(ABC):
    """Everything that a command asks for: batches of trials, and perhaps results of another kind."""

    @abstractmethod
    def batches(self, running: Running) -> Iterable[Batch]:
        """Yield the batches in the order to train them."""

    @abstractmethod
    def count_pending(self, store: Store) -> int:
        """Return how many results are not in the store."""

    def compute_others(
        self, store: Store, running: Running, should_stop: Callable[[], bool], on_progress: OnProgress
    ) -> int:
        """Compute pending results other than the trials of batches, and return how many."""
        return 0

    def reproduce(
        self, store: Store, running: Running, on_progress: OnProgress = lambda stage, progress: None
    ) -> Outcome:
        """Compute all pending results.

        Args:
            store: to read and write results.
            running: where to train, and for how long.
            on_progress: called after each step with the name of the stage and its progress.
        """
        rest = store, running, running.clock(), on_progress
        trained = sum(batch.train(*rest) for batch in self.batches(running))
        trained += self.compute_others(*rest)
        return Outcome(trained, self.count_pending(store))
