"""Every method against oversmoothing at every depth, tuned with the same budget: ``reproduce depth``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import isnan, nan
from statistics import fmean, stdev
from typing import Any, NamedTuple

from pairnorm.base.errors import one_of, whole_number
from pairnorm.base.files import csv_text
from pairnorm.data import Graph
from pairnorm.paper.experiments import DATASETS
from pairnorm.sweep.runner import OnProgress, Outcome
from pairnorm.train import Spec, Store, run
from pairnorm.train.methods import METHODS, find_method, import_method
from pairnorm.train.result import Result
from pairnorm.train.schedule import Running

DEPTHS = (2, 4, 8, 16, 32, 64)
MISSING = (100, 0)
RUNS, EPOCHS = 5, 500
MODELS = ("GCN", "SGC", "GAT")
GAT_METHODS = ("none", "PN", "PN-SI", "BatchNorm", "NodeNorm", "Skip", "Residual", "JK-max")
"""GAT takes three times as long as GCN: it gets one method of each sort."""
SMALL = ("cora", "citeseer")
"""Graphs on which what is quadratic in the nodes can be trained."""

# Four grid points each. For GCN and GAT two learning rates and two of dropout, of which deep models stand
# little, since it falls on every layer; of the method's two values each meets either rate of both once. SGC
# drops nothing between its layers: two learning rates and two values, or four learning rates.
RATES = {"GCN": (0.01, 0.002), "GAT": (0.01, 0.002), "SGC": (0.01, 0.1)}
SGC_RATES = (0.005, 0.02, 0.05, 0.2)
DROPOUTS = (0.6, 0.2)
# As in the paper's own tables: SGC is given features as they are.
SETTINGS: Mapping[str, Mapping[str, Any]] = {"GCN": {}, "GAT": {}, "SGC": {"scaling": "none"}}

MEASURES = ("effective_rank", "numerical_rank", "relative_energy", "gradient_first", "gradient_last",
            "parameters")  # fmt: skip
COLUMNS = ("dataset", "model", "remedy", "missing_percent", "depth", "accuracy", "accuracy_std",
           "validation_accuracy", "train_accuracy", "runs", "learning_rate", "strength", "dropout", *MEASURES,
           "seconds_per_epoch", "diverged")  # fmt: skip
"""Of ``depth.csv``. Time is that of one trial's epoch, with others side by side, as it was trained; of the
runs so many diverged, that is, had a loss that was not finite."""


class Place(NamedTuple):
    """A row of the table."""

    dataset: str
    model: str
    method: str
    missing_percent: int
    depth: int


@dataclass(frozen=True)
class DepthComparison:
    """What to compare, and how much of it.

    Args:
        datasets: names of graphs.
        models: among ``"GCN"``, ``"SGC"`` and ``"GAT"``.
        methods: by name; None for all of the package's, of which GAT gets a few.
        depths: numbers of graph convolutions.
        missing: percentages of missing vectors.
        runs: seeds; the first decides among the grid points, by validation accuracy.
        epochs: of each.
        graphs: those among ``datasets`` that are not the package's; their features are scaled already.
        shallow_first: finish a depth before a greater one begins, for time may be up.

    >>> small = DepthComparison(["cora"], ["GCN"], ["PN-SI", "GCNII"], depths=[2, 64], missing=[100])
    >>> for place in small.places():
    ...     print(*place)
    cora GCN PN-SI 100 2
    cora GCN PN-SI 100 64
    cora GCN GCNII 100 2
    cora GCN GCNII 100 64
    >>> for spec in small.candidates(place):
    ...     print(str(spec).replace(" adjacency=sym missing_rate=1.0", ""))
    cora GCN depth=64 learning_rate=0.01 epochs=500 method=GCNII strength=0.1
    cora GCN depth=64 dropout=0.2 learning_rate=0.01 epochs=500 method=GCNII strength=0.5
    cora GCN depth=64 learning_rate=0.002 epochs=500 method=GCNII strength=0.5
    cora GCN depth=64 dropout=0.2 learning_rate=0.002 epochs=500 method=GCNII strength=0.1
    """

    datasets: Sequence[str] = DATASETS
    models: Sequence[str] = MODELS
    methods: Sequence[str] | None = None
    depths: Sequence[int] = DEPTHS
    missing: Sequence[int] = MISSING
    runs: int = RUNS
    epochs: int = EPOCHS
    graphs: Mapping[str, Graph] = field(default_factory=dict, compare=False, repr=False)
    shallow_first: bool = False

    def __post_init__(self) -> None:
        for model in self.models:
            one_of("model", model, MODELS)
        for percent in self.missing:
            whole_number("missing", percent, most=100)
        for depth in self.depths:
            whole_number("depths", depth, least=2)  # one layer has no hidden state to measure
        whole_number("runs", self.runs, least=1)
        whole_number("epochs", self.epochs, least=1)
        if self.methods is not None:
            for name in self.methods:
                import_method(name)

    def slices(self) -> Iterator[list[Place]]:
        """Yield what is trained one after the other: a graph and a model each; what is quadratic comes last.

        Both missing rates are in a slice, for they train side by side.
        """
        together = [[depth] for depth in sorted(self.depths)] if self.shallow_first else [self.depths]
        sorts = product((False, True), self.datasets, self.models)
        for depths, (quadratic, dataset, model) in product(together, sorts):
            names = self._methods(dataset, model, quadratic)
            places = [Place(dataset, model, *rest) for rest in product(names, self.missing, depths)]
            if places:
                yield places

    def places(self) -> Iterator[Place]:
        """Yield every row of the table."""
        for places in self.slices():
            yield from places

    def _methods(self, dataset: str, model: str, quadratic: bool) -> list[str]:
        if self.methods is not None:
            names = [import_method(name) for name in self.methods]
        else:
            names = [*(GAT_METHODS if model == "GAT" else METHODS)]
            names = [name for name in names if not find_method(name).quadratic or dataset in SMALL]
        return [
            name
            for name in names
            if model in find_method(name).models and find_method(name).quadratic == quadratic
        ]

    def candidates(self, place: Place) -> list[Spec]:
        """Return the four grid points of a place."""
        method = find_method(place.method)
        strengths = method.grid[:2] if len(method.grid) > 1 else ()
        rates = RATES[place.model]
        tried: list[dict[str, float]]
        if place.model != "SGC":
            tried = [
                {"learning_rate": rate, "dropout": dropout}
                | ({"strength": strengths[(row + column) % 2]} if strengths else {})
                for row, rate in enumerate(rates)
                for column, dropout in enumerate(DROPOUTS)
            ]
        elif strengths:
            tried = [{"learning_rate": rate, "strength": value} for rate, value in product(rates, strengths)]
        else:
            tried = [{"learning_rate": rate} for rate in SGC_RATES]
        settings = {"scaling": "none"} if place.dataset in self.graphs else SETTINGS[place.model]
        return [
            Spec(
                place.dataset,
                place.model,
                place.depth,
                missing_rate=place.missing_percent / 100,
                epochs=self.epochs,
                method=place.method,
                **some,  # type: ignore[arg-type]
                **settings,
                **method.settings,
            )
            for some in tried
        ]


class Table:
    """What a store says of a comparison."""

    def __init__(self, wanted: DepthComparison, results: Iterable[Result]) -> None:
        self.wanted = wanted
        self._found: dict[Spec, dict[int, Result]] = {}
        for result in results:
            self._found.setdefault(result.spec, {})[result.trial.seed] = result

    @classmethod
    def read(cls, wanted: DepthComparison, store: Store, **where: Any) -> "Table":
        """Read a store; ``where`` narrows what is read, as in ``Store.results``."""
        return cls(wanted, store.results(**where))

    def chosen(self, place: Place) -> Spec | None:
        """Return the grid point with the best validation accuracy of the first run; None while some lack it.

        Of equals, the one with the lower validation loss.
        """
        candidates = self.wanted.candidates(place)
        if any(0 not in self._found.get(spec, {}) for spec in candidates):
            return None

        def merit(spec: Spec) -> tuple[float, float]:
            trial = self._found[spec][0].trial
            loss = trial.validation_loss
            return round(trial.validation_accuracy, 6), -loss if loss == loss else -float("inf")

        return max(candidates, key=merit)

    def lacking(self, place: Place) -> int:
        """Return how many trials of a place are still to be trained."""
        candidates = self.wanted.candidates(place)
        first = sum(0 not in self._found.get(spec, {}) for spec in candidates)
        chosen = self.chosen(place)
        found = self._found[chosen] if chosen is not None else {0: None}
        return first + sum(seed not in found for seed in range(self.wanted.runs))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that are complete: ``COLUMNS``, and the ``accuracies`` of the runs."""
        for place in self.wanted.places():
            if self.lacking(place) or (spec := self.chosen(place)) is None:
                continue
            results = [self._found[spec][seed] for seed in range(self.wanted.runs)]
            yield {**dict(zip(COLUMNS, place, strict=False)), **_summary(spec, results)}

    def csv(self) -> str:
        """Return the complete rows as text."""
        return csv_text(COLUMNS, ([_written(row[name]) for name in COLUMNS] for row in self.rows()))


def _summary(spec: Spec, results: Sequence[Result]) -> dict[str, Any]:
    trials = [result.trial for result in results]
    accuracies = [trial.test_accuracy for trial in trials]
    measures = {}
    for name in MEASURES:
        values = [trial.measures[name] for trial in trials if name in trial.measures]
        measures[name] = fmean(values) if len(values) == len(trials) else nan
    return {
        "accuracies": accuracies,
        "accuracy": fmean(accuracies),
        "accuracy_std": stdev(accuracies) if len(accuracies) > 1 else nan,
        "validation_accuracy": fmean(trial.validation_accuracy for trial in trials),
        "train_accuracy": fmean(trial.train_accuracy for trial in trials),
        "runs": len(trials),
        "learning_rate": spec.learning_rate,
        "strength": spec.skip or (spec.scale if spec.norm != "none" else spec.strength),
        "dropout": spec.dropout,
        "diverged": sum(trial.diverged for trial in trials),
        **measures,
        "seconds_per_epoch": fmean(
            result.origin.seconds / result.origin.shared_by / spec.epochs for result in results
        ),
    }


def _written(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if isnan(value) else f"{value:.6g}"


def reproduce(
    wanted: DepthComparison,
    store: Store,
    running: Running,
    progress: OnProgress = lambda stage, progress: None,
) -> Outcome:
    """Train whatever of a comparison the store lacks, a slice after the other.

    Args:
        wanted: what is compared.
        store: where results are and go.
        running: where, and for how long.
        progress: is told the stage and how far it is.
    """
    should_stop, trained = running.clock(), 0
    train = partial(run, store=store, graphs=dict(wanted.graphs), should_stop=should_stop, **running.where)
    for places in wanted.slices():
        if should_stop():
            break
        dataset, model = places[0].dataset, places[0].model
        measures = () if model == "SGC" else MEASURES  # whose states are as wide as the features
        first = [(spec, 0) for place in places for spec in wanted.candidates(place)]
        tell = partial(progress, f"{dataset}, {model}: four settings each")
        trained += train(pairs=first, measures=measures, progress=tell)
        table = Table.read(wanted, store, dataset=dataset, model=model)
        chosen = [spec for place in places if (spec := table.chosen(place)) is not None]
        rest = [(spec, seed) for spec in chosen for seed in range(1, wanted.runs)]
        tell = partial(progress, f"{dataset}, {model}: the best again")
        trained += train(pairs=rest, measures=measures, progress=tell)
    return Outcome(trained, count_pending(wanted, store))


def count_pending(wanted: DepthComparison, store: Store) -> int:
    """Return how many trials of a comparison are not in the store."""
    table = Table.read(wanted, store)
    return sum(map(table.lacking, wanted.places()))
