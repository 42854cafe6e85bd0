"""The report of the comparison by depth: which method to use where, rankings, and what was not run."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from pairnorm.base.errors import markdown
from pairnorm.compare.depth import LONG_RANGE, DepthCell, DepthComparison, DepthTable, Row
from pairnorm.compare.depth_analysis import (
    MAX_NAMED,
    NO_METHOD,
    PAIR_NORM,
    Choice,
    Selected,
    choose_depths,
    comparable,
    describe_missing,
    group_by,
    list_methods,
    never_trained,
    ranked,
    short,
    title,
)
from pairnorm.report.document import Details, Document, Markdown, Only, Section, Table
from pairnorm.sweep.significance import ERROR_RATE, compare_with, paired_difference
from pairnorm.sweep.tables import show_mean

DEEP_LAYERS = 16
LARGE_GRAPHS = ("pubmed", "coauthor-cs")
"""Those of the package's graphs with some 19,000 nodes; the others have 3,000."""
SITUATIONS: dict[str, Callable[[Row], bool]] = {
    "few labels": lambda row: True,
    f"very deep: {DEEP_LAYERS} layers or more": lambda row: row["depth"] >= DEEP_LAYERS,
    "a larger graph": lambda row: row["dataset"] in LARGE_GRAPHS,
}
SELECTED = ("selected", "accuracy", "not significantly worse", "without a method", "PairNorm")
INTRODUCTION = """\
Written by `pairnorm {command}` from the runs in the store. Mean test accuracy ± standard deviation over
{runs} runs of {epochs} epochs. Every method had four settings at every depth, of learning rate, dropout and
its own parameter; the validation accuracy of the first run selected one. At 100% missing only training nodes
have features. Differences are tested with Student's t, paired over the runs, which share seeds and masks, at
an error rate of {rate:.0%} (Holm) for all comparisons with one method; with a method that validation accuracy
selects, for all pairs of methods, since a selected method is a lucky one. All runs have one split; other
splits differ by more. `Skip` at two layers is the model without it: no two hidden layers are a step apart.

Figures have 95% intervals over runs. The effective rank is that of the last hidden state: 1 where all nodes
share one direction, 0 where all are zero. Jumping knowledge need not use that state. A line ends before the
others where all runs diverged."""
PACKAGE_GRAPHS = """\
On Minesweeper and on chains depth matters with all features. Minesweeper, with one mine among five cells, is
scored by AUC, also where a heading says accuracy, on the first of its ten published splits. Chains are
generated: the class of a labeled node stands on the first node of its path, as many edges away as the name
tells, so that a model with fewer layers cannot be more accurate than 0.25. Both have weight decay 0 and
dropout 0.2 or 0. Rankings over graphs are of the four citation and coauthor graphs.

GCN has 64 layers on Cora alone, GAT at most 32, and 16 on the larger graphs: more would take longer than all
smaller depths together. ContraNorm, with time and memory quadratic in the nodes, is left out; `--method` can
name it. G-Reg (arXiv 2510.06066), a regularizer for cold-start nodes, is not implemented."""
OVER_GRAPHS = """\
Means over graphs, for each model by itself, since not every model was run on the same graphs. On every graph
validation accuracy selects the depth of each method; its mean over graphs then selects a method among those
that were run on all. Differences are tested as above, paired over runs, each run averaged over the graphs.
All graphs have few labels: 20 to 40 a class. The larger graphs have some 19,000 nodes."""
RANKING_OVER_GRAPHS = """\
Mean rank by test accuracy over {situations} situations (depths and missing rates of {graphs} graphs), 1 is
best, and the lowest and highest mean rank on one graph."""
ON_EACH_GRAPH = """\
Validation accuracy selects the method and its depth. Next to it are the methods that are not significantly
worse on the test nodes, each at the depth that validation accuracy selects for it."""
TOO_LITTLE = "At every depth at most a third of the methods have been run: too little to compare."


def advice(comparison: DepthComparison, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence per graph, model and missing rate: what validation accuracy selects, and its gain.

    As in ``document``, among depths at which enough methods were run.
    """
    groups = group_by(comparable(rows), "dataset", "model", "missing_percent")
    for (dataset, model, percent), group in groups.items():
        where = f"{title(comparison, dataset)}, {model}, {describe_missing(percent)}: "
        yield (where if len(groups) > 1 else "") + _advice(Selected.among(choose_depths(group)))


def _advice(selected: Selected) -> str:
    best, plain = selected.best, selected.plain
    correct = f"{best.accuracy:.1%} of the test nodes correct"
    if best.method == NO_METHOD:
        depth = best.depths[0]
        return f"Use no method and {depth} layers: {correct}. Validation accuracy is highest without one."
    text = f"Use {best}: {correct}"
    if plain is None:
        return f"{text}."
    gap = paired_difference(best.scores, plain.scores)
    text += f", {plain.accuracy:.1%} without a method at {plain.depths[0]} layers"
    if gap.runs < 2:
        return f"{text}. A single run does not show whether they differ."
    interval = f"(95% interval {100 * gap.low:+.1f} to {100 * gap.high:+.1f} points)."
    if gap.mean <= 0 and gap.p <= ERROR_RATE:
        worse = "Validation accuracy prefers it although it is worse on these nodes."
        return f"{text}; a significant difference {interval} {worse}"
    if NO_METHOD not in selected.not_worse:
        return f"{text}; a significant difference {interval}"
    corrected = " after correction for the number of methods" if gap.low > 0 else ""
    return f"{text}; no significant difference{corrected} {interval}"


def tables(
    comparison: DepthComparison, rows: Sequence[Row]
) -> Iterator[tuple[str, tuple[list[str], list[list[str]]]]]:
    """Yield a table for each graph, model and missing rate: its title, headings, and a row per method."""

    def show(row: Row) -> str:
        return _score(row) + ("" if isnan(row["effective_rank"]) else f" ({row['effective_rank']:.1f})")

    for (dataset, model, percent), group in group_by(rows, "dataset", "model", "missing_percent").items():
        name = f"{title(comparison, dataset)}, {model}, {describe_missing(percent)}"
        headings, lines = _by_depth(group, show)
        yield name, (["Method", *headings], lines)


def _by_depth(rows: Sequence[Row], show: Callable[[Row], str]) -> tuple[list[str], list[list[str]]]:
    """Return the headings, one per depth, and a row per method: its name and a cell for every depth."""
    depths = sorted({row["depth"] for row in rows})
    lines = []
    for (method,), group in group_by(rows, "method").items():
        cells = {row["depth"]: show(row) for row in group}
        lines.append([short(method), *(cells.get(depth, "") for depth in depths)])
    return [f"{depth} layers" for depth in depths], lines


def _score(row: Row | None = None) -> str:
    if row is None:
        return "not run"
    if never_trained(row):
        return "diverged"
    diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return f"{show_mean(row['score'], row['score_std'])}{diverged}"


def document(
    table: DepthTable, command: str, figures: Mapping[tuple[str, str], str] | None = None
) -> Document:
    """Return the comparison as a document; figures are named by files relative to it."""
    comparison, rows, figures = table.comparison, table.rows, figures or {}
    enough = comparable(rows)
    citation = [row for row in enough if row["dataset"] not in LONG_RANGE]
    lead = INTRODUCTION.format(
        command=command, runs=comparison.runs, epochs=comparison.epochs, rate=ERROR_RATE
    )
    if not comparison.graphs:
        lead += f"\n\n{PACKAGE_GRAPHS}"
    sections = []
    if len({row["dataset"] for row in citation}) > 1:
        sections.append(_over_graphs(citation))
    if enough:
        sections.append(_on_each_graph(comparison, enough))
    for (dataset, model), part in group_by(rows, "dataset", "model").items():
        here = [row for row in enough if (row["dataset"], row["model"]) == (dataset, model)]
        blocks: list[Any] = [_accuracies(*of) for of in sorted(group_by(part, "missing_percent").items())]
        blocks.insert(0, _standing(here) if here else Markdown(TOO_LITTLE))
        if file := figures.get((dataset, model)):
            image = Markdown(f"![Accuracy and effective rank against depth]({file})")
            blocks.insert(0, Only("markdown", [image]))
        sections.append(Section(f"{title(comparison, dataset)}, {model}", blocks))
    sections += [_not_run(table), _provenance(table, command)]
    name = "Methods against oversmoothing, by depth"
    return Document(name, [], [section for section in sections if section.blocks], lead=lead)


def _selected_columns(selected: Selected, prefix: str = "") -> list[str]:
    """Return the cells of the columns ``SELECTED``."""

    def show(choice: Choice | None) -> str:
        return "not run" if choice is None else f"{choice.accuracy:.3f} ({prefix}{choice})"

    best, others = selected.best, map(show, (selected.plain, selected.pair_norm))
    return [f"{prefix}{best}", f"{best.accuracy:.3f}", list_methods(selected.not_worse), *others]


def _over_graphs(rows: Sequence[Row]) -> Section:
    lines = []
    for situation, applies in SITUATIONS.items():
        groups = group_by(filter(applies, rows), "missing_percent", "model")
        for (percent, model), group in sorted(groups.items()):
            graphs = [choose_depths(graph_rows) for graph_rows in group_by(group, "dataset").values()]
            by_method: dict[str, list[Choice]] = defaultdict(list)
            for choice in (choice for choices in graphs for choice in choices):
                by_method[choice.method].append(choice)
            # Methods that all graphs have, where there are several.
            means = [Choice.mean(each) for each in by_method.values() if len(each) == len(graphs) > 1]
            if means:
                columns = _selected_columns(Selected.among(means), f"{model}, ")
                lines.append([situation, describe_missing(percent), str(len(graphs)), *columns])
    headings = ["situation", "features", "graphs", *SELECTED]
    blocks: list[Any] = [Markdown(OVER_GRAPHS), Table(headings, lines, formatted=True)]
    for (model,), group in group_by(rows, "model").items():
        ranking, situations = ranked(group)
        count = len({graph for graph, *_ in situations})
        if count > 1:
            text = RANKING_OVER_GRAPHS.format(situations=len(situations), graphs=count)
            ranks = [
                [short(name), f"{mean:.1f}", f"{low:.1f} to {high:.1f}"] for name, mean, low, high in ranking
            ]
            shown = Table(["method", "mean rank", "on single graphs"], ranks, formatted=True)
            heading = f"Ranking of {model} over {count} graphs"
            blocks.append(Details(heading, [Markdown(text), shown]))
    return Section("By situation, over graphs", blocks)


def _on_each_graph(comparison: DepthComparison, rows: Sequence[Row]) -> Section:
    """Show per graph, model and missing rate what validation accuracy selects, and its test accuracy."""
    lines = []
    groups = group_by(rows, "dataset", "model", "missing_percent")
    for (dataset, model, percent), group in sorted(groups.items()):
        where = f"{markdown(title(comparison, dataset))}, {model}"
        for kind, min_depth in (("any", 0), (f"{DEEP_LAYERS} or more", DEEP_LAYERS)):
            if choices := choose_depths(row for row in group if row["depth"] >= min_depth):
                columns = _selected_columns(Selected.among(choices))
                lines.append([where, describe_missing(percent), kind, *columns])
    shown = Table(["graph, model", "features", "layers", *SELECTED], lines, formatted=True)
    return Section("What to use on each graph", [Markdown(ON_EACH_GRAPH), shown])


def _standing(rows: Sequence[Row]) -> Markdown:
    """State how often PairNorm, in the mode that validation selects, is significantly worse than others."""
    led, worse, total = 0, list[str](), 0
    ahead_of: Counter[str] = Counter()
    for (percent, depth), here in sorted(group_by(rows, "missing_percent", "depth").items()):
        choices = choose_depths(here)
        if (ours := Selected.among(choices).pair_norm) is not None:
            compared = compare_with(ours.method, {choice.method: choice.scores for choice in choices})
            ahead = {method for method, (gap, differs) in compared.items() if differs and gap.mean > 0}
            ahead -= {*PAIR_NORM}
            total += 1
            led += not ahead
            worse += [f"{depth} layers with {describe_missing(percent)}"] if NO_METHOD in ahead else []
            ahead_of.update(choice.method for choice in choices if choice.method in ahead - {NO_METHOD})
    often = ", ".join(f"{short(method)} ({times})" for method, times in ahead_of.most_common(MAX_NAMED))
    return Markdown(
        f"No method is significantly more accurate than **PairNorm** in {led} of {total} situations (a depth "
        f"and a missing rate). Most often significantly more accurate: {often or 'none'}. PairNorm is "
        f"significantly worse than no method: {'; '.join(worse) or 'nowhere'}."
    )


def _accuracies(key: tuple[int], rows: Sequence[Row]) -> Details:
    top = {depth: max(row["score"] for row in group) for (depth,), group in group_by(rows, "depth").items()}

    def show(row: Row) -> str:
        return f"**{_score(row)}**" if row["score"] == top[row["depth"]] else _score(row)

    headings, lines = _by_depth(rows, show)
    shown = Table(["method", *headings], lines, formatted=True)
    return Details(f"Accuracy, {describe_missing(*key)}", [shown])


def _not_run(table: DepthTable) -> Section:
    """List the requested cells without a result; methods with the same pending depths share an entry."""
    comparison, lines = table.comparison, []
    groups: dict[tuple[str, str], list[DepthCell]] = defaultdict(list)
    for cell in comparison.cells():
        groups[cell.dataset, cell.model].append(cell)
    for (dataset, model), cells in groups.items():
        methods, pending = defaultdict[tuple[int, ...], list[str]](list), [*filter(table.is_pending, cells)]
        for method in dict.fromkeys(cell.method for cell in pending):
            depths = sorted({cell.depth for cell in pending if cell.method == method})
            methods[tuple(depths)].append(short(method))
        parts = [f"{', '.join(of)} ({', '.join(map(str, depths))} layers)" for depths, of in methods.items()]
        if parts:
            listed = "everything" if len(pending) == len(cells) else "; ".join(parts)
            lines.append(f"- {markdown(title(comparison, dataset))}, {model}: {listed}")
    return Section("What was not run", [Markdown("\n".join(lines))] if lines else [])


def _provenance(table: DepthTable, command: str) -> Section:
    """Return the section on the devices and commits of the trials behind the rows."""
    origins = [table.origins[pair] for pair in table.pairs]
    commits = {origin.git_commit for origin in origins if origin.git_commit}
    devices = Counter(origin.device for origin in origins).most_common()
    listed = ", ".join(f"{markdown(device)} ({count:,})" for device, count in devices)
    changed = sum((origin.git_commit or "").endswith("-dirty") for origin in origins)
    others = len(table.origins) - len(origins)
    text = (
        f"{len(origins):,} trials of {len(commits)} commits are behind the rows, on {listed}; {changed:,} of "
        f"them from modified trees. The store has {others:,} others, of incomplete rows or other settings. "
        f"`pairnorm {command}` trains what is missing."
    )
    return Section("Provenance", [Markdown(text)] if origins else [])
