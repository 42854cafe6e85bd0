"""The experiments as data: grids of methods, graphs and missing rates, and how to select a part of them."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from pairnorm.base.errors import PairNormError, one_of, whole_number
from pairnorm.sweep.grid import Experiment, Settings, TableCell
from pairnorm.sweep.tables import Reported

DATASETS = ("cora", "citeseer", "pubmed", "coauthor-cs")


@cache
def reported() -> dict[TableCell, Reported]:
    """Return the numbers of the paper's three tables, which have no cell in common.

    >>> reported()[TableCell("cora", "SGC-PN", 100)]
    Reported(accuracy=0.745, layers=40)
    """
    folder = files("pairnorm.paper") / "reported"
    tables = [(folder / f"table{number}.csv").read_text(encoding="utf-8") for number in (1, 2, 3)]
    return {
        TableCell(row["dataset"], row["method"], int(row["missing_percent"])): Reported(
            float(row["accuracy"]), int(row["layers"])
        )
        for text in tables
        for row in csv.DictReader(text.splitlines())
    }


SCALES = (0.1, 1.0, 10.0, 50.0, 100.0)
SGC_DEPTHS = (*range(1, 11), *range(15, 61, 5))
GNN_DEPTHS = (2, 4, 6, 8, 10, 12, 15, 20, 25, 30)

# The paper's text drops features of GCN and GAT only, its released code those of SGC too, at the same rate;
# on Cora, all vectors missing, the latter does better with and without PairNorm. The paper names 500 epochs
# for SGC (Figure 1).
SGC = {"model": "SGC", "depth": SGC_DEPTHS, "epochs": 500}
GCN = {"model": "GCN", "depth": GNN_DEPTHS, "epochs": 1000}
GAT = {"model": "GAT", "depth": GNN_DEPTHS, "epochs": 1000}

SGC_METHODS = {"SGC": SGC, "SGC-PN": {**SGC, "norm": "PN", "scale": SCALES}}
# The paper's released code gives SGC features as they are, GCN and GAT rows divided by their sum; over the 48
# numbers of Table 1 raw features come nearer to the paper's too.
RAW_SGC_METHODS = {name: {**settings, "scaling": "none"} for name, settings in SGC_METHODS.items()}


def _with_skips(model: Settings) -> dict[str, Settings]:
    """Return a model without skips and with skips of one and two layers, each plain and with PairNorm-SI."""
    skips: dict[str, Settings] = {"": {}, "-t1": {"skip": 1}, "-t2": {"skip": 2}}
    norms: dict[str, Settings] = {"": {}, "-PN": {"norm": "PN-SI"}}
    return {
        f"{model['model']}{step}{suffix}": {**model, **skip, **norm}
        for step, skip in skips.items()
        for suffix, norm in norms.items()
    }


GCN_METHODS, GAT_METHODS = _with_skips(GCN), _with_skips(GAT)
PLAIN_OR_NORMALIZED = {
    name: {**RAW_SGC_METHODS, **GCN_METHODS, **GAT_METHODS}[name]
    for name in ("SGC", "SGC-PN", "GCN", "GCN-PN", "GAT", "GAT-PN")
}

FIVE_RUNS = {0: 5, 100: 5}

TABLE1 = Experiment(
    "table1",
    "SGC with and without PairNorm, by the share of missing vectors",
    RAW_SGC_METHODS,
    dict.fromkeys((0, 20, 40, 60, 80, 100), 5),
    DATASETS,
)
TABLE1_ROWS = replace(TABLE1, name="table1-rows", methods=SGC_METHODS,
                      title="Table 1 with every node's features divided by their sum")  # fmt: skip
TABLE2 = Experiment(
    "table2", "GCN with PairNorm-SI and with skip connections", GCN_METHODS, FIVE_RUNS, DATASETS
)
TABLE3 = Experiment(
    "table3", "GAT with PairNorm-SI and with skip connections", GAT_METHODS, FIVE_RUNS, DATASETS
)
FIGURE1 = Experiment(
    "figure1",
    "SGC against depth: losses, accuracies, row-diff, col-diff",
    RAW_SGC_METHODS,
    {0: 5},
    DATASETS,
    settings={"split": "random"},
    measures=("row_diff", "col_diff"),
    in_tables=False,
)
FIGURE3 = Experiment(
    "figure3",
    "GCN and GAT against depth",
    {name: PLAIN_OR_NORMALIZED[name] for name in ("GCN", "GCN-PN", "GAT", "GAT-PN")},
    {0: 5},
    DATASETS,
)
FIGURE4 = Experiment(
    "figure4",
    "SGC, GCN and GAT against depth where all vectors outside the training set are missing",
    PLAIN_OR_NORMALIZED,
    {100: 5},
    DATASETS,
)
BARS = Experiment(
    "bars",
    "Skip connections and PairNorm-SI, by the share of missing vectors",
    {**GCN_METHODS, **GAT_METHODS},
    {0: 5, 70: 1, 80: 1, 90: 1, 100: 5},  # a single run between, as in the paper
    DATASETS,
)
TUNED = Experiment(
    "tuned",
    "SGC with and without PairNorm, each with its own best optimizer",
    {
        f"{name}-tuned": {
            **settings,
            "learning_rate": (0.005, 0.05, 0.2),
            "weight_decay": (0.0, 5e-6, 5e-4),
            "dropout": (0.0, 0.6),
        }
        for name, settings in RAW_SGC_METHODS.items()
    },
    TABLE1.missing,
    DATASETS,
    search_runs=1,
    searched=("learning_rate", "weight_decay", "dropout"),
)
NORMS_IN_ORDER = [
    (f"{order} {norm}", {"order": order, "norm": norm})
    for order in ("after", "before")
    for norm in ("PN", "PN-SI", "PN-SCS")
]
ABLATION = Experiment(
    "ablation",
    "Which adjacency, which order, which norm: where the paper and its code disagree",
    {
        **{f"GCN {adjacency}": {**GCN, "adjacency": adjacency} for adjacency in ("rw", "sym")},
        **{
            f"GCN {adjacency} {name}": {**GCN, "adjacency": adjacency, **settings}
            for adjacency in ("rw", "sym")
            for name, settings in NORMS_IN_ORDER
        },
        "GAT": GAT,
        **{f"GAT {name}": {**GAT, **settings} for name, settings in NORMS_IN_ORDER},
    },
    FIVE_RUNS,
    ("cora", "citeseer"),
    settings={"depth": (2, 4, 8, 12)},
)
SCALING = Experiment(
    "scaling",
    "Features divided by their sum, and raw",
    {
        name + suffix: {**settings, **scaling, "depth": (1, 2, 4, 8, 15, 30) if "SGC" in name else (2, 4, 8)}
        for name, settings in {**SGC_METHODS, **GCN_METHODS}.items()
        if name in ("SGC", "SGC-PN", "GCN", "GCN-PN", "GCN-t1")
        for suffix, scaling in (("", {"scaling": "rows"}), (" raw", {"scaling": "none"}))
    },
    {0: 2, 100: 2},
    ("cora", "coauthor-cs"),
)
SGC_MODES = Experiment(
    "sgc-modes",
    "SGC with PairNorm-SI, next to SGC with PairNorm",
    {**RAW_SGC_METHODS, "SGC-PN-SI": {**RAW_SGC_METHODS["SGC-PN"], "norm": "PN-SI"}},
    FIVE_RUNS,
    DATASETS,
)
# The appendix: "12-layer GCNs with #hidden=128 and dropout=0.6 in 1000 epochs".
DEEP_GCN = {**GCN, "depth": 12, "hidden": 128}
DEEP_GCN_CHANGES: dict[str, Settings] = {
    "GCN": {"norm": "none"},
    "GCN-PN": {},
    "GCN-PN-SI": {"norm": "PN-SI"},
    "GCN-PN before the activation": {"order": "before"},
    "GCN-PN symmetric adjacency": {"adjacency": "sym"},
    "GCN-PN public split": {"split": "default"},
    "GCN-PN raw features": {"scaling": "none"},
    "GCN-PN scale 10": {"scale": 10.0},
    "GCN-PN no dropout": {"dropout": 0.0},
    "GCN-PN no weight decay": {"weight_decay": 0.0},
}
DEEP_GCN_RUNS = Experiment(
    "deep-gcn",
    "The 12-layer GCN of the appendix, in 20 runs, and variants of the choices that the paper leaves open",
    {
        name: {**DEEP_GCN, "split": "random", "norm": "PN", **change}
        for name, change in DEEP_GCN_CHANGES.items()
    },
    {0: 20},
    ("cora",),
    in_tables=False,
)
CASE_STUDY = Experiment(
    "case-study",
    "Distances of connected and of random pairs, layer by layer",
    {
        f"{model}-{norm}" if norm != "none" else model: {**settings, "norm": norm}
        for model, settings in (("SGC", {**SGC, "depth": 40, "scaling": "none"}), ("GCN", DEEP_GCN))
        for norm in ("none", "PN", "PN-SI")
    },
    {0: 1},
    ("cora",),
    settings={"split": "random"},
    in_tables=False,
)
SPLITS = Experiment(
    "splits",
    "PairNorm's gain over ten random splits with 20 training nodes a class",
    {
        name: {**settings, "epochs": 500, "depth": (1, 2, 4, 8, 15, 30, 60) if "SGC" in name else (2, 4, 12)}
        for name, settings in PLAIN_OR_NORMALIZED.items()
    },
    {0: 10, 100: 10},
    DATASETS,
    settings={"split": "per-class-20@{seed}"},
    in_tables=False,
)
CLAIMS_AGAIN = Experiment(
    "claims",
    "More runs of what decides a claim by less than the noise of its runs",
    {},  # which these are, the runs of the other experiments say
    dict.fromkeys(sorted({*TABLE1.missing, *BARS.missing}), 20),
    DATASETS,
)

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        TABLE1, TABLE1_ROWS, TABLE2, TABLE3, FIGURE1, FIGURE3, FIGURE4, BARS, CASE_STUDY, DEEP_GCN_RUNS,
        SGC_MODES, TUNED, ABLATION, SCALING, SPLITS, CLAIMS_AGAIN,
    )
}  # fmt: skip
ALL = (*[*EXPERIMENTS][:5], "figure2", *[*EXPERIMENTS][5:])
"""Every experiment. Figure 2 is an illustration: nothing is trained for it."""
GROUPS = {"paper": tuple(name for name in ALL if name not in ("scaling", "splits", "claims")), "all": ALL}
"""The paper, with its models tuned and its choices varied; and what looks into differences from it, too."""
NAMES = (*ALL, *GROUPS)
"""What can be reproduced."""


@dataclass(frozen=True)
class Selection:
    """Experiments to reproduce, and the selected part of them.

    Args:
        what: names of experiments; ``paper`` for those of the paper, ``all`` for every one.
        datasets: only these graphs.
        missing: only these percentages of missing vectors.
        runs, epochs, depths: instead of the paper's.

    >>> [table] = Selection(["table1"], datasets=["cora"], runs=1, missing=[0, 100]).experiments()
    >>> len(list(table.requested()))
    240
    """

    what: Sequence[str] = ("all",)
    datasets: Sequence[str] | None = None
    runs: int | None = None
    epochs: int | None = None
    depths: Sequence[int] | None = None
    missing: Sequence[int] | None = None

    def experiments(self) -> list[Experiment]:
        """Return the selected parts of the named experiments; raise an error if nothing is left."""
        for name in self.what:
            one_of("what to reproduce", name, NAMES)
        requested = [EXPERIMENTS[name] for name in self.names() if name in EXPERIMENTS]
        narrowed = [small for experiment in requested if (small := self.narrow(experiment))]
        rates = sorted({percent for experiment in requested for percent in experiment.missing})
        for percent in self.missing or ():
            if requested and percent not in rates:
                problem = f"missing is {percent}"
                expected = f"one of {', '.join(map(str, rates))}, which {', '.join(self.what)} has"
                raise PairNormError(problem, code="out-of-range", value=percent, expected=expected)
        if requested and not narrowed:
            graphs = dict.fromkeys(name for experiment in requested for name in experiment.datasets)
            problem, hint = f"nothing of {', '.join(self.what)} is left", "Leave out {dataset} or {missing}."
            expected = f"some of {', '.join(graphs)} and of {', '.join(map(str, rates))}% missing"
            more: dict[str, Any] = {"expected": expected, "hint": hint, "dataset": ..., "missing": ...}
            raise PairNormError(problem, code="nothing-selected", value=self.what, **more)
        return narrowed

    def names(self) -> list[str]:
        """Return the names of the requested experiments, with groups expanded."""
        return list(dict.fromkeys(name for group in self.what for name in GROUPS.get(group, (group,))))

    def narrow(self, experiment: Experiment) -> Experiment | None:
        """Return the selected part of an experiment, None if nothing of it is left."""
        for name in self.datasets or ():
            one_of("dataset", name, DATASETS)
        for name, values in (("runs", [self.runs]), ("epochs", [self.epochs]), ("depths", self.depths or ())):
            for value in values:
                if value is not None:
                    whole_number(name, value, least=1)
        missing = {
            percent: runs if self.runs is None else self.runs
            for percent, runs in experiment.missing.items()
            if self.missing is None or percent in self.missing
        }
        graphs = tuple(name for name in experiment.datasets if self.datasets is None or name in self.datasets)
        if not missing or not graphs:
            return None
        settings: dict[str, Any] = dict(experiment.settings)
        if self.epochs is not None:
            settings["epochs"] = self.epochs
        if self.depths is not None:
            settings["depth"] = tuple(sorted(set(self.depths)))
        return replace(experiment, missing=missing, datasets=graphs, settings=settings)

    @property
    def options(self) -> str:
        """The options as they are written on a command line."""
        single = {"runs": self.runs and [self.runs], "epochs": self.epochs and [self.epochs]}
        values = {"dataset": self.datasets, **single, "depth": self.depths, "missing": self.missing}
        return "".join(f" --{name} {','.join(map(str, value))}" for name, value in values.items() if value)
