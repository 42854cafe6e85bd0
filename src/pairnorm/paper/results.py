"""What a store says about an experiment, and what the paper does: means over runs, the candidates chosen."""

import csv
import gzip
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from math import inf, isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pairnorm.base.errors import PairNormError
from pairnorm.paper.experiments import Experiment, Place
from pairnorm.train import Spec, Store, Trial

MOST_TIMES = 200
"""As large as this an export may be when it is unpacked: text does not shrink so much."""


class Reported(NamedTuple):
    """Mean test accuracy over 5 runs, and the number of layers chosen by validation."""

    accuracy: float
    layers: int


@cache
def reported() -> dict[Place, Reported]:
    """Return the numbers of all three tables, which share no place.

    >>> reported()[Place("cora", "SGC-PN", 100)]
    Reported(accuracy=0.745, layers=40)
    """
    folder = files("pairnorm.paper") / "reported"
    tables = [(folder / f"table{number}.csv").read_text(encoding="utf-8") for number in (1, 2, 3)]
    return {
        Place(row["dataset"], row["method"], int(row["missing_percent"])): Reported(
            float(row["accuracy"]), int(row["layers"])
        )
        for text in tables
        for row in csv.DictReader(text.splitlines())
    }


@dataclass(frozen=True)
class Summary:
    """The runs of one spec."""

    spec: Spec
    trials: tuple[Trial, ...]

    def mean(self, name: str) -> float:
        """Return the mean over the runs of a metric, such as ``test_accuracy``, or of a measure."""
        return fmean(self._values(name))

    def std(self, name: str) -> float:
        """Return the sample standard deviation over the runs, NaN for a single one."""
        values = self._values(name)
        return stdev(values) if len(values) > 1 and not any(map(isnan, values)) else nan

    @cached_property
    def validation(self) -> float:
        """The mean validation accuracy, by which candidates compare; a NaN loses.

        Rounded, so that the same number of right answers is a tie however they are spread over the runs.
        """
        value = self.mean("validation_accuracy")
        return -1.0 if isnan(value) else round(value, 6)

    def _values(self, name: str) -> list[float]:
        return [
            trial.measures[name] if name in trial.measures else float(getattr(trial, name))
            for trial in self.trials
        ]


@dataclass(frozen=True)
class Chosen:
    """The candidate of a place with the best mean validation accuracy; of equals, the shallowest."""

    best: Summary
    complete: bool
    """Whether all candidates had been trained."""
    every: Summary | None = None
    """All its runs, where there are more than those that are reported."""

    def among(self, others: "Sequence[Chosen]") -> "Chosen":
        """Return it with all the runs that there are of each of the others too."""
        runs = [one.every or one.best for one in (self, *others)]
        seeds = set.intersection(*({trial.seed for trial in one.trials} for one in runs))
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
    def accuracy_variance(self) -> float:
        """Variance of the mean test accuracy: infinite where there is one run."""
        runs, spread = len(self.best.trials), self.accuracy_std
        return inf if isnan(spread) else spread**2 / runs

    @property
    def layers(self) -> int:
        """The depth."""
        return self.best.spec.depth


class Results:
    """The trials of a store, by spec."""

    def __init__(self, cells: Mapping[Spec, Iterable[Trial]]) -> None:
        self._trials = {spec: {trial.seed: trial for trial in trials} for spec, trials in cells.items()}
        self._candidates: dict[tuple[Experiment, Place], tuple[list[Summary], bool]] = {}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Results":
        """Read a store, or its export as ``.csv`` or ``.csv.gz``."""
        with opened(path) as store:
            return cls(store.cells())

    @classmethod
    def of(cls, store: Store, experiment: Experiment) -> "Results":
        """Read what a store has of the graphs and models of an experiment."""
        models = {settings["model"] for settings in experiment.methods.values()}
        return cls(store.cells(dataset=list(experiment.datasets), model=models))

    def summary(self, spec: Spec, seeds: Iterable[int]) -> Summary | None:
        """Return the runs of a spec with these seeds, or None if one is lacking."""
        found = self._trials.get(spec, {})
        try:
            return Summary(spec, tuple([found[seed] for seed in seeds]))
        except KeyError:
            return None

    def every_run(self, spec: Spec) -> Summary:
        """Return all runs of a spec."""
        return Summary(spec, tuple(self._trials[spec].values()))

    def candidates(self, experiment: Experiment, place: Place) -> tuple[list[Summary], bool]:
        """Return the candidates of a place that have all runs, and whether these are all candidates.

        Of a search, the candidates are those with the searched settings that did best in its first runs.
        """
        key = (experiment, place)
        if key not in self._candidates:
            specs, seeds = self._finalists(experiment, place), experiment.seeds(place.missing_percent)
            found = self._summaries(specs, seeds)
            self._candidates[key] = found, bool(specs) and len(found) == len(specs)
        return self._candidates[key]

    def _finalists(self, experiment: Experiment, place: Place) -> Sequence[Spec]:
        """Return the candidates that get all runs; of a search that has not seen every candidate, none."""
        specs = experiment.candidates(place)
        if experiment.search_runs is None:
            return specs
        first = self._summaries(specs, experiment.seeds(place.missing_percent)[: experiment.search_runs])
        if len(first) < len(specs):
            return ()
        winner = best(first).spec
        return [
            spec
            for spec in specs
            if all(getattr(spec, name) == getattr(winner, name) for name in experiment.searched)
        ]

    def chosen(self, experiment: Experiment, place: Place) -> Chosen | None:
        """Return what is reported at a place, or None where nothing has been run."""
        found, complete = self.candidates(experiment, place)
        return Chosen(best(found), complete) if found else None

    def by_depth(self, experiment: Experiment, place: Place, one_scale: bool = False) -> list[Summary]:
        """Return the best candidate of each depth, the shallow ones first.

        With ``one_scale`` the scale is the same at all depths: that of the best mean validation accuracy.
        """
        found, _ = self.candidates(experiment, place)
        if one_scale and found:
            scales = _grouped(found, "scale")
            found = max(scales.values(), key=lambda group: fmean(one.validation for one in group))
        return [best(group) for _, group in sorted(_grouped(found, "depth").items())]

    def second_stage(self, experiment: Experiment) -> Iterator[tuple[Spec, int]]:
        """Yield the (spec, seed) pairs with which a search goes on where its first stage is complete."""
        for place in experiment.places() if experiment.search_runs is not None else ():
            for spec in self._finalists(experiment, place):
                for seed in experiment.seeds(place.missing_percent):
                    yield spec, seed

    def _summaries(self, specs: Iterable[Spec], seeds: Sequence[int]) -> list[Summary]:
        return [found for spec in specs if (found := self.summary(spec, seeds)) is not None]


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Store]:
    """Open a store for reading; an export, ``.csv`` or ``.csv.gz``, by way of a passing store."""
    source = Path(path)
    if ".csv" not in source.suffixes[-2:]:
        with Store(source, read_only=True) as store:
            yield store
        return
    if not source.is_file():
        problem = f"there is no export at {source}"
        hint = "Check the path, or run an experiment first."
        raise PairNormError(problem, code="file-missing", value=source, hint=hint)
    with TemporaryDirectory() as folder:
        if source.suffix == ".gz":
            source = _unpacked(source, Path(folder))
        with Store(Path(folder) / "store.sqlite") as store:
            store.merge(source)
            yield store


def _unpacked(source: Path, folder: Path) -> Path:
    """Unpack an export; one that is no gzip, ends early or is a bomb is refused."""
    plain, room = folder / source.stem, MOST_TIMES * source.stat().st_size
    try:
        with gzip.open(source) as packed, plain.open("wb") as target:
            while block := packed.read(1 << 20):
                room -= len(block)
                if room < 0:
                    raise ValueError(f"it is more than {MOST_TIMES} times as large when unpacked")
                target.write(block)
    except (EOFError, ValueError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"{source} cannot be unpacked ({error})"
        expected = "a store's CSV export, packed by gzip"
        raise PairNormError(problem, code="file-damaged", value=source, expected=expected) from error
    return plain


def best(candidates: Sequence[Summary]) -> Summary:
    """Return the candidate with the best mean validation accuracy, of equals the first."""
    return max(candidates, key=lambda candidate: candidate.validation)


def _grouped(candidates: Iterable[Summary], name: str) -> dict[float, list[Summary]]:
    groups: dict[float, list[Summary]] = defaultdict(list)
    for candidate in candidates:
        groups[getattr(candidate.spec, name)].append(candidate)
    return groups
