"""The trials of a store by spec and seed: summaries, selected candidates, and pending trials."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from pairnorm.base.errors import PairNormError
from pairnorm.sweep.grid import CellT, Grid, Summary
from pairnorm.train import Spec, Store, Trial
from pairnorm.train.engine import Pair


@dataclass(frozen=True)
class Chosen:
    """The selected candidate of a cell; ``all_runs`` are those in the store, where there are more."""

    best: Summary
    complete: bool
    all_runs: Summary | None = None

    def among(self, others: "Sequence[Chosen]") -> "Chosen":
        """Return the candidate with all runs in the store whose seeds the others have too."""
        runs = [chosen.all_runs or chosen.best for chosen in (self, *others)]
        seeds = set.intersection(*({trial.seed for trial in summary.trials} for summary in runs))
        if len(seeds) <= len(self.best.trials):
            return self
        shared = tuple(trial for trial in runs[0].trials if trial.seed in seeds)
        return Chosen(Summary(self.best.spec, shared), self.complete)

    @property
    def accuracy(self) -> float:
        """Mean test accuracy."""
        return self.best.mean("test_accuracy")

    @property
    def accuracy_std(self) -> float:
        """Standard deviation of the test accuracy over the runs."""
        return self.best.std("test_accuracy")

    @property
    def layers(self) -> int:
        """The depth of the candidate."""
        return self.best.spec.depth


class ResultIndex:
    """The trials of a store, by spec and seed; on request without the fingerprints of graphs in specs."""

    def __init__(self, trials: Mapping[Spec, Iterable[Trial]], ignore_fingerprints: bool = False) -> None:
        self._trials: dict[Spec, dict[int, Trial]] = {}
        for spec, runs in trials.items():
            key = spec
            if ignore_fingerprints and "@" in spec.dataset:
                key = spec.replace(dataset=spec.dataset.partition("@")[0])
            self._trials.setdefault(key, {}).update((trial.seed, trial) for trial in runs)
        self._candidates: dict[Any, tuple[list[Summary], bool]] = {}

    @classmethod
    def read(cls, path: str | os.PathLike[str], ignore_fingerprints: bool = False) -> "ResultIndex":
        """Read a store, or its export as ``.csv``."""
        with open_results(path) as store:
            return cls(store.trials_by_spec(), ignore_fingerprints)

    def __contains__(self, pair: Pair) -> bool:
        return pair[1] in self._trials.get(pair[0], {})

    def _summary(self, pairs: Sequence[Pair]) -> Summary | None:
        """Return the runs of a candidate, or None if one is pending."""
        try:
            return Summary(pairs[0][0], tuple([self._trials[spec][seed] for spec, seed in pairs]))
        except KeyError:
            return None

    def all_runs(self, spec: Spec) -> Summary:
        """Return all runs of a spec."""
        return Summary(spec, tuple(self._trials[spec].values()))

    def finalists(self, grid: Grid[CellT], cell: CellT) -> list[int] | None:
        """Return the positions of the candidates that get all runs; None while the search is incomplete."""
        specs, rule = grid.candidates(cell), grid.rule
        if rule.search_runs is None or len(specs) == 1:
            return list(range(len(specs)))
        summaries = self._summaries(grid, cell, range(len(specs)), grid.seeds(cell)[: rule.search_runs])
        return rule.finalists(specs, rule.best(summaries)) if len(summaries) == len(specs) else None

    def _summaries(
        self, grid: Grid[CellT], cell: CellT, positions: Iterable[int], seeds: range
    ) -> list[Summary]:
        """Summarize the candidates at ``positions``, except those with pending runs among ``seeds``."""
        specs = [(grid.candidates(cell, seed), seed) for seed in seeds]
        all_ = (self._summary([(row[position], seed) for row, seed in specs]) for position in positions)
        return [summary for summary in all_ if summary is not None]

    def candidates(self, grid: Grid[CellT], cell: CellT) -> tuple[list[Summary], bool]:
        """Return the finalists of a cell that have all runs, and whether these are all finalists."""
        if (grid, cell) not in self._candidates:
            positions = self.finalists(grid, cell) or []
            summaries = self._summaries(grid, cell, positions, grid.seeds(cell))
            self._candidates[grid, cell] = summaries, 0 < len(positions) == len(summaries)
        return self._candidates[grid, cell]

    def chosen(self, grid: Grid[CellT], cell: CellT) -> Chosen | None:
        """Return the selected candidate of a cell; None before a finalist has all its runs."""
        summaries, complete = self.candidates(grid, cell)
        return Chosen(summaries[grid.rule.best(summaries)], complete) if summaries else None

    def runs(self, grid: Grid[CellT], cell: CellT) -> list[Trial]:
        """Return the finished runs of a cell that has one finalist; none while the search is incomplete."""
        pairs = grid.pairs(cell, self.finalists(grid, cell) or ())
        return [self._trials[spec][seed] for spec, seed in pairs if (spec, seed) in self]

    def by_depth(self, grid: Grid[CellT], cell: CellT, one_scale: bool = False) -> list[Summary]:
        """Return the best candidate of each depth; with ``one_scale``, of the scale that is best over all."""
        summaries, _ = self.candidates(grid, cell)
        if one_scale and summaries:
            scales = _group_by(summaries, "scale")
            summaries = max(scales.values(), key=lambda group: fmean(each.validation for each in group))
        return [group[grid.rule.best(group)] for _, group in sorted(_group_by(summaries, "depth").items())]

    def pending(self, grid: Grid[CellT], cells: Iterable[CellT] | None = None) -> list[Pair]:
        """Return the trials to train next: of the search, or, once it is complete, of the finalists."""
        pairs: dict[Pair, None] = {}
        for cell in grid.cells() if cells is None else cells:
            for pair in grid.pairs(cell, self.finalists(grid, cell)):
                if pair not in self:
                    pairs[pair] = None
        return list(pairs)

    def count_pending(self, grids: Iterable[Grid[Any]]) -> int:
        """Count the trials that are still to be trained, including those that wait for a search."""
        known: set[Pair] = set()
        later = 0
        for grid in grids:
            known.update(self.pending(grid))
            for cell in grid.cells() if grid.rule.search_runs is not None else ():
                if self.finalists(grid, cell) is None:
                    finalists = grid.rule.finalists(grid.candidates(cell), 0)
                    later += len(finalists) * len(grid.seeds(cell)[grid.rule.search_runs :])
        return len(known) + later


@contextmanager
def open_results(path: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a store for reading; its export as ``.csv`` through a temporary store."""
    source = Path(path)
    if source.suffix != ".csv":
        with Store(source, read_only=True) as store:
            yield store
        return
    if not source.is_file():
        problem = f"there is no export at {source}"
        hint = "Check the path, or run an experiment first."
        raise PairNormError(problem, code="file-missing", value=source, hint=hint)
    with TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:
        store.merge(source)
        yield store


def _group_by(candidates: Iterable[Summary], name: str) -> dict[float, list[Summary]]:
    groups: dict[float, list[Summary]] = defaultdict(list)
    for candidate in candidates:
        groups[getattr(candidate.spec, name)].append(candidate)
    return groups
