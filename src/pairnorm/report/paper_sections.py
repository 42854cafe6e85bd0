"""What the report says beyond the paper's tables: whose the gain is, scaling, protocol, own trials."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from math import isnan
from statistics import fmean

from pairnorm.base.escaping import markdown as markdown_text
from pairnorm.base.escaping import markdown_code
from pairnorm.base.files import csv_text
from pairnorm.paper.experiments import ABLATION, DATASETS, EXPERIMENTS, SPLITS, Selection
from pairnorm.sweep.grid import Summary, TableCell, best
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.significance import paired_difference, significant
from pairnorm.sweep.tables import TITLES, Table, markdown, markdown_table
from pairnorm.train import Spec, Trial

OWN_FILE = "own-trials.csv"
# The most rows of a graph that the report shows; the file has all.
SHOWN = 50
_FIELDS = tuple(field.name for field in fields(Spec))
Show = Callable[[Table], str]
"""How a section shows a table: a page has it apart, and can sort it."""


def gain_section(table: Table | None, show: Show = markdown) -> str:
    """Return the section on SGC and SGC-PN when each has its own best optimizer."""
    if table is None:
        return ""
    complete = {entry.cell: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    lines = [
        "## How much of the gain is PairNorm's\n",
        "The paper trains SGC with the optimizer of GCN. Here validation accuracy also selects learning rate "
        "(0.005, 0.05, 0.2), weight decay (0, 5e-6, 5e-4) and dropout (0, 0.6), for SGC and for SGC-PN, both "
        "on raw features: first with one run of everything, then with all runs of the best setting.\n",
        show(table),
    ]
    rows, sentences = [], []
    for dataset in DATASETS:
        for percent in table.percents:
            methods = ("SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned")
            ours = [complete.get(TableCell(dataset, method, percent)) for method in methods]
            known = [one for one in ours if one is not None]
            if len(known) < len(methods):
                continue
            runs = [one.best.values("test_accuracy") for one in known]
            gains = [paired_difference(runs[1], runs[0]), paired_difference(runs[3], runs[2])]
            rows.append([TITLES[dataset], f"{percent}%", *map(str, gains)])
            if percent == 100:
                untuned, untuned_pn, tuned, tuned_pn = (f"{one.accuracy:.3f}" for one in known)
                sentences.append(
                    f"On {TITLES[dataset]} with all vectors missing, a tuned SGC reaches {tuned} without "
                    f"PairNorm and {tuned_pn} with it; with the paper's optimizer {untuned} and {untuned_pn}."
                )
    headings = ["Graph", "Missing", "Gain of PairNorm, paper's optimizer (95%)", "Both tuned (95%)"]
    return "\n".join([*lines, markdown_table(headings, rows, left=1), "", *sentences]) + "\n"


def scaling_section(tables: Mapping[str, Table], show: Show = markdown) -> str:
    """Return the section on features that are divided by their sum and features that are not."""
    shown = {name: tables[name] for name in ("scaling", "table1", "table1-rows") if name in tables}
    if "scaling" not in shown:
        return ""
    lines = [
        "## How features are scaled\n",
        "The paper's text does not say how. Its released code gives SGC features as they are, GCN and GAT "
        "the features of a node divided by their sum, and so do the tables above. Here the other way for "
        "both; `raw` are features as they are.\n",
        show(shown.pop("scaling")),
    ]
    for table in shown.values():
        apart = [entry.difference for entry in table.entries if entry.difference is not None]
        if apart:
            lines.append(
                f"- `{table.name}`, {table.title}: {fmean(map(abs, apart)):.3f} from the paper on average "
                f"over {len(apart)} numbers, {sum(one < -0.02 for one in apart)} of them over 0.02 under it "
                f"([CSV]({table.name}.csv))"
            )
    return "\n".join(lines) + "\n"


def splits_section(results: ResultIndex, selection: Selection) -> str:
    """Return the section on PairNorm's gain over random splits, paired by split."""
    experiment = selection.narrow(SPLITS)
    if experiment is None:
        return ""
    rows, gaps = [], []
    for dataset, model, percent in product(experiment.datasets, ("SGC", "GCN", "GAT"), experiment.missing):
        pair = [
            results.chosen(experiment, TableCell(dataset, method, percent))
            for method in (model, f"{model}-PN")
        ]
        plain, normalized = pair
        if plain is None or normalized is None or not (plain.complete and normalized.complete):
            continue
        gaps.append(paired_difference(*(one.best.values("test_accuracy") for one in (normalized, plain))))
        shown = [f"{one.accuracy:.3f} @ {one.layers}" for one in (plain, normalized)]
        rows.append([TITLES[dataset], model, f"{percent}%", *shown, str(gaps[-1])])
    if not rows:
        return ""
    decided = significant(gaps)
    for row, gap, is_significant in zip(rows, gaps, decided, strict=True):
        row.append("no" if not is_significant else "better" if gap.mean > 0 else "worse")
    counts = Counter((row[2], row[-1]) for row in rows)
    sentences = [
        f"At {percent}% missing PairNorm is significantly better in {counts[f'{percent}%', 'better']} and "
        f"significantly worse in {counts[f'{percent}%', 'worse']} of "
        f"{sum(row[2] == f'{percent}%' for row in rows)} cases."
        for percent in experiment.missing
    ]
    headings = ["Graph", "Model", "Missing", "Without", "With PairNorm", "Difference (95%)", "Significant"]
    text = (
        "The tables above have one split. Here every run has a random split of its own with 20 training "
        f"nodes a class, {min(experiment.missing.values())} in all, the same for both models; 500 epochs, "
        "fewer depths. SGC has PairNorm and raw features, GCN and GAT have PairNorm-SI. Differences are "
        "paired by split and tested together (Student's t, 5%, Holm)."
    )
    table = markdown_table(headings, rows, left=2)
    return f"## Ten random splits\n\n{text}\n\n{' '.join(sentences)}\n\n{table}\n"


def ablation_section(
    results: ResultIndex, selection: Selection, table: Table | None, show: Show = markdown
) -> str:
    """Return the section on adjacency, order and norm, and what it recommends."""
    experiment = selection.narrow(ABLATION)
    if table is None or experiment is None:
        return ""
    best_by_cell = {
        cell: chosen
        for cell in experiment.cells()
        if (chosen := results.chosen(experiment, cell)) is not None and chosen.complete
    }
    lines = [
        "## Which protocol: adjacency, order, norm\n",
        "The paper, its released code and its authors' remarks disagree on details. `rw` is the random-walk "
        "adjacency and `sym` the symmetric one (attention has neither); the norm comes `after` the "
        "activation (the text) or `before` it (the code); PN-SCS is in the code only.\n",
        show(table),
        "What changes when one choice is changed and the others stay (mean difference of test accuracy over "
        "graphs and the other choices):\n",
    ]
    rows = []
    for one, other in (("sym", "rw"), ("before", "after"), ("PN-SI", "PN"), ("PN-SCS", "PN")):
        for model in ("GCN", "GAT"):
            effects = [_effect(best_by_cell, model, one, other, percent) for percent in experiment.missing]
            if any(effect is not None for effect in effects):
                shown = ["" if effect is None else f"{effect:+.3f}" for effect in effects]
                rows.append([f"{model}: {one} instead of {other}", *shown])
    headings = ["Change", *(f"{percent}% missing" for percent in experiment.missing)]
    advice = [_recommendation(best_by_cell, model, list(experiment.missing)) for model in ("GCN", "GAT")]
    return "\n".join([*lines, markdown_table(headings, rows, left=1), "", *filter(None, advice)]) + "\n"


def _effect(
    best_by_cell: dict[TableCell, Chosen], model: str, one: str, other: str, percent: int
) -> float | None:
    """Return the mean difference between cells whose methods differ in one word only."""
    differences = []
    for cell, chosen in best_by_cell.items():
        words = cell.method.split(" ")
        if words[0] != model or one not in words or len(words) < 3 or cell.missing_percent != percent:
            continue
        twin = " ".join(other if word == one else word for word in words)
        if (against := best_by_cell.get(cell._replace(method=twin))) is not None:
            differences.append(chosen.accuracy - against.accuracy)
    return fmean(differences) if differences else None


def _recommendation(best_by_cell: dict[TableCell, Chosen], model: str, percents: Sequence[int]) -> str:
    """Name the method that validation prefers where every method has been tried to the end."""
    methods = [method for method in ABLATION.methods if method.split(" ")[0] == model]
    columns = [
        (dataset, percent)
        for dataset in ABLATION.datasets
        for percent in percents
        if all(TableCell(dataset, method, percent) in best_by_cell for method in methods)
    ]
    if not columns:
        return ""

    def mean(method: str, value: Callable[[Chosen], float], among: Iterable[tuple[str, int]]) -> float:
        return fmean(value(best_by_cell[TableCell(dataset, method, percent)]) for dataset, percent in among)

    # Chosen by validation, like everything else: the test set must not decide which protocol is best.
    scores = {
        method: mean(method, lambda chosen: chosen.best.validation, columns)
        for method in methods
        if len(method.split(" ")) > 2
    }
    best = max(scores, key=lambda method: scores[method])
    accuracies = [
        f"{mean(best, lambda chosen: chosen.accuracy, column):.3f} at {percent}% missing"
        for percent in percents
        if (column := [(dataset, other) for dataset, other in columns if other == percent])
    ]
    graphs = " and ".join(TITLES[dataset] for dataset in dict.fromkeys(dataset for dataset, _ in columns))
    return (
        f"**Recommendation for {model}: {' '.join(best.split(' ')[1:])}**: the best mean validation accuracy "
        f"over missing rates on {graphs} ({scores[best]:.3f}); test accuracy {', '.join(accuracies)}.\n"
    )


def own_trials(cells: Mapping[Spec, Sequence[Trial]], selection: Selection) -> list[Summary]:
    """Return the runs of every spec that no experiment asks for, as the paper has it or as it is selected."""
    known = _of_experiments(selection)
    return [Summary(spec, tuple(trials)) for spec, trials in cells.items() if spec not in known and trials]


def _of_experiments(selection: Selection) -> set[Spec]:
    experiments = {
        one
        for experiment in EXPERIMENTS.values()
        for one in (experiment, selection.narrow(experiment))
        if one is not None
    }
    return {spec for one in experiments for spec in one.specs()}


def _shortened(own: Sequence[Summary]) -> Iterator[str]:
    """Yield the command that compares trials with the paper's numbers that differ in their epochs only."""
    paper = _of_experiments(Selection())
    usual = {spec.epochs for spec in paper}
    counts = Counter(
        one.spec.epochs for one in own if any(one.spec.replace(epochs=epochs) in paper for epochs in usual)
    )
    for epochs, count in sorted(counts.items()):
        command = f"`pairnorm report --epochs {epochs}`"
        yield f"{command} shows {count:,} of them beside the paper's numbers: only their epochs differ.\n"


def own_section(own: Sequence[Summary]) -> str:
    """Return the section: of each graph the best spec by validation, and what varied, the best first."""
    if not own:
        return ""
    lines = [
        "## Trials of your own\n",
        f"{len(own):,} specs that are none of the paper's, ranked by mean validation accuracy; all are in "
        f"[{OWN_FILE}]({OWN_FILE}).\n",
        *_shortened(own),
    ]
    for dataset in dict.fromkeys(summary.spec.dataset for summary in own):
        summaries = [summary for summary in own if summary.spec.dataset == dataset]
        first = best(summaries)
        varied = [name for name in _FIELDS if len({getattr(one.spec, name) for one in summaries}) > 1]
        columns = [*varied, "runs", "validation", "test accuracy", *_measures(summaries)]
        lines += [
            f"### {markdown_text(dataset)}\n",
            f"Best by validation: {markdown_code(first.spec)}, {_accuracy(first)} of the test nodes over "
            f"{len(first.trials)} runs.\n",
        ]
        rows = [
            [
                *(markdown_text(getattr(one.spec, name)) for name in varied),
                str(len(one.trials)),
                f"{one.mean('validation_accuracy'):.3f}",
                _accuracy(one),
                *(f"{value:.3g}" if value is not None else "" for value in _values(one, summaries)),
            ]
            for one in sorted(summaries, key=lambda one: -one.validation)[:SHOWN]
        ]
        lines += [
            markdown_table(list(map(markdown_text, columns)), rows),
            "",
            *([f"… and {len(summaries) - SHOWN:,} more.\n"] if len(summaries) > SHOWN else []),
        ]
    return "\n".join(lines)


def own_csv(own: Sequence[Summary]) -> str:
    """Return all of them as CSV: a row for each spec, with every field of it."""
    rows = []
    for one in own:
        numbers = [one.mean("validation_accuracy"), one.mean("test_accuracy"), one.std("test_accuracy")]
        shown = [
            "" if value is None or isnan(value) else f"{value:.6g}"
            for value in (*numbers, *_values(one, own))
        ]
        rows.append([*(getattr(one.spec, name) for name in _FIELDS), len(one.trials), *shown])
    headings = (*_FIELDS, "runs", "validation_accuracy", "accuracy", "accuracy_std", *_measures(own))
    return csv_text(headings, rows)


def _measures(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(name for one in summaries for trial in one.trials for name in trial.measures))


def _values(one: Summary, among: Sequence[Summary]) -> list[float | None]:
    """Return the mean of each measure that any of them has; None where a run lacks it."""
    return [
        one.mean(name) if all(name in trial.measures for trial in one.trials) else None
        for name in _measures(among)
    ]


def _accuracy(one: Summary) -> str:
    spread = one.std("test_accuracy")
    return f"{one.mean('test_accuracy'):.3f}" + ("" if isnan(spread) else f" ± {spread:.3f}")
