"""Grids of specs: the cells of a table, the candidates of each cell, and how one candidate is selected."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from math import inf, isfinite, isnan, nan
from statistics import fmean, stdev
from typing import Any, Generic, NamedTuple, TypeVar

from pairnorm.train import Spec, Trial
from pairnorm.train.engine import Pair

Settings = Mapping[str, Any]
"""Fields of a ``Spec``. A tuple lists values among which validation accuracy selects."""
CellT = TypeVar("CellT", bound=Hashable)


class TableCell(NamedTuple):
    """A cell of a table: a graph, a method and the percentage of missing feature vectors."""

    dataset: str
    method: str
    missing_percent: int


def expand(settings: Settings, **common: Any) -> tuple[Spec, ...]:
    """Return one spec per combination of the listed values, shallow models first.

    >>> for spec in expand({"model": "GCN", "depth": (4, 2), "dropout": (0.0, 0.5)}, dataset="cora"):
    ...     print(spec)
    cora GCN depth=2 dropout=0.0
    cora GCN depth=2 dropout=0.5
    cora GCN depth=4 dropout=0.0
    cora GCN depth=4 dropout=0.5
    """
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in settings.items()}
    depths = sorted(set(values.pop("depth")))
    deep = dict.fromkeys(
        Spec(**common, depth=depths[-1], **dict(zip(values, combination, strict=True)))
        for combination in product(*values.values())
    )
    return tuple(dict.fromkeys(spec.replace(depth=depth) for depth in depths for spec in deep))


def _statistic(function: Callable[[Iterable[float]], float], values: Collection[float]) -> float:
    """Return a statistic of the values, NaN where one of them is infinite or the result is too large."""
    try:
        return function(values) if all(map(isfinite, values)) else nan
    except OverflowError:
        return nan


@dataclass(frozen=True)
class Summary:
    """The runs of one candidate; ``spec`` is that of the first run."""

    spec: Spec
    trials: tuple[Trial, ...]

    def mean(self, name: str) -> float:
        """Return the mean over the runs of a metric, such as ``test_accuracy``, or of a measure."""
        return _statistic(fmean, self.values(name).values())

    def std(self, name: str) -> float:
        """Return the sample standard deviation over the runs, NaN for a single run."""
        values = self.values(name).values()
        return _statistic(stdev, values) if len(values) > 1 else nan

    @cached_property
    def validation(self) -> float:
        """The mean validation accuracy or AUC, which selects candidates; NaN counts as -1.

        Rounded, so that the same number of right answers is a tie however they are spread over the runs.
        """
        value = self.mean(f"validation_{self.spec.metric}")
        return -1.0 if isnan(value) else round(value, 6)

    def values(self, name: str) -> dict[int, float]:
        """Return a metric or a measure by seed."""
        return {
            trial.seed: trial.measures[name] if name in trial.measures else float(getattr(trial, name))
            for trial in self.trials
        }


@dataclass(frozen=True)
class SelectionRule:
    """How validation accuracy selects one candidate of a cell.

    Every candidate is trained with the first ``search_runs`` seeds. The best one decides the finalists, which
    are trained with all seeds. The finalist with the highest mean validation accuracy is reported.

    Args:
        search_runs: runs of every candidate. Default: all runs, so that every candidate is a finalist.
        shared: settings in which finalists equal the best candidate of the search. Default: the best
            candidate is the only finalist.
        loss_breaks_ties: whether the lower validation loss wins between equal accuracies. Default: the
            candidate that comes first.
    """

    search_runs: int | None = None
    shared: tuple[str, ...] | None = None
    loss_breaks_ties: bool = False

    def best(self, candidates: Sequence[Summary]) -> int:
        """Return the position of the candidate with the highest mean validation accuracy."""

        def merit(position: int) -> tuple[float, float]:
            candidate = candidates[position]
            if not self.loss_breaks_ties:
                return candidate.validation, 0.0
            loss = candidate.mean("validation_loss")
            return candidate.validation, -inf if isnan(loss) else -loss

        return max(range(len(candidates)), key=merit)

    def finalists(self, candidates: Sequence[Spec], best: int) -> list[int]:
        """Return the positions of the candidates to train with all seeds."""
        if self.shared is None:
            return [best]
        winner = [getattr(candidates[best], name) for name in self.shared]
        return [
            position
            for position, spec in enumerate(candidates)
            if [getattr(spec, name) for name in self.shared] == winner
        ]


def best(candidates: Sequence[Summary]) -> Summary:
    """Return the candidate with the highest mean validation accuracy, of equals the first."""
    return candidates[SelectionRule().best(candidates)]


class Grid(ABC, Generic[CellT]):
    """Cells of a table, the candidates of each, and the seeds with which they are trained."""

    @property
    @abstractmethod
    def rule(self) -> SelectionRule:
        """The rule that selects one candidate of each cell."""

    @abstractmethod
    def cells(self) -> Iterable[CellT]:
        """Yield every cell."""

    @abstractmethod
    def seeds(self, cell: CellT) -> range:
        """Return the seeds of a cell."""

    @property
    def split(self) -> str:
        """The name of the split; ``{seed}`` in it gives every run a split of its own."""
        return "default"

    @abstractmethod
    def list_candidates(self, cell: CellT, split: str) -> tuple[Spec, ...]:
        """Return the candidates of a cell with a split, in a fixed order."""

    def candidates(self, cell: CellT, seed: int = 0) -> tuple[Spec, ...]:
        """Return the candidates of a cell in a fixed order, with the split of a seed."""
        return _candidate_specs(self, cell, self.split.format(seed=seed))

    def pairs(self, cell: CellT, positions: Iterable[int] | None = None) -> Iterator[Pair]:
        """Yield the (spec, seed) pairs of a cell: of its search, or all runs of those at ``positions``."""
        seeds = self.seeds(cell)
        chosen = None if positions is None else list(positions)
        for seed in seeds[: self.rule.search_runs] if chosen is None else seeds:
            specs = self.candidates(cell, seed)
            for position in range(len(specs)) if chosen is None else chosen:
                yield specs[position], seed

    def specs(self) -> set[Spec]:
        """Return every candidate of every cell."""
        return {
            spec for cell in self.cells() for seed in self.seeds(cell) for spec in self.candidates(cell, seed)
        }

    def requested(self) -> Iterator[Pair]:
        """Yield the (spec, seed) pairs that do not depend on the outcome of a search."""
        return (pair for cell in self.cells() for pair in self.pairs(cell))


@cache
def _candidate_specs(grid: Grid[Any], cell: Any, split: str) -> tuple[Spec, ...]:
    return grid.list_candidates(cell, split)


@dataclass(frozen=True)
class Experiment(Grid[TableCell]):
    """A grid of methods, graphs and missing rates.

    Args:
        methods: settings by name of the method.
        missing: number of runs by percentage of missing vectors.
        datasets: names of graphs.
        settings: common to all methods. ``{seed}`` in ``split`` gives every run a split of its own.
        measures: taken of the last hidden representation while training.
        search_runs: see ``SelectionRule``.
        searched: settings that the search selects, see ``SelectionRule.shared``.
        in_tables: whether the paper's tables report its cells; not so on another split or architecture.

    >>> methods = {"SGC-PN": {"model": "SGC", "depth": (1, 2), "norm": "PN", "scale": (1.0, 10.0)}}
    >>> experiment = Experiment("tiny", "An example", methods, {100: 3}, datasets=("cora",))
    >>> for spec in experiment.candidates(TableCell("cora", "SGC-PN", 100)):
    ...     print(spec)
    cora SGC depth=1 norm=PN missing_rate=1.0
    cora SGC depth=1 norm=PN scale=10.0 missing_rate=1.0
    cora SGC depth=2 norm=PN missing_rate=1.0
    cora SGC depth=2 norm=PN scale=10.0 missing_rate=1.0
    >>> len(list(experiment.requested()))
    12
    """

    name: str
    title: str
    methods: Mapping[str, Settings]
    missing: Mapping[int, int]
    datasets: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    search_runs: int | None = None
    searched: tuple[str, ...] = ()
    in_tables: bool = True

    @property
    def rule(self) -> SelectionRule:
        """The rule: the highest mean validation accuracy over all runs; of equals, the shallowest."""
        return SelectionRule(self.search_runs, self.searched)

    def cells(self) -> Iterator[TableCell]:
        """Yield every cell, graph by graph."""
        for cell in product(self.datasets, self.methods, self.missing):
            yield TableCell(*cell)

    def seeds(self, cell: TableCell) -> range:
        """Return the seeds of a cell."""
        return range(self.missing[cell.missing_percent])

    @property
    def split(self) -> str:
        """The split of all methods."""
        return str(self.settings.get("split", "default"))

    def list_candidates(self, cell: TableCell, split: str) -> tuple[Spec, ...]:
        """Return the candidates of a cell, shallow ones first."""
        settings = {**self.methods[cell.method], **self.settings}
        if "split" in self.settings:  # otherwise a method may have one of its own
            settings["split"] = split
        return expand(settings, dataset=cell.dataset, missing_rate=cell.missing_percent / 100)

    def __hash__(self) -> int:  # settings are mappings, which have no hash
        return hash((self.name, self.datasets, *self.missing.items()))
