"""Sections of the paper's report: gains of PairNorm, tables, scaling, protocol, claims."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from pairnorm.data import datasets
from pairnorm.paper.evidence import CASES, Verdict
from pairnorm.paper.experiments import DATASETS, SPLITS, Selection
from pairnorm.report.charts import BLUE, GREEN, VERMILLION, Block, differences
from pairnorm.report.document import Details, Markdown, Only, Section, Text
from pairnorm.report.document import Table as Shown
from pairnorm.sweep.grid import TableCell
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.significance import Difference, paired_difference, significant
from pairnorm.sweep.tables import TITLES, Table, by_missing_rate, legend
from pairnorm.train import Spec

MODEL_STYLES = {"SGC": (BLUE, "circle"), "GCN": (VERMILLION, "square"), "GAT": (GREEN, "triangle-up")}
LARGE_DIFFERENCE = 0.05
"""A difference from the paper that is listed."""


class Gain(NamedTuple):
    """The difference that PairNorm makes in one setting, and whether it is significant."""

    dataset: str
    model: str
    percent: int
    without: Chosen
    with_norm: Chosen
    difference: Difference
    is_significant: bool

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no``."""
        return "no" if not self.is_significant else "better" if self.difference.mean > 0 else "worse"


def _difference(one: Chosen, other: Chosen) -> Difference:
    return paired_difference(*(chosen.best.values("test_accuracy") for chosen in (one, other)))


def split_gains(results: ResultIndex, selection: Selection) -> list[Gain]:
    """Return PairNorm's gains over random splits, paired by split and tested together."""
    experiment = selection.narrow(SPLITS)
    if experiment is None:
        return []
    pairs = []
    for dataset, model, percent in product(experiment.datasets, MODEL_STYLES, experiment.missing):
        cells = (TableCell(dataset, method, percent) for method in (model, f"{model}-PN"))
        without, with_norm = (results.chosen(experiment, cell) for cell in cells)
        if without and with_norm and without.complete and with_norm.complete:
            pairs.append((dataset, model, percent, without, with_norm, _difference(with_norm, without)))
    decided = significant([pair[-1] for pair in pairs])
    return [Gain(*pair, is_sure) for pair, is_sure in zip(pairs, decided, strict=True)]


def splits_section(gains: Sequence[Gain]) -> Section | None:
    """Return the figure and the table of PairNorm's gains over random splits."""
    if not gains:
        return None
    rows = []
    for gain in gains:
        both = (f"{chosen.accuracy:.3f} @ {chosen.layers}" for chosen in (gain.without, gain.with_norm))
        where = [TITLES[gain.dataset], gain.model, f"{gain.percent}%"]
        rows.append([*where, *both, str(gain.difference), gain.verdict])
    headings = ["Graph", "Model", "Missing", "Without", "With PairNorm", "Difference (95%)", "Significant"]
    runs = min(gain.difference.runs for gain in gains)
    text = (
        f"Every run has a random split of its own with 20 training nodes a class, {runs} in all, the same "
        "for both models; 500 epochs, fewer depths than in the tables below, which have one split. SGC has "
        "PairNorm and raw features, GCN and GAT have PairNorm-SI. Differences are paired by split and tested "
        "together (Student's t, 5%, Holm); bars are 95% intervals; the panels have "
        "ranges of their own. Accuracy @ layers chosen by validation."
    )
    charts = []
    for percent in dict.fromkeys(gain.percent for gain in gains):
        group = [gain for gain in gains if gain.percent == percent]
        name = f"PairNorm's gain, {'all features' if percent == 0 else f'{percent}% missing'}"
        labels = [f"{TITLES[gain.dataset]}, {gain.model}" for gain in group]
        values, styles = [gain.difference for gain in group], [MODEL_STYLES[gain.model] for gain in group]
        charts.append(differences(name, labels, values, styles, "gain in accuracy", "figures/gains"))
    return Section("Does PairNorm help?", [*charts, Text(text), Shown(headings, rows)], wide=True)


def table_blocks(table: Table) -> list[Block]:
    """Return a table with its legend, in Markdown with links to its files."""
    links = Only("markdown", [Markdown(f"[CSV]({table.name}.csv), [LaTeX]({table.name}.tex)")])
    return [Shown(*by_missing_rate(table), formatted=True, left=2), Text(legend(table)), links]


def differences_section(tables: Sequence[Table]) -> Section | None:
    """Return the section on numbers that differ from the paper's."""
    known = [entry for table in tables for entry in table.entries if entry.difference is not None]
    if not known:
        return None
    large = [entry for entry in known if abs(entry.difference or 0) > LARGE_DIFFERENCE]
    rows = []
    for entry in sorted(large, key=lambda entry: -abs(entry.difference or 0)):
        assert entry.ours is not None
        assert entry.paper is not None
        both = (entry.ours, entry.paper)
        values = [f"{number.accuracy:.3f} @ {number.layers}" for number in both]
        dataset, method, percent = entry.cell
        rows.append([TITLES[dataset], method, f"{percent}%", *values, f"{entry.difference:+.3f}"])
    headings = ["Graph", "Method", "Missing", "Ours", "Paper", "Difference"]
    text = f"{len(large)} of {len(known)} numbers differ from the paper's by more than {LARGE_DIFFERENCE}."
    return Section("Where we differ from the paper", [Text(text), *([Shown(headings, rows)] if rows else [])])


def claims_section(decided: Sequence[Verdict]) -> Section:
    """Return all claims in one table, and below it, folded, the cases of each."""
    marks = {True: "yes", False: "no", None: "not run"}
    rows, evidence = [], []
    for verdict in decided:
        in_paper = verdict.in_paper.answer if verdict.in_paper else "no numbers"
        text = f"{verdict.claim.text} ({verdict.claim.section})"
        rows.append([text, in_paper, verdict.answer, verdict.strength])
        cases = [[case.label, marks[case.holds], case.evidence] for case in verdict.cases]
        columns = ["Case", "Holds", "Evidence"]
        if verdict.strength:
            columns.append("Margin (95%)")
            for case, row in zip(verdict.cases, cases, strict=True):
                row.append("" if case.margin is None else str(case.margin))
        tested = [Text(f"Tested: {verdict.claim.reading}."), Shown(columns, cases)]
        if verdict.run:
            evidence.append(Details(f"{verdict.claim.text} ({verdict.answer})", tested, folded=True))
    headings = ["The paper says", "In its numbers", "In ours", "How strongly"]
    return Section("Claim by claim", [Shown(headings, rows, search=True), Markdown(CASES), *evidence])


class TunedGain(NamedTuple):
    """The gain of SGC-PN over SGC, with the released code's optimizer and with the best one of each."""

    dataset: str
    percent: int
    untuned: Difference
    tuned: Difference


def tuned_gains(table: Table | None) -> list[TunedGain]:
    """Return the gains of the settings in which all four methods are complete."""
    if table is None:
        return []
    complete = {entry.cell: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    gains = []
    for dataset, percent in product(DATASETS, table.percents):
        cells = [
            TableCell(dataset, method, percent) for method in ("SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned")
        ]
        if complete.keys() >= {*cells}:
            plain, norm, plain_tuned, norm_tuned = (complete[cell] for cell in cells)
            both = _difference(norm, plain), _difference(norm_tuned, plain_tuned)
            gains.append(TunedGain(dataset, percent, *both))
    return gains


def gain_section(table: Table | None, blocks: Sequence[Any] = ()) -> Section | None:
    """Return the section on SGC and SGC-PN, each with the optimizer that validation selects for it."""
    if table is None:
        return None
    text = (
        "The paper's released code trains all models with one optimizer: Adam with a learning rate of 0.005 "
        "and a weight decay of 5e-4. Here validation accuracy also selects learning rate (0.005, 0.05, 0.2), "
        "weight decay (0, 5e-6, 5e-4) and dropout (0, 0.6), for SGC and for SGC-PN, both on raw features: "
        "first with one run of everything, then with all runs of the best setting."
    )
    gains = tuned_gains(table)
    rows = [[TITLES[gain.dataset], f"{gain.percent}%", str(gain.untuned), str(gain.tuned)] for gain in gains]
    headings = ["Graph", "Missing", "Gain of PairNorm, released optimizer (95%)", "Both tuned (95%)"]
    shown = [Shown(headings, rows)] if rows else []
    return Section("How much of the gain is PairNorm's", [Text(text), *blocks, *shown])


def scaling_section(tables: Mapping[str, Table], blocks: Sequence[Any] = ()) -> Section | None:
    """Return the section on features that are divided by their sum and features that are not."""
    if "scaling" not in tables:
        return None
    text = (
        "The paper's text does not say how. Its released code gives SGC features as they are, GCN and GAT "
        "the features of a node divided by their sum, and so do the tables above. Here the other way for "
        "both; “raw” are features as they are. These are two runs and fewer depths than in the tables above."
    )
    items = [
        f"- {table.title}: {fmean(map(abs, gaps)):.3f} from the paper on average "
        f"over {len(gaps)} numbers, {sum(gap < -0.02 for gap in gaps)} of them over 0.02 under it "
        f"([CSV]({table.name}.csv))"
        for table in (tables[name] for name in ("table1", "table1-rows") if name in tables)
        if (gaps := [entry.difference for entry in table.entries if entry.difference is not None])
    ]
    return Section("How features are scaled", [Text(text), *blocks, Markdown("\n".join(items))])


def ablation_section(table: Table | None, blocks: Sequence[Any] = ()) -> Section | None:
    """Return the section on adjacency, order and norm."""
    if table is None:
        return None
    complete = {entry.cell: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    text = (
        "The paper, its released code and its authors' remarks disagree on details. “rw” is the random-walk "
        "adjacency and “sym” the symmetric one (attention has neither); the norm comes “after” the "
        "activation (the text) or “before” it (the code); PN-SCS is in the code only. Validation chooses "
        "among 2, 4, 8 and 12 layers, fewer than in the tables above."
    )
    changes = "What changes when one choice is changed and the others stay (mean difference of test accuracy "
    changes += "over graphs and the other choices):"
    rows: list[list[str]] = []
    by_spec = {chosen.best.spec.replace(depth=2): chosen for chosen in complete.values()}
    fields = (("adjacency", "sym", "rw"), ("order", "before", "after"), ("norm", "PN-SI", "PN"),
              ("norm", "PN-SCS", "PN"))  # fmt: skip
    for (field, value, other), model in product(fields, ("GCN", "GAT")):
        effects = [_effect(by_spec, model, field, value, other, percent) for percent in table.percents]
        if any(effects):
            rows.append([f"{model}: {value} instead of {other}", *effects])
    headings = ["Change", *(f"{percent}% missing" for percent in table.percents)]
    shown = [Text(changes), Shown(headings, rows)]
    return Section("Which protocol: adjacency, order, norm", [Text(text), *blocks, *shown])


def _effect(
    by_spec: Mapping[Spec, Chosen], model: str, field: str, value: str, other: str, percent: int
) -> str:
    """Format the mean difference between models with a norm that differ in one field; empty for none."""
    gaps = [
        chosen.accuracy - by_spec[twin].accuracy
        for spec, chosen in by_spec.items()
        if (spec.model, spec.missing_rate, getattr(spec, field)) == (model, percent / 100, value)
        and spec.norm != "none"
        and (twin := spec.replace(**{field: other})) in by_spec
    ]
    return f"{fmean(gaps):+.3f}" if gaps else ""


def statistics_section() -> Section:
    """Return the statistics of the four graphs."""
    rows = [
        [data.title, *(f"{count:,}" for count in (data.nodes, data.edges, data.listed_edges, data.features)),
         str(data.classes), f"{data.label_rate:.3f}"]
        for data in datasets()
        if data.name in DATASETS
    ]  # fmt: skip
    headings = ["Graph", "Nodes", "Edges", "Edges in the paper", "Features", "Classes", "Label rate"]
    text = (
        "Edges are distinct and undirected; the paper counts all listed pairs, with repeats and self-loops."
    )
    return Section("Data sets", [Shown(headings, rows), Text(text)])
