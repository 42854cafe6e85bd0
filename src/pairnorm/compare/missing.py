"""Imputations and models under missing features, as data: methods, graphs, masks and protocols."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
from pairnorm.compare.depth import MINESWEEPER
from pairnorm.data import Graph, Missing, Split, features_after, load
from pairnorm.data.adjacency import components, reachable
from pairnorm.data.masks import Stream
from pairnorm.data.named import data_folder
from pairnorm.impute.methods import STORED_IMPUTATIONS
from pairnorm.sweep.grid import Grid, SelectionRule, Settings, expand
from pairnorm.train import Spec
from pairnorm.train.problem import DRAW

Name = TypeVar("Name")
REACHED = {"cora": "cora-reached", "citeseer": "citeseer-reached"}
"""Names for the test nodes in a component with a training node: no training label reaches the others."""
_CODES = ("status", "major", "second_major", "dorm", "high_school")
TABLES: dict[str, dict[str, Any]] = {
    "amherst41": {"label": "year", "classes": "each", "categorical": _CODES},
    "german": {"label": "GoodCustomer"},
    "reed98": {"label": "year", "classes": "each", "categorical": _CODES},
    MINESWEEPER: {"label": "label"},
    "mim_air": {"label": "label", "classes": "each"},
    "mim_electric": {"label": "label", "classes": "each"},
    "mim_synthetic": {"label": "label", "classes": "each"},
}
"""Tables such as users have, with the options of ``Graph.from_files``."""
MIN_CLASS_SIZE = 50
SGC = {"model": "SGC", "depth": (2, 5, 10, 20, 40, 60), "epochs": 500, "learning_rate": 0.2}
GCN = {
    "model": "GCN",
    "depth": (2, 4, 8),
    "epochs": 500,
    "learning_rate": (0.005, 0.02),
    "scaling": ("rows", "none"),
}
# Twelve candidates each. Without a norm, how features are scaled decides as much as PairNorm's scale with it.
TRAINED: Mapping[str, Settings] = {
    "SGC": {**SGC, "weight_decay": 5e-6, "scaling": ("rows", "none")},
    "SGC-PN": {**SGC, "norm": "PN", "scale": (1.0, 30.0)},
    "GCN": GCN,
    "GCN-PN": {**GCN, "norm": "PN-SI"},
}
# As in the released code of PCFI, with dropout on the input as well.
PUBLISHED_GCN: Settings = {
    "model": "GCN",
    "depth": 3,
    "hidden": 64,
    "dropout": 0.5,
    "adjacency": "sym",
    "learning_rate": 0.005,
    "weight_decay": 0.0,
    "scaling": "none",
    "epochs": 500,
}
# As in the released code of FSD-CAP, with the same exception.
FSD_CAP_GCN: Settings = {**PUBLISHED_GCN, "learning_rate": 0.01}
FIT, REFITTED = "fit", "fit, refitted on all labels"
FSD_CAP, FSD_CAP_RELEASED = "FSD-CAP", "FSD-CAP with validation labels"
MORE_LABELS = (REFITTED, FSD_CAP_RELEASED)
"""Methods that train on the labels of validation nodes: shown, but not compared."""
MOST_FREQUENT = "most frequent class"
WITHOUT_RANDOMNESS = ("label propagation", "Correct & Smooth")
ALONE = ("SGC alone", "label propagation", "logistic regression", "boosted trees", MOST_FREQUENT)


class MissingCell(NamedTuple):
    """A cell of the comparison: an imputation and a model on one graph at one missing rate."""

    protocol: str
    dataset: str
    imputation: str
    model: str
    missing_percent: float


@dataclass(frozen=True)
class Protocol(Grid[MissingCell]):
    """Graphs, splits and masks, and the methods that are compared on them.

    As a grid it has the models that are trained by epochs; the first run selects among their candidates.

    Args:
        name: what the command line calls it.
        missing: percentages, the most important first.
        runs: number of seeds. Methods without randomness get one run where all masks are the same.
        kind: ``Spec.missing_kind``.
        imputations: for models that are trained by epochs.
        trained: settings of models that are trained by epochs, by name.
        evaluated: methods without epochs: ``fit``, the models it consists of, and others.
        split: its name; ``{seed}`` stands for the seed of a run.
        graphs: what a dataset's name stands for: itself, its ``largest`` component, or a ``table``.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    missing: tuple[float, ...]
    runs: int = 5
    kind: str = "vectors"
    imputations: tuple[str, ...] = STORED_IMPUTATIONS
    trained: Mapping[str, Settings] = field(default_factory=lambda: TRAINED)
    evaluated: tuple[str, ...] = ("label propagation", "Correct & Smooth", FIT)
    split: str = "default"
    graphs: str = "named"

    @property
    def rule(self) -> SelectionRule:
        """The rule: the highest validation accuracy of the first run; of equals, the first candidate."""
        return SelectionRule(search_runs=1)

    def cells(self) -> Iterator[MissingCell]:
        """Yield the cells of trained models; with one imputation where nothing is missing."""
        for dataset, percent in product(self.datasets, self.missing):
            for imputation, model in product(self.imputations, self.trained):
                if percent or imputation == self.imputations[0]:
                    yield MissingCell(self.name, dataset, imputation, model, percent)

    def test_sets(self, dataset: str) -> tuple[str, ...]:
        """Return the names of a graph's test sets: all test nodes; the reached ones, if not all are."""
        return (dataset, REACHED[dataset]) if self.graphs == "named" and dataset in REACHED else (dataset,)

    def fallback_cells(self) -> Iterator[MissingCell]:
        """Yield the cells of trained models on graphs where some nodes may be unreachable."""
        return (
            cell for cell in self.cells() if cell.missing_percent and len(self.test_sets(cell.dataset)) > 1
        )

    def evaluated_cells(self) -> Iterator[MissingCell]:
        """Yield the cells of methods without epochs, percentage by percentage."""
        for percent, dataset, model in product(self.missing, self.datasets, self.evaluated):
            imputation = IMPUTATION_OF.get(model, "")
            if imputation != "fsd-cap" or percent:  # with nothing to impute it is a GCN
                yield MissingCell(self.name, dataset, imputation, model, percent)

    def seeds(self, cell: MissingCell) -> range:
        """Return the seeds of a cell."""
        same_mask = self.split == "default" and cell.missing_percent in (0, 100)
        return range(1 if cell.model in WITHOUT_RANDOMNESS and same_mask else self.runs)

    def list_candidates(self, cell: MissingCell, split: str) -> tuple[Spec, ...]:
        """Return the candidates of a cell."""
        common = {"dataset": self.graph_name(cell.dataset), "imputation": cell.imputation, "split": split}
        masks = {"missing_rate": cell.missing_percent / 100, "missing_kind": self.kind}
        return expand(self.trained[cell.model], **common, **masks)

    def graph(self, dataset: str, root: Path | None = None, seed: int = 0) -> Graph:
        """Load the graph of a dataset, with the split of a run."""
        if self.graphs == "table":
            graph = read_table(dataset, root)
            return graph.with_split(hold_out_labels(graph.labels, int(self.split) / 100, seed))
        if self.graphs == "largest":
            return largest_graph(dataset, root).with_split(self.split.format(seed=seed))
        return load(dataset, root)

    def derived_graphs(self, dataset: str, root: Path | None) -> dict[str, Graph]:
        """Return the graph of a dataset by its name in specs, unless it is loaded by that name."""
        return {} if self.graphs == "named" else {self.graph_name(dataset): self.graph(dataset, root)}

    def graph_name(self, dataset: str) -> str:
        """Return the name in specs of the graph that is used for a dataset."""
        return f"{dataset}-largest" if self.graphs == "largest" else dataset

    def mask(self, graph: Graph, percent: float, seed: int) -> Graph:
        """Return a graph without the features that are missing in a run."""
        return mask_features(graph, DRAW[self.kind](graph, percent / 100, seed=seed)) if percent else graph

    def __hash__(self) -> int:  # settings are mappings
        return hash((self.name, self.datasets, self.missing, self.runs))


IMPUTATION_OF = {
    "Correct & Smooth": "zero",
    FIT: "auto",
    REFITTED: "auto",
    FSD_CAP: "fsd-cap",
    FSD_CAP_RELEASED: "fsd-cap",
    "SGC alone": "auto",
    "boosted trees": "none",
}
"""Imputation of the methods without epochs; trees need none."""


SSNC = Protocol(
    "ssnc-mv",
    "Our task: vectors are missing outside the training set",
    ("cora", "citeseer", "pubmed", "coauthor-cs"),
    (100, 0, 80, 40),
)
BY_CLASS = Protocol(
    "by-class",
    "Our task, with vectors of some classes ten times as likely to be missing as those of others",
    ("cora", "citeseer", "pubmed"),
    (80, 40),
    kind="class",
    trained={name: TRAINED[name] for name in ("SGC-PN", "GCN")},
)
BY_DEGREE = replace(
    BY_CLASS,
    name="by-degree",
    title="Our task, with vectors of nodes with few edges ten times as likely to be missing",
    kind="degree",
)
FP_VECTORS = Protocol(
    "fp-vectors",
    "The protocol of feature propagation and PCFI: whole vectors of any nodes, the largest component, "
    "20 training nodes per class of 1,500 development nodes",
    ("cora", "citeseer", "pubmed"),
    (99.5, 90, 50, 0),
    runs=10,
    kind="nodes",
    imputations=("zero", "fp", "pcfi"),
    trained={"GCN": PUBLISHED_GCN},
    evaluated=("label propagation", FSD_CAP, FSD_CAP_RELEASED, FIT),
    split="per-class-20-of-1500@{seed}",
    graphs="largest",
)
FP_ENTRIES = replace(
    FP_VECTORS,
    name="fp-entries",
    title="The same protocol with single entries missing",
    missing=(99.5, 90, 50),
    kind="entries",
    evaluated=("label propagation", FIT),
)
TABLES_80 = Protocol(
    "tables-80",
    "Graphs with columns such as users have; 80% of the labels are masked, and vectors of any nodes",
    tuple(TABLES),
    (0, 50, 90),
    runs=10,
    kind="nodes",
    imputations=(),
    trained={},
    evaluated=(*ALONE, FIT),
    split="80",
    graphs="table",
)
TABLES_95 = replace(
    TABLES_80,
    name="tables-95",
    title="The same with 95% of the labels masked",
    datasets=("amherst41", "german", "reed98"),
    split="95",
)
BY_VALUE = replace(
    TABLES_80,
    name="by-value",
    title="80% of the labels are masked, and entries, large values ten times as likely as small ones",
    datasets=("german",),
    missing=(50, 90),
    kind="value",
)
PROTOCOLS = {
    protocol.name: protocol
    for protocol in (SSNC, FP_VECTORS, FP_ENTRIES, TABLES_80, TABLES_95, BY_CLASS, BY_DEGREE, BY_VALUE)
}
GROUPS = ("fp", "tables", "by")
MODELS = (*TRAINED, "Correct & Smooth", FSD_CAP, FSD_CAP_RELEASED, *ALONE, FIT)


def choose_protocols(
    protocols: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    missing: Sequence[float] | None = None,
    runs: int | None = None,
    epochs: int | None = None,
) -> list[Protocol]:
    """Return the selected protocols, narrowed to graphs, methods, rates and runs; raise an error if empty.

    Of ``protocols``, ``"fp"``, ``"tables"`` and ``"by"`` are all whose names begin so.

    >>> [protocol] = choose_protocols(["ssnc-mv"], ["cora"], ["GCN", "fit"], [100])
    >>> [len(list(cells)) for cells in (protocol.cells(), protocol.evaluated_cells())]
    [6, 1]
    """
    graphs = tuple(dict.fromkeys(name for protocol in PROTOCOLS.values() for name in protocol.datasets))
    for option, names, allowed in (
        ("protocol", protocols, (*PROTOCOLS, *GROUPS)),
        ("dataset", datasets, graphs),
        ("model", models, MODELS),
    ):
        for name in names or ():
            one_of(option, name, allowed)
    for percent in missing or ():
        real_number("missing", percent, least=0, most=100)
    max_runs = None if runs is None else whole_number("runs", runs, least=1)
    changed = {} if epochs is None else {"epochs": whole_number("epochs", epochs, least=1)}

    def pick(values: Iterable[Name], chosen: Sequence[Name] | None) -> tuple[Name, ...]:
        return tuple(value for value in values if chosen is None or value in chosen)

    parts = [
        replace(
            protocol,
            runs=protocol.runs if max_runs is None else min(protocol.runs, max_runs),
            datasets=pick(protocol.datasets, datasets),
            missing=pick(protocol.missing, missing),
            trained={name: {**protocol.trained[name], **changed} for name in pick(protocol.trained, models)},
            evaluated=pick(protocol.evaluated, models),
        )
        for name, protocol in PROTOCOLS.items()
        if protocols is None or {name, name.partition("-")[0]} & {*protocols}
    ]
    chosen = [part for part in parts if part.datasets and part.missing and (part.trained or part.evaluated)]
    if not chosen:
        options: dict[str, Any] = dict.fromkeys(("protocol", "dataset", "model", "missing"), ...)
        hint = "Leave out some of {protocol}, {dataset}, {model} and {missing}."
        problem = "nothing of the comparison is left"
        raise PairNormError(problem, code="nothing-selected", hint=hint, **options)
    return chosen


def mask_features(graph: Graph, missing: Missing) -> Graph:
    """Remove the features that are missing in the first trial, in addition to those missing in the data."""
    before = graph.missing if graph.missing.dim() == 2 else graph.missing[:, None]
    masked = missing.mask[:, 0].view(graph.num_nodes, -1) | before
    features = features_after(graph, missing, "none").trial(0)
    return graph.replace(features=features, missing=masked.squeeze(1) if masked.size(1) == 1 else masked)


@cache
def read_table(name: str, root: Path | None = None) -> Graph:
    """Read the graph of one of ``TABLES``; nodes of classes with fewer than 50 nodes become unlabeled."""
    folder, options = data_folder(root) / "tables" / name, TABLES[name]
    graph = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", name=name, **options)
    counts = graph.labels[graph.labeled].bincount(minlength=graph.num_classes)
    frequent = (counts >= MIN_CLASS_SIZE).nonzero().squeeze(1)
    number = torch.full((graph.num_classes + 1,), -1)
    number[frequent] = torch.arange(len(frequent))
    names = tuple(graph.class_names[position] for position in frequent.tolist())
    return graph.replace(labels=number[graph.labels], class_names=names)


def hold_out_labels(labels: Tensor, share: float, seed: int = 0) -> Split:
    """Split labels into a share of test nodes and training nodes, stratified by class.

    The same seed gives the same split on every machine. Nodes with -1 are in no part.
    """
    known = labels.cpu().numpy()
    rank = np.full(len(known), np.inf)
    order = Stream(seed, "hidden labels").order(len(known))
    for number in range(int(known.max(initial=-1)) + 1):
        nodes = order[known[order] == number]
        rank[nodes] = np.arange(len(nodes)) / len(nodes)
    seen = rank < 1 - real_number("share", share, least=0, below=1)
    masks = (seen, np.zeros_like(seen), ~seen & (known >= 0))
    return Split(*(torch.from_numpy(mask).to(labels.device) for mask in masks))


def reached(graph: Graph) -> Tensor:
    """Return bool [n]: the nodes in a connected component with a training node."""
    return reachable(graph.adjacency, graph.train)


@cache
def largest_graph(name: str, root: Path | None = None) -> Graph:
    """Return the largest connected component of a named graph."""
    return largest_component(load(name, root))


def largest_component(graph: Graph) -> Graph:
    """Return the largest connected component, with dense features and without a split."""
    members = components(graph.adjacency)
    largest = (members == members.bincount().argmax()).numpy()
    adjacency, features = graph.replace(features=graph.features.to_dense()).to_scipy()
    labels, name = graph.labels[torch.from_numpy(largest)], f"{graph.name}-largest"
    return Graph.from_scipy(adjacency[largest][:, largest], features[largest], labels=labels, name=name)
