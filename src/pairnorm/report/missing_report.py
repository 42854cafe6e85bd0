"""The comparison under missing features as CSV and as a report in Markdown."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

from pairnorm.base.files import csv_text
from pairnorm.compare import missing
from pairnorm.compare.missing import FIT, FSD_CAP, FSD_CAP_RELEASED, REFITTED, SSNC, MissingCell, Protocol
from pairnorm.compare.missing_runs import MissingResults
from pairnorm.report.document import Details, Document, Markdown, Section, Table
from pairnorm.sweep.significance import Difference, Runs, paired_difference, significant
from pairnorm.sweep.tables import TITLES as GRAPHS
from pairnorm.sweep.tables import show_mean

COLUMNS = ("protocol", "dataset", "fill", "model", "missing_percent", "accuracy", "accuracy_std", "runs",
           "macro_f1", "auc", "published")  # fmt: skip
TITLES = {**GRAPHS, **{name: f"{GRAPHS[full]}, reached" for full, name in missing.REACHED.items()}}
METRICS = ("accuracy", "macro_f1", "auc")
MIN_OTHERS = 5
"""Other methods that a setting needs to count in the summary; the most frequent class is none."""
IMPUTATION_TITLES = {
    "zero": "zero",
    "mean": "column mean",
    "mass": "known-neighbor mean",
    "fp": "feature propagation",
    "pcfi": "PCFI",
    "mask": "zero and mask columns",
}
# Accuracies that papers report under the protocol of feature propagation, on Cora, Citeseer and Pubmed.
PUBLISHED: dict[tuple[str, str, str, float], tuple[float, float, float]] = {
    ("fp-vectors", "zero", "GCN", 0): (0.827, 0.700, 0.775),
    ("fp-vectors", "zero", "GCN", 99.5): (0.435, 0.313, 0.461),
    ("fp-vectors", "fp", "GCN", 99.5): (0.727, 0.580, 0.742),
    ("fp-vectors", "pcfi", "GCN", 99.5): (0.754, 0.661, 0.744),
    ("fp-vectors", "fsd-cap", FSD_CAP_RELEASED, 99.5): (0.806, 0.719, 0.770),
    ("fp-entries", "pcfi", "GCN", 99.5): (0.786, 0.691, 0.760),
}
INTRODUCTION = f"""\
Written by `pairnorm reproduce missing` from the runs in the store. Mean test accuracy ± standard deviation
over the runs (their number in brackets where some are pending). For each trained method the validation
accuracy of the first run selected one of twelve candidates; under the protocol of feature propagation it has
the published settings. `{FIT}` trains on the training labels; “{REFITTED}” also trains on the validation
labels after the selection. Bold: the best of a column, without that row and “{FSD_CAP_RELEASED}”.
`{FIT}` has its default time limit. Empty cells were not run.

“Reached” counts only test nodes in a component with a training node: at 100% missing no feature and no label
reaches the others, 6% of the test nodes of Cora and 33% of those of Citeseer. For nodes that no feature and
no label reaches, every method of `{SSNC.name}` has the fallback of `{FIT}`: its mean prediction for the other
nodes to label, weighted by how often labeled nodes of a class would be unreachable. For this the selected
candidates of trained methods are trained again; validation accuracy had selected them without this fallback.
Pubmed, Coauthor CS and the graphs of the published protocol are connected."""
EXTERNAL_RESULTS = f"""\
Not run by us: PaGCN (published: 0.318 / 0.242 / 0.388 on Cora / Citeseer / Pubmed, whole vectors, 99.5%).
FSD-CAP (ICLR 2026) is implemented from its formulas, with the settings that its authors state for Cora. In
its released code the imputation uses the true labels of the validation nodes (`pre_out_best =
data.y.clone()`, overwritten at the test nodes only), unlike the other methods: that is the row
“{FSD_CAP_RELEASED}”, next to the published numbers, and it is not compared. In the row “{FSD_CAP}” the
classes of validation nodes are predicted, like those of test nodes."""


class Line(NamedTuple):
    """The results of a method in one cell of the comparison."""

    cell: MissingCell
    runs: Mapping[str, Runs]
    published: float = nan

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the runs, NaN where it is unknown."""
        return fmean(self.runs[metric].values()) if self.runs.get(metric) else nan

    @property
    def accuracies(self) -> list[float]:
        """The test accuracy of every run."""
        return list(self.runs["accuracy"].values())

    @property
    def std(self) -> float:
        """The sample standard deviation of the accuracy over the runs, NaN for a single one."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else nan

    @property
    def scores(self) -> Runs:
        """The metric of the graph by seed."""
        return self.runs[_metric(self.cell.dataset)]

    @property
    def score(self) -> float:
        """The mean in the metric of the graph, rounded as it is shown."""
        return round(self.mean(_metric(self.cell.dataset)), 3)

    @property
    def method(self) -> str:
        """The name of the method in tables."""
        imputation = IMPUTATION_TITLES.get(self.cell.imputation)
        return self.cell.model if imputation is None else f"{self.cell.model}, {imputation}"

    @property
    def is_compared(self) -> bool:
        """Whether the method has runs, and trains on no more labels than others."""
        return bool(self.accuracies) and self.cell.model not in missing.MORE_LABELS


def _metric(dataset: str) -> str:
    """Return the metric of a graph: AUC on `german`, macro F1 on other tables, else accuracy."""
    if dataset not in missing.TABLES:
        return "accuracy"
    return "auc" if dataset == "german" else "macro_f1"


def lines(protocols: Sequence[Protocol], results: MissingResults) -> list[Line]:
    """Return a line for every cell that has runs, or a published number."""
    all_lines = (line for protocol in protocols for line in _lines(protocol, results))
    return [line for line in all_lines if line.accuracies or not isnan(line.published)]


def _lines(protocol: Protocol, results: MissingResults) -> Iterator[Line]:
    """Yield one line per cell and test set."""
    trained = {*protocol.cells()} - {*protocol.fallback_cells()}
    evaluated = [
        cell._replace(model=model)
        for cell in protocol.evaluated_cells()
        for model in ((FIT, REFITTED) if cell.model == FIT else (cell.model,))
    ]
    for cell in [*protocol.cells(), *evaluated]:
        if cell in trained:
            accuracies = {trial.seed: trial.test_accuracy for trial in results.index.runs(protocol, cell)}
            yield Line(cell, {"accuracy": accuracies}, _published_accuracy(cell))
            continue
        for dataset in protocol.test_sets(cell.dataset):
            test_set = cell._replace(dataset=dataset)
            by_seed = (results.evaluated.get((test_set, seed)) for seed in protocol.seeds(cell))
            rows = [row for row in by_seed if row is not None]
            runs = {name: {row.seed: getattr(row, name) for row in rows} for name in METRICS}
            yield Line(test_set, runs, _published_accuracy(test_set))


def _published_accuracy(cell: MissingCell) -> float:
    numbers = PUBLISHED.get((cell.protocol, cell.imputation, cell.model, cell.missing_percent), ())
    return dict(zip(missing.PROTOCOLS[cell.protocol].datasets, numbers, strict=False)).get(cell.dataset, nan)


def as_csv(lines: Sequence[Line]) -> str:
    """Return the lines as CSV, empty where a number is not known."""
    rows = []
    for line in lines:
        numbers = (line.mean("accuracy"), line.std, line.mean("macro_f1"), line.mean("auc"), line.published)
        accuracy, std, *others = ("" if isnan(number) else f"{number:.4f}" for number in numbers)
        percent = f"{line.cell.missing_percent:g}"
        rows.append([*line.cell[:4], percent, accuracy, std, len(line.accuracies), *others])
    return csv_text(COLUMNS, rows)


def document(
    protocols: Sequence[Protocol], lines: Sequence[Line], origins: Mapping[str, int] = MappingProxyType({})
) -> Document:
    """Return the comparison as a document."""
    sections = [Section("fit against the other methods", _fit_against_others(lines))]
    for protocol in protocols:
        protocol_lines = [line for line in lines if line.cell.protocol == protocol.name]
        tables = [
            Details(f"{percent:g}% missing", [_table(protocol, group)])
            for percent in protocol.missing
            if (group := [line for line in protocol_lines if line.cell.missing_percent == percent])
        ]
        blocks: list[Any] = [Markdown(f"{protocol.title}."), *tables]
        if protocol.name == "fp-vectors":
            blocks.append(Markdown(EXTERNAL_RESULTS))
        if protocol_lines:
            sections.append(Section(protocol.name, blocks))
    lead, listed = INTRODUCTION, [f"{origin} ({count:,})" for origin, count in origins.items()]
    if len(listed) > 1:
        lead += f"\n\nNot every row was run again after a change. Runs by commit: {', '.join(listed)}."
    return Document("Missing features: which method where", [], sections, lead=lead)


def _table(protocol: Protocol, lines: Sequence[Line]) -> Table:
    names = [name for dataset in protocol.datasets for name in protocol.test_sets(dataset)]
    datasets = [name for name in names if any(line.cell.dataset == name for line in lines)]
    top: dict[str, float] = {}
    rows: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in lines:
        rows[line.method][line.cell.dataset] = line
        if line.is_compared:
            top[line.cell.dataset] = max(line.score, top.get(line.cell.dataset, 0.0))
    cells = []
    for method, of in rows.items():
        shown = (_format_cell(protocol, of[name], top.get(name)) if name in of else "" for name in datasets)
        cells.append([method, *shown])
    return Table(["Method", *(TITLES.get(name, name) for name in datasets)], cells, formatted=True)


def _format_cell(protocol: Protocol, line: Line, top: float | None) -> str:
    text = "not run"
    if line.accuracies:
        text = show_mean(line.mean("accuracy"), line.std)
        if line.cell.dataset in missing.TABLES:
            text = f"{line.score:.3f} (accuracy {text})"
        text = f"**{text}**" if line.is_compared and line.score == top else text
        text += "" if len(line.accuracies) == len(protocol.seeds(line.cell)) else f" [{len(line.accuracies)}]"
    return text if isnan(line.published) else f"{text}, published {line.published:.3f}"


def _fit_against_others(lines: Sequence[Line]) -> list[Markdown | Table]:
    """Compare ``fit`` with the most accurate other method of every setting."""
    settings: dict[tuple[str, str, float], list[Line]] = defaultdict(list)
    for line in lines:
        settings[line.cell.protocol, line.cell.dataset, line.cell.missing_percent].append(line)
    rows, gaps, has_enough = list[list[str]](), list[Difference](), list[bool]()
    for (protocol, dataset, percent), group in settings.items():
        compared = [line for line in group if line.is_compared]
        ours = next((line for line in compared if line.cell.model == FIT), None)
        # The last says whether one number stands for all runs.
        others: list[tuple[float, str, Runs | float, bool]] = [
            (line.score, line.method, line.scores, len(missing.PROTOCOLS[protocol].seeds(line.cell)) == 1)
            for line in compared
            if line is not ours
        ]
        others += [
            (line.published, f"{line.method}, as published", line.published, True)
            for line in group
            if not isnan(line.published) and line.cell.model not in missing.MORE_LABELS
        ]
        if ours is None or not others:
            continue
        value, best, runs, is_fixed = max(others, key=lambda other: other[:2])
        gap = paired_difference(ours.scores, runs)
        if is_fixed or runs.keys() == ours.scores.keys():  # type: ignore[union-attr]
            gap = gap._replace(mean=round(ours.score - value, 3))  # as the two columns next to it
        gaps.append(gap)
        number = sum(line.cell.model not in (FIT, missing.MOST_FREQUENT) for line in compared)
        has_enough.append(number >= MIN_OTHERS)
        where = [protocol, TITLES.get(dataset, dataset), f"{percent:g}%"]
        rows.append([*where, f"{ours.score:.3f}", best, f"{value:.3f}", str(number), str(gap)])
    if not rows:
        return [Markdown("`fit` has not been run next to other methods yet.")]
    decided = iter(significant([gap for gap in gaps if gap.runs > 1]))
    verdicts = [
        "one run" if gap.runs < 2 else "no" if not next(decided) else "better" if gap.mean > 0 else "worse"
        for gap in gaps
    ]
    counts = Counter(verdicts)
    enough = [gap for gap, many in zip(gaps, has_enough, strict=True) if many]
    text = (
        f"{len(enough)} settings have {MIN_OTHERS} or more other methods. In "
        f"{sum(gap.mean >= 0 for gap in enough)} of them `fit` has the highest mean or equals it. The other "
        f"{len(rows) - len(enough)} settings have fewer methods and say little. "
        f"{len(gaps) - counts['one run']} have several runs of both: in {counts['better']} of them `fit` is "
        f"significantly better, in {counts['worse']} worse (Student's t, paired over runs, 5% for all of "
        "them, Holm). The best other is selected on test, hence optimistic, among the methods that were run "
        "and published numbers for the protocol. On tables the numbers are macro F1, on `german` AUC. "
        "Difference: over the runs of both, with its 95% interval in brackets."
    )
    headings = ("Protocol", "Graph", "Missing", "`fit`", "Best other", "Its result", "Others run",
                "Difference", "Significant")  # fmt: skip
    shown = [[*row, verdict] for row, verdict in zip(rows, verdicts, strict=True)]
    return [Markdown(text), Table(headings, shown, formatted=True)]
