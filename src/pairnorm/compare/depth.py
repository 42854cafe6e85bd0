"""Every method against oversmoothing at every depth, tuned with the same budget: ``reproduce depth``."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby, product
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from pairnorm.base.errors import PairNormError, one_of, whole_number
from pairnorm.base.files import csv_text
from pairnorm.data import Graph, Split
from pairnorm.data.adjacency import mark_validated, symmetric_adjacency
from pairnorm.data.features import UNKNOWN
from pairnorm.data.masks import Stream, rest_is_test
from pairnorm.data.named import data_folder
from pairnorm.paper.experiments import DATASETS as PAPER_DATASETS
from pairnorm.sweep.grid import Grid, SelectionRule, Summary
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.runner import Batch, Sweep
from pairnorm.train import Spec, Store
from pairnorm.train.engine import Pair
from pairnorm.train.methods import METHODS, find_method, import_method
from pairnorm.train.result import Origin, Result
from pairnorm.train.schedule import Running

MINESWEEPER = "minesweeper"
CHAINS = {f"chains-{distance}": distance for distance in (2, 4, 8, 16, 32)}
"""Generated graphs by name, with the number of edges between a label and the features that decide it."""
LONG_RANGE = (MINESWEEPER, *CHAINS)
"""Graphs on which depth matters with all features."""
DATASETS = (*PAPER_DATASETS, *LONG_RANGE)
DEPTHS = (2, 4, 8, 16, 32, 64)
MISSING = (100, 0)
RUNS, EPOCHS = 5, 500
MODELS = ("GCN", "SGC", "GAT")
GAT_METHODS = ("none", "PN", "PN-SI", "BatchNorm", "NodeNorm", "Skip", "Residual", "JK-max")
"""One method of each kind: GAT takes three times as long as GCN."""

# Four grid points each. GCN and GAT: two learning rates x two dropout rates, since dropout falls on every
# layer and deep models tolerate little; each of the method's two values meets every rate once. SGC has no
# dropout between its layers: two learning rates x two values, or four learning rates.
RATES = {"GCN": (0.01, 0.002), "GAT": (0.01, 0.002), "SGC": (0.01, 0.1)}
SGC_RATES = (0.005, 0.02, 0.05, 0.2)
DROPOUTS, LONG_RANGE_DROPOUTS = (0.6, 0.2), (0.2, 0.0)
# As in the paper's tables: SGC gets raw features.
SETTINGS: Mapping[str, Mapping[str, Any]] = {"GCN": {}, "GAT": {}, "SGC": {"scaling": "none"}}
# As published for Minesweeper; SGC would drop whole columns of the few.
LONG_RANGE_SETTINGS = {"scaling": "none", "weight_decay": 0.0}

MEASURES = ("effective_rank", "numerical_rank", "relative_energy", "gradient_first", "gradient_last",
            "parameters")  # fmt: skip
COLUMNS = ("dataset", "model", "method", "missing_percent", "depth", "accuracy", "accuracy_std",
           "validation_accuracy", "train_accuracy", "runs", "learning_rate", "strength", "dropout", *MEASURES,
           "seconds_per_epoch", "diverged", "auc")  # fmt: skip
"""Of a row. Seconds are those of one trial's epoch, trained next to others; ``diverged`` counts runs with a
loss that is not finite."""
Row = Mapping[str, Any]
"""``COLUMNS``; and in the metric of the graph: ``scores`` on the test nodes by seed, their mean ``score`` and
``score_std``, and ``validation_score``, which selects."""


def metric(dataset: str) -> str:
    """Return the metric of a graph: AUC for Minesweeper, where one cell in five is a mine, else accuracy."""
    return "auc" if dataset == MINESWEEPER else "accuracy"


def max_depth(dataset: str, model: str) -> int:
    """Return the largest number of layers that a model is trained with by default.

    64 layers of GCN are trained on Cora alone, and no GAT has more than 32, or 16 on larger graphs: they take
    longer than all smaller depths together. SGC costs the same at every depth.
    """
    if model == "GAT" and dataset in ("pubmed", "coauthor-cs"):
        return 16
    is_cheap = model == "SGC" or (dataset, model) == ("cora", "GCN")
    return 64 if is_cheap and dataset not in LONG_RANGE else 32


class DepthCell(NamedTuple):
    """A cell of the comparison: one method at one depth on one graph."""

    dataset: str
    model: str
    method: str
    missing_percent: int
    depth: int


@dataclass(frozen=True, eq=False)
class DepthComparison(Grid[DepthCell], Sweep):
    """The methods, graphs and depths of a comparison; each cell has four candidates.

    Args:
        methods: by name. Default: all of the package but ContraNorm, whose time is quadratic in the nodes; a
            few of them for GAT.
        depths: numbers of graph convolutions. Default: 2 to 64, up to ``max_depth``.
        missing: percentages of missing vectors; graphs on which depth matters have all features.
        graphs: the graphs among ``datasets`` that are not the package's; their features are scaled already.
        shallow_first: finish a depth before a larger one begins, in case time runs out.

    >>> small = DepthComparison(["cora"], ["GCN"], ["PN-SI", "GCNII"], depths=[2, 64], missing=[100])
    >>> for cell in small.cells():
    ...     print(*cell)
    cora GCN PN-SI 100 2
    cora GCN PN-SI 100 64
    cora GCN GCNII 100 2
    cora GCN GCNII 100 64
    >>> for spec in small.candidates(cell):
    ...     print(str(spec).replace(" adjacency=sym missing_rate=1.0", ""))
    cora GCN depth=64 learning_rate=0.01 epochs=500 method=GCNII strength=0.1
    cora GCN depth=64 dropout=0.2 learning_rate=0.01 epochs=500 method=GCNII strength=0.5
    cora GCN depth=64 learning_rate=0.002 epochs=500 method=GCNII strength=0.5
    cora GCN depth=64 dropout=0.2 learning_rate=0.002 epochs=500 method=GCNII strength=0.1
    """

    datasets: Sequence[str] = DATASETS
    models: Sequence[str] = MODELS
    methods: Sequence[str] | None = None
    depths: Sequence[int] | None = None
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
        for depth in self.depths or ():
            whole_number("depths", depth, least=2)  # one layer has no hidden state to measure
        whole_number("runs", self.runs, least=1)
        whole_number("epochs", self.epochs, least=1)
        if self.methods is not None:
            for name in self.methods:
                import_method(name)

    @property
    def rule(self) -> SelectionRule:
        """The rule: the highest validation accuracy of the first run; of equals, the lower loss."""
        return SelectionRule(search_runs=1, loss_breaks_ties=True)

    def cells(self) -> Iterator[DepthCell]:
        """Yield every cell."""
        all_depths = DEPTHS if self.depths is None else self.depths
        together = [[depth] for depth in sorted(all_depths)] if self.shallow_first else [all_depths]
        for depths, dataset, model in product(together, self.datasets, self.models):
            missing = [0] if dataset in LONG_RANGE else self.missing
            for key in product(self._methods(model), missing, depths):
                if self.depths is not None or key[-1] <= max_depth(dataset, model):
                    yield DepthCell(dataset, model, *key)

    def batches(self, running: Running) -> Iterator[Batch]:
        """Yield the cells that are trained together: of one graph and model, with both missing rates."""

        def together(cell: DepthCell) -> tuple[Any, ...]:
            return cell.dataset, cell.model, cell.depth if self.shallow_first else None

        for (dataset, model, *_), cells in groupby(self.cells(), together):
            yield Batch(
                f"{dataset}, {model}",
                [(self, list(cells))],
                () if model == "SGC" else MEASURES,  # the states of SGC are as wide as the features
                {"dataset": dataset, "model": model},
                partial(self._generated_graphs, dataset, running.root),
            )

    def count_pending(self, store: Store) -> int:
        """Return how many trials are not in the store."""
        return ResultIndex(store.trials_by_spec()).count_pending([self])

    def _generated_graphs(self, dataset: str, root: Path | None) -> dict[str, Graph]:
        """Return the graphs that are not loaded by name: the user's, and generated ones."""
        graphs = {dataset: long_range_graph(dataset, root)} if dataset in LONG_RANGE else {}
        return graphs | dict(self.graphs)

    def seeds(self, cell: DepthCell) -> range:
        """Return the seeds of a cell."""
        return range(self.runs)

    def _methods(self, model: str) -> list[str]:
        if self.methods is not None:
            names = [import_method(name) for name in self.methods]
        else:
            names = [*(GAT_METHODS if model == "GAT" else METHODS)]
            names = [name for name in names if not find_method(name).quadratic]
        return [name for name in names if model in find_method(name).models]

    def list_candidates(self, cell: DepthCell, split: str) -> tuple[Spec, ...]:
        """Return the four grid points of a cell."""
        method, rates, dropouts = find_method(cell.method), RATES[cell.model], DROPOUTS
        strengths = method.grid[:2] if len(method.grid) > 1 else ()
        settings: dict[str, Any] = {"split": split, "method": cell.method, "epochs": self.epochs}
        settings |= {"missing_rate": cell.missing_percent / 100, **method.settings}
        settings |= {"scaling": "none"} if cell.dataset in self.graphs else SETTINGS[cell.model]
        if cell.dataset in LONG_RANGE:
            dropouts, settings = LONG_RANGE_DROPOUTS, {**settings, **LONG_RANGE_SETTINGS}
            settings |= {"metric": metric(cell.dataset)} | ({"dropout": 0.0} if cell.model == "SGC" else {})
        options: list[dict[str, Any]] = [{"learning_rate": rate} for rate in SGC_RATES]
        if cell.model != "SGC":
            options = [
                {"learning_rate": rate, "dropout": dropout}
                | ({"strength": strengths[(row + column) % 2]} if strengths else {})
                for row, rate in enumerate(rates)
                for column, dropout in enumerate(dropouts)
            ]
        elif strengths:
            pairs = product(rates, strengths)
            options = [{"learning_rate": rate, "strength": strength} for rate, strength in pairs]
        return tuple(Spec(cell.dataset, cell.model, cell.depth, **settings, **tuned) for tuned in options)


class DepthTable:
    """The results of the cells whose runs are all complete."""

    def __init__(self, comparison: DepthComparison, results: Iterable[Result]) -> None:
        trials: dict[Spec, list[Any]] = defaultdict(list)
        self.comparison, self.origins = comparison, dict[Pair, Origin]()
        for result in results:
            trials[result.spec].append(result.trial)
            self.origins[result.spec, result.trial.seed] = result.origin
        self.index = ResultIndex(trials)

    def is_pending(self, cell: DepthCell) -> bool:
        """Return whether trials of a cell are still to be trained."""
        return bool(self.index.pending(self.comparison, [cell]))

    @cached_property
    def _chosen(self) -> dict[DepthCell, Summary]:
        """The runs of the selected candidate of every complete cell."""
        chosen = ((cell, self.index.chosen(self.comparison, cell)) for cell in self.comparison.cells())
        return {cell: selected.best for cell, selected in chosen if selected and selected.complete}

    @cached_property
    def rows(self) -> list[Row]:
        """A row of results per complete cell."""
        return [{**cell._asdict(), **self._summarize(runs)} for cell, runs in self._chosen.items()]

    @property
    def pairs(self) -> set[Pair]:
        """The trials behind the rows: of their searches, and of the selected candidates."""
        searched = {pair for cell in self._chosen for pair in self.comparison.pairs(cell)}
        return searched | {(runs.spec, trial.seed) for runs in self._chosen.values() for trial in runs.trials}

    def _summarize(self, runs: Summary) -> dict[str, Any]:
        spec, trials = runs.spec, runs.trials
        measured = [name for name in MEASURES if all(name in trial.measures for trial in trials)]
        origins = [self.origins[spec, trial.seed] for trial in trials]
        score, accuracy = f"test_{spec.metric}", "test_accuracy"
        return {
            "scores": runs.values(score),
            "score": runs.mean(score),
            "score_std": runs.std(score),
            "validation_score": runs.mean(f"validation_{spec.metric}"),
            "accuracy": runs.mean(accuracy),
            "accuracy_std": runs.std(accuracy),
            **{name: runs.mean(name) for name in ("validation_accuracy", "train_accuracy")},
            "runs": len(trials),
            "learning_rate": spec.learning_rate,
            "strength": spec.skip or (spec.scale if spec.norm != "none" else spec.strength),
            "dropout": spec.dropout,
            "diverged": sum(trial.diverged for trial in trials),
            "auc": runs.mean("test_auc") if spec.metric == "auc" else nan,
            **{name: runs.mean(name) if name in measured else nan for name in MEASURES},
            "seconds_per_epoch": fmean(origin.seconds / origin.shared_by / spec.epochs for origin in origins),
        }

    def csv(self) -> str:
        """Return the complete rows as CSV."""
        # The file format keeps the first name of this column.
        header = ["remedy" if name == "method" else name for name in COLUMNS]
        return csv_text(header, ([_format_value(row[name]) for name in COLUMNS] for row in self.rows))


def _format_value(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if isnan(value) else f"{value:.6g}"


def chains(distance: int, *, count: int = 400, classes: int = 4, seed: int = 0) -> Graph:
    """Generate paths whose last node has the class that the first node, ``distance`` edges away, shows.

    The features of the first node are the one-hot class, those of all other nodes are zero. Only last nodes
    have labels. A model with fewer than ``distance`` graph convolutions sees the same input for all of them,
    so that its accuracy is 1 / ``classes``; with as many, it can label all.

    >>> graph = chains(8)
    >>> graph.num_nodes, graph.num_edges, int(graph.test.sum())
    (3600, 3200, 200)

    Args:
        distance: edges between a label and the features that decide it.
        count: number of paths; a quarter each for training and validation, the rest for testing.
        classes: number of classes, equally frequent in every part of the split.
    """
    distance, classes = whole_number("distance", distance, least=1), whole_number("classes", classes, least=2)
    count = whole_number("count", count, least=4 * classes)
    length = distance + 1
    first = np.arange(count) * length
    source = np.arange(count * length).reshape(count, length)[:, :-1].reshape(-1)
    rank = Stream(seed, "chains").order(count)
    shown = rank % classes
    features = np.zeros((count * length, classes), dtype=np.float32)
    features[first, shown] = 1
    labels = np.full(count * length, UNKNOWN)
    labels[first + distance] = shown
    quarter = count // 4
    train, validation = np.zeros((2, count * length), dtype=bool)
    train[(first + distance)[rank < quarter]] = True
    validation[(first + distance)[(rank >= quarter) & (rank < 2 * quarter)]] = True
    known = torch.from_numpy(labels)
    adjacency, _ = symmetric_adjacency(source, source + 1, count * length)
    split = rest_is_test(known, torch.from_numpy(train), torch.from_numpy(validation))
    return Graph(
        mark_validated(adjacency), torch.from_numpy(features), known, *split, name=f"chains-{distance}"
    )


def long_range_graph(name: str, root: Path | None = None) -> Graph:
    """Generate or read a graph of ``LONG_RANGE``, with its split."""
    return chains(CHAINS[name]) if name in CHAINS else _read_minesweeper(data_folder(root) / "tables" / name)


def _read_minesweeper(folder: Path) -> Graph:
    """Read the Minesweeper graph with the first of its ten published splits, without pandas."""
    for name in ("nodes.csv", "edges.csv", "splits.csv"):
        if not (folder / name).is_file():
            problem = f"{folder / name}: this file is missing"
            hint = "Name the folder above 'tables' ({root}, or PAIRNORM_DATA)."
            raise PairNormError(problem, code="file-missing", value=name, hint=hint, root=...)
    with (folder / "nodes.csv").open(newline="") as nodes, (folder / "splits.csv").open(newline="") as splits:
        rows, parts = list(csv.DictReader(nodes)), [row["split0"] for row in csv.DictReader(splits)]
    columns = [name for name in rows[0] if name not in ("id", "label")]
    features = np.array([[float(row[name]) for name in columns] for row in rows], dtype=np.float32)
    edges = np.loadtxt(folder / "edges.csv", dtype=np.int64, delimiter=",", skiprows=1).T
    classes = ("safe", "mine")  # the AUC is that of the second class
    labels = np.array([classes.index(row["label"]) for row in rows])
    graph = Graph.from_edges(edges, features, labels, class_names=classes, name=MINESWEEPER)
    masks = (torch.tensor([part == name for part in parts]) for name in Split._fields)
    return graph.with_split(Split(*masks))
