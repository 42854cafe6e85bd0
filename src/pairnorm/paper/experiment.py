"""What an experiment is: methods, graphs and missing rates, from which the specs to train follow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, Self

from pairnorm.errors import PairNormError, one_of
from pairnorm.train import Spec

Settings = Mapping[str, Any]
"""Fields of a ``Spec``. A tuple lists the values among which validation accuracy decides."""

DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs")


class Place(NamedTuple):
    """Where a number stands in a table."""

    dataset: str
    method: str
    missing_percent: int


@dataclass(frozen=True)
class Experiment:
    """A grid of methods x datasets x missing rates; of each place the best candidate is reported.

    Args:
        name: what the command line calls it.
        title: what it shows.
        methods: by name, their settings; those with a tuple span the candidates of a place.
        missing: percentage of missing vectors, and how many runs there are with it.
        datasets: names of graphs.
        settings: what all methods have in common.
        measures: taken of the last hidden representation while training.
        search_runs: train so many runs of every candidate only, and the others of the ``searched`` settings
            that did best.
        searched: names of these settings.

    >>> methods = {"SGC-PN": {"model": "SGC", "depth": (1, 2), "norm": "PN", "scale": (1.0, 10.0)}}
    >>> experiment = Experiment("tiny", "An example", methods, {100: 3}, datasets=("cora",))
    >>> for spec in experiment.candidates(Place("cora", "SGC-PN", 100)):
    ...     print(spec)
    cora SGC depth=1 norm=PN missing_rate=1.0
    cora SGC depth=1 norm=PN scale=10.0 missing_rate=1.0
    cora SGC depth=2 norm=PN missing_rate=1.0
    cora SGC depth=2 norm=PN scale=10.0 missing_rate=1.0
    >>> len(list(experiment.pairs()))
    12
    """

    name: str
    title: str
    methods: Mapping[str, Settings]
    missing: Mapping[int, int]
    datasets: tuple[str, ...] = DATASETS
    settings: Settings = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    search_runs: int | None = None
    searched: tuple[str, ...] = ()

    def places(self) -> Iterator[Place]:
        """Yield every place, dataset by dataset."""
        for dataset, method, percent in product(self.datasets, self.methods, self.missing):
            yield Place(dataset, method, percent)

    def seeds(self, percent: int) -> range:
        """Return the seeds of the runs at a missing rate."""
        return range(self.missing[percent])

    def candidates(self, place: Place) -> list[Spec]:
        """Return the specs of a place, the shallow ones first: of equals the first is chosen."""
        settings = {**self.methods[place.method], **self.settings}
        choices = {name: value if isinstance(value, tuple) else (value,) for name, value in settings.items()}
        choices = {"depth": tuple(sorted(choices.pop("depth"))), **choices}
        specs = (
            Spec(
                dataset=place.dataset,
                missing_rate=place.missing_percent / 100,
                **dict(zip(choices, values, strict=True)),
            )
            for values in product(*choices.values())
        )
        return list(dict.fromkeys(specs))

    def pairs(self) -> Iterator[tuple[Spec, int]]:
        """Yield every (spec, seed) to train; of a search, its first stage."""
        for place in self.places():
            seeds = self.seeds(place.missing_percent)[: self.search_runs]
            for spec in self.candidates(place):
                for seed in seeds:
                    yield spec, seed

    def narrowed(
        self,
        *,
        datasets: Sequence[str] | None = None,
        runs: int | None = None,
        epochs: int | None = None,
        depths: Sequence[int] | None = None,
        missing: Sequence[int] | None = None,
    ) -> Self | None:
        """Return a smaller version of the experiment, or None if nothing of it is left.

        Args:
            datasets: only these.
            runs: so many runs at every missing rate.
            epochs: so many epochs.
            depths: these depths instead of the paper's.
            missing: only these percentages.
        """
        for name in datasets or ():
            one_of("dataset", name, DATASETS)
        for what, values in (("runs", [runs]), ("epochs", [epochs]), ("depths", depths or ())):
            for value in values:
                if value is not None and value < 1:
                    raise PairNormError(f"{what} is {value}; expected 1 or more.")
        rates = {
            percent: self.missing[percent] if runs is None else runs
            for percent in self.missing
            if missing is None or percent in missing
        }
        kept = tuple(name for name in self.datasets if datasets is None or name in datasets)
        if not rates or not kept:
            return None
        changes: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
        if depths is not None:
            changes["depth"] = tuple(sorted(set(depths)))
        return replace(self, missing=rates, datasets=kept, settings={**self.settings, **changes})
