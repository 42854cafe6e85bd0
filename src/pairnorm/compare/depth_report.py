"""The report of the comparison by depth: which method to use where, what was not run, and figures."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pairnorm.base import plotting
from pairnorm.base.escaping import markdown
from pairnorm.base.plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.compare.depth import (
    DEEP_LAYERS,
    EPOCHS,
    MAX_NAMED,
    NO_METHOD,
    PAIR_NORM,
    Choice,
    DepthCell,
    DepthComparison,
    DepthTable,
    Row,
    comparable,
    describe_missing,
    group_by,
    list_methods,
    of_methods,
    ranked,
    short,
    title,
)
from pairnorm.compare.graphs import LONG_RANGE
from pairnorm.compare.over_graphs import draw_ranking, over_graphs
from pairnorm.sweep.significance import ERROR_RATE, Runs, compare_with, mean_interval, paired_difference
from pairnorm.sweep.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINE_STYLES = [{"color": color, "marker": marker} for color, marker in zip(COLORS, MARKERS, strict=True)]
OTHERS = "others"

INTRODUCTION = """\
# Methods against oversmoothing, by depth

Written by `pairnorm {command}` from the runs in the store. Mean test accuracy ± standard deviation over
{runs} runs of {epochs} epochs. Every method had four settings at every depth, of learning rate, dropout and
its own parameter; the validation accuracy of the first run selected one. At 100% missing only training nodes
have features. Differences are tested with Student's t, paired over the runs, which share seeds and masks, at
an error rate of {rate:.0%} for all comparisons with one method (Holm). All runs have one split; other splits
differ by more. `Skip` at two layers is the model without it: no two hidden layers are a step apart.

On Minesweeper and on chains depth matters with all features. Minesweeper, with one mine among five cells, is
scored by AUC, also where a heading says accuracy, on the first of its ten published splits. Chains are
generated: the class of a labeled node stands on the first node of its path, as many edges away as the name
tells, so that a model with fewer layers cannot be more accurate than 0.25. Both have weight decay 0 and
dropout 0.2 or 0. Rankings over graphs are of the four citation and coauthor graphs.

GCN has 64 layers on Cora alone, GAT at most 32, and 16 on the larger graphs: more would take longer than all
smaller depths together. ContraNorm needs time and memory quadratic in the nodes.
"""
CHOSEN = """\
Validation accuracy selects the method and its depth. Next to it are the methods that are not significantly
worse on the test nodes, each at the depth that validation accuracy selects for it.
"""
RANKING = """\
Mean rank by test accuracy over {situations} situations (depths and missing rates of one graph), 1 is best.
The interval holds 95% of the mean ranks when situations and runs are resampled; it does not hold for other
graphs.
"""
BEST = """\
Validation accuracy selects the method at each depth, and the mode of PairNorm.
"""
FIGURE = """\
The effective rank is that of the last hidden state: 1 where all nodes share one direction, 0 where all are
zero. Jumping knowledge need not use that state. A line ends before the others where all runs diverged.
"""
TOO_LITTLE = "At every depth less than half of the methods have been run: too little to compare."
PUBLISHED = """\
## Published numbers next to ours

| on Cora, all features | published | ours |
|---|---|---|
| GCNII, 64 layers (Chen et al., 2020) | 0.855 | {gcnii_64} |
| GCNII, 32 layers (Chen et al., 2022, "Bag of Tricks") | 0.853 | {gcnii_32} |
| APPNP (the same) | 0.837 | {appnp_32}, 32 layers |

What differs from GCNII's own code: we test on all 2,068 nodes outside training and validation, not on 1,000
of them; the hidden width is 32, not 64; weight decay is 5e-4 everywhere, not 0.01 on convolutions; there are
500 epochs, of which validation accuracy chooses, not up to 1,500 that validation loss ends. We chose learning
rate and α at every depth; the published numbers were tuned for the model.
"""


def advice(comparison: DepthComparison, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence per graph, model and missing rate: what validation accuracy selects, and its gain.

    As in ``report``, among depths at which enough methods were run.
    """
    groups = group_by(comparable(rows), "dataset", "model", "missing_percent")
    for (dataset, model, percent), some in groups.items():
        several = len(groups) > 1
        where = f"{title(comparison, dataset)}, {model}, {describe_missing(percent)}: " if several else ""
        yield where + _advice(some)


def _advice(rows: Sequence[Row]) -> str:
    best, plain = Choice.among(rows), Choice.among(of_methods(rows, [NO_METHOD]))
    assert best is not None
    correct = f"{best.accuracy:.1%} of the test nodes correct"
    if best.method == NO_METHOD:
        return (
            f"Use no method and {best.depth} layers: {correct}. Validation accuracy is highest without one."
        )
    text = f"Use {best}: {correct}"
    if plain is None:
        return f"{text}."
    difference = paired_difference(best.scores, plain.scores)
    text += f", {plain.accuracy:.1%} without a method at {plain.depth} layers"
    if difference.runs < 2:
        return f"{text}. A single run does not show whether they differ."
    interval = f"95% interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f} points"
    if difference.p > ERROR_RATE:
        return f"{text}; no significant difference ({interval})."
    worse = (
        "" if difference.mean > 0 else " Validation accuracy prefers it although it is worse on these nodes."
    )
    return f"{text}; a significant difference ({interval}).{worse}"


def _not_worse(reference: str, scores: Mapping[str, Runs]) -> list[str]:
    """Return the methods that are not significantly worse than the reference, the most accurate first."""
    compared = compare_with(reference, scores)
    found = [method for method, (gap, differs) in compared.items() if not differs or gap.mean > 0]
    return sorted(found, key=lambda method: -fmean(scores[method].values()))


def tables(
    comparison: DepthComparison, rows: Sequence[Row]
) -> Iterator[tuple[str, tuple[list[str], list[list[str]]]]]:
    """Yield for each graph, model and missing rate what it is, headings, and a row for each method."""
    for (dataset, model, percent), some in group_by(rows, "dataset", "model", "missing_percent").items():
        depths = sorted({row["depth"] for row in some})
        lines = []
        for (method,), of in group_by(some, "method").items():
            cells = {
                row["depth"]: _number(row)
                + ("" if isnan(row["effective_rank"]) else f" ({row['effective_rank']:.1f})")
                for row in of
            }
            lines.append([short(method), *(cells.get(depth, "") for depth in depths)])
        headings = ["Method", *(f"{depth} layers" for depth in depths)]
        yield f"{title(comparison, dataset)}, {model}, {describe_missing(percent)}", (headings, lines)


def report(table: DepthTable, command: str, figures: Mapping[tuple[str, str], str] | None = None) -> str:
    """Return the comparison in Markdown.

    Args:
        table: the rows of a store.
        command: the command that writes it.
        figures: files of the figures, relative to the report, by graph and model; of a ranking over graphs,
            by an empty name and the model.
    """
    comparison, rows = table.comparison, table.rows
    parts = [
        INTRODUCTION.format(command=command, runs=comparison.runs, epochs=comparison.epochs, rate=ERROR_RATE)
    ]
    figures = figures or {}
    enough = comparable(rows)
    citation = [row for row in enough if row["dataset"] not in LONG_RANGE]
    parts += over_graphs(citation, {model: file for (dataset, model), file in figures.items() if not dataset})
    if enough:
        parts.append(_what_to_use(comparison, enough))
    for (dataset, model), some in group_by(rows, "dataset", "model").items():
        parts.append(f"## {markdown(title(comparison, dataset))}, {model}")
        if (dataset, model) in figures:
            parts.append(f"![Accuracy and effective rank against depth]({figures[dataset, model]})")
            parts.append("" if model == "SGC" else FIGURE)
        if here := [row for row in enough if (row["dataset"], row["model"]) == (dataset, model)]:
            parts += [_ranking(here), _best_at_each_depth(here)]
        else:
            parts.append(TOO_LITTLE)
        for (percent,), here in sorted(group_by(some, "missing_percent").items()):
            parts.append(_accuracies(percent, here))
    ours = group_by(rows, "dataset", "model", "missing_percent", "method", "depth")
    anchors = {"gcnii_64": ("GCNII", 64), "gcnii_32": ("GCNII", 32), "appnp_32": ("APPNP", 32)}
    found = {name: ours.get(("cora", "GCN", 0, *at)) for name, at in anchors.items()}
    if any(found.values()) and comparison.epochs == EPOCHS:
        parts.append(PUBLISHED.format(**{name: _number(*(of or [])) for name, of in found.items()}))
    parts.append(_not_run(table))
    parts.append(_provenance(table))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _provenance(table: DepthTable) -> str:
    """State devices and commits of the trials in the store."""
    origins = table.origins
    if not origins:
        return ""
    devices = Counter(one.device for one in origins)
    commits = {one.git_commit for one in origins if one.git_commit}
    listed = ", ".join(f"{markdown(device)} ({count:,})" for device, count in devices.most_common())
    changed = sum((one.git_commit or "").endswith("-dirty") for one in origins)
    return (
        f"## Provenance\n\n{len(origins):,} trials of {len(commits)} commits, on {listed}; {changed:,} of "
        "them from modified trees. `pairnorm reproduce depth` trains what is missing."
    )


def _number(row: Row | None = None) -> str:
    if row is None:
        return "not run"
    if _never_trained(row):
        return "diverged"
    deviation = row["score_std"]
    diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return f"{row['score']:.3f}" + ("" if isnan(deviation) else f" ± {deviation:.3f}") + diverged


def _never_trained(row: Row) -> bool:
    """Say whether all runs diverged before an epoch could be kept: then no node has a label."""
    return row["score"] == 0 and row["diverged"] == row["runs"]  # type: ignore[no-any-return]


def _what_to_use(comparison: DepthComparison, rows: Sequence[Row]) -> str:
    """Show per graph, model and missing rate what validation accuracy selects, and its test accuracy."""

    def show(choice: Choice | None) -> str:
        return "not run" if choice is None else f"{choice.accuracy:.3f} ({choice})"

    lines = []
    groups = group_by(rows, "dataset", "model", "missing_percent")
    for (dataset, model, percent), some in sorted(groups.items()):
        for kind, least in (("any", 0), (f"{DEEP_LAYERS} or more", DEEP_LAYERS)):
            here = [row for row in some if row["depth"] >= least]
            each = [choice for of in group_by(here, "method").values() if (choice := Choice.among(of))]
            if (best := Choice.among(here)) is None:
                continue
            equal = _not_worse(best.method, {one.method: one.scores for one in each})
            others = (
                Choice.among(of_methods(here, [NO_METHOD])),
                Choice.among(of_methods(here, PAIR_NORM)),
            )
            where = f"{markdown(title(comparison, dataset))}, {model}"
            words = (where, describe_missing(percent), kind, str(best), f"{best.accuracy:.3f}")
            lines.append((*words, list_methods(equal), *map(show, others)))
    headings = ("graph, model", "features", "layers", "selected", "accuracy", "not significantly worse",
                "without a method", "PairNorm")  # fmt: skip
    return f"## What to use on each graph\n\n{CHOSEN}\n{markdown_table(headings, lines)}"


def _ranking(rows: Sequence[Row]) -> str:
    ranking, situations = ranked(rows)
    if not ranking:
        return ""
    parts = {
        "all features": [row for row in rows if row["missing_percent"] == 0],
        "100% missing": [row for row in rows if row["missing_percent"] == 100],
        f"{DEEP_LAYERS} layers or more": [row for row in rows if row["depth"] >= DEEP_LAYERS],
    }
    ranks = {name: {one.method: one.rank for one in ranked(some)[0]} for name, some in parts.items()}
    ranks = {name: of for name, of in ranks.items() if of}
    lines = [
        (short(one.method), f"{one.rank:.1f}", f"{one.low:.1f} to {one.high:.1f}",
         *(f"{of[one.method]:.1f}" if one.method in of else "" for of in ranks.values()))
        for one in ranking
    ]  # fmt: skip
    text = RANKING.format(situations=len(situations))
    return f"### Ranking\n\n{text}\n{markdown_table(('method', 'mean rank', '95% interval', *ranks), lines)}"


def _best_at_each_depth(rows: Sequence[Row]) -> str:
    lines, total = [], 0
    led, worse = (defaultdict[str, list[str]](list) for _ in range(2))
    ahead_of: Counter[str] = Counter()
    for (percent, depth), here in sorted(group_by(rows, "missing_percent", "depth").items()):
        scores = {row["method"]: row["scores"] for row in here}
        best = Choice.among(here)
        assert best is not None
        plain, ours = Choice.among(of_methods(here, [NO_METHOD])), Choice.among(of_methods(here, PAIR_NORM))
        if ours is not None:
            total += 1
            ahead = [
                method
                for method, (gap, differs) in compare_with(ours.method, scores).items()
                if differs and gap.mean > 0 and method not in PAIR_NORM
            ]
            ahead_of.update(method for method in ahead if method != NO_METHOD)
            if not ahead:
                led[describe_missing(percent)].append(str(depth))
            if NO_METHOD in ahead:
                worse[describe_missing(percent)].append(str(depth))
        lines.append((describe_missing(percent), str(depth), short(best.method), f"{best.accuracy:.3f}",
                      list_methods(_not_worse(best.method, scores)),
                      f"{ours.accuracy:.3f} ({ours.method})" if ours else "not run",
                      f"{plain.accuracy:.3f}" if plain else "not run"))  # fmt: skip
    headings = ("features", "layers", "selected", "accuracy", "not significantly worse", "PairNorm",
                "without a method")  # fmt: skip
    parts = ["### Selected at each depth", f"{BEST}\n{markdown_table(headings, lines)}"]

    def situations(found: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{', '.join(depths)} layers with {given}" for given, depths in found.items())

    if total:
        count = sum(map(len, led.values()))
        often = ", ".join(f"{short(method)} ({count})" for method, count in ahead_of.most_common(MAX_NAMED))
        parts.append(
            f"No method is significantly more accurate than **PairNorm** in {count} of {total} situations"
            f"{f' ({situations(led)})' if led else ''}. Most often significantly more accurate: "
            f"{often or 'none'}. Significantly worse than no method: {situations(worse) or 'nowhere'}."
        )
    return "\n\n".join(parts)


def _accuracies(percent: int, rows: Sequence[Row]) -> str:
    top = {depth: max(row["score"] for row in of) for (depth,), of in sorted(group_by(rows, "depth").items())}
    lines = []
    for (method,), of in group_by(rows, "method").items():
        cells = {
            row["depth"]: f"**{_number(row)}**" if row["score"] == top[row["depth"]] else _number(row)
            for row in of
        }
        lines.append((short(method), *(cells.get(depth, "") for depth in top)))
    table = markdown_table(("method", *(f"{depth} layers" for depth in top)), lines)
    return f"### Accuracy, {describe_missing(percent)}\n\n{table}"


def _not_run(table: DepthTable) -> str:
    """List the requested cells that have no row."""
    comparison = table.comparison
    groups: dict[tuple[str, str], dict[int, list[DepthCell]]] = defaultdict(lambda: defaultdict(list))
    for cell in comparison.cells():
        groups[cell.dataset, cell.model][cell.depth].append(cell)
    nowhere, lines = list[str](), list[str]()
    for (dataset, model), depths in groups.items():
        name = f"{markdown(title(comparison, dataset))}, {model}"
        listed: dict[str, list[str]] = defaultdict(list)
        for depth, cells in sorted(depths.items()):
            pending = [cell for cell in cells if table.is_pending(cell)]
            present = [cell for cell in cells if cell not in pending]
            which = "all" if not present else f"all but {_list_cells(comparison, present)}"
            if pending:
                fewer = which if len(present) < len(pending) else _list_cells(comparison, pending)
                listed[fewer].append(str(depth))
        if len(listed["all"]) == len(depths):
            nowhere.append(name)
        elif any(listed.values()):
            parts = (f"{', '.join(of)} layers of {which}" for which, of in listed.items() if of)
            lines.append(f"- {name}: {'; '.join(parts)}")
    if nowhere:
        lines.append(f"- All of {'; '.join(nowhere)}")
    return "## What was not run\n\n" + "\n".join(lines) if lines else ""


def _list_cells(comparison: DepthComparison, cells: Sequence[DepthCell]) -> str:
    """Name the methods of some cells of one depth, with the missing rate where it is not all of them."""
    rates: dict[str, list[int]] = defaultdict(list)
    for cell in cells:
        rates[cell.method].append(cell.missing_percent)
    return list_methods(
        [
            method
            if len(of) == len(comparison.missing)
            else f"{method} with {' or '.join(map(describe_missing, of))}"
            for method, of in rates.items()
        ]
    )


def draw(
    comparison: DepthComparison, rows: Sequence[Row], folder: Path, name: str
) -> dict[tuple[str, str], list[Path]]:
    """Draw accuracy and effective rank against depth for every graph and model, and rankings over graphs.

    Six have a color and a marker: the user's own methods, what validation selects, PN and PN-SI, and the best
    of the others by mean rank. No method is dashed and black, and what remains is gray.

    Args:
        comparison: the comparison.
        rows: its complete rows.
        folder: for the files.
        name: what they are called; graph and model follow where there are several.
    """
    files, rows = {}, comparable(rows)
    for (dataset, model), some in group_by(rows, "dataset", "model").items():
        alone = len(comparison.datasets) * len(comparison.models) == 1
        with plotting.style():
            figure = _figure(some, f"{title(comparison, dataset)}, {model}")
            file = name if alone else f"{name}-{dataset.partition('@')[0]}-{model}".lower()
            files[dataset, model] = plotting.save(figure, folder, file)
    citation = [row for row in rows if row["dataset"] not in LONG_RANGE]
    for (model,), some in group_by(citation, "model").items():
        with plotting.style():
            several = len({row["dataset"] for row in some}) > 1
            if several and (ranks := draw_ranking(some, model)) is not None:
                files["", model] = plotting.save(ranks, folder, f"{name}-ranking-{model}".lower())
    return files


def _figure(rows: Sequence[Row], name: str) -> "Figure":
    percents = sorted({row["missing_percent"] for row in rows})
    measures = {"score": "test AUC" if not isnan(rows[0]["auc"]) else "test accuracy"}
    if any(not isnan(row["effective_rank"]) for row in rows):
        measures["effective_rank"] = "effective rank of the last state"
    best = [one.method for one in ranked(rows)[0]] or list(dict.fromkeys(row["method"] for row in rows))
    panels = group_by(rows, "missing_percent").values()
    chosen = {choice.method for some in panels if (choice := Choice.among(some))}
    first = [method for method in best if "@" in method] + [method for method in best if method in chosen]
    first += [method for method in ("PN", "PN-SI") if method in best]
    shown = [method for method in dict.fromkeys([*first, *best]) if method != NO_METHOD][: len(COLORS)]
    styles = dict(zip(sorted(shown, key=best.index), LINE_STYLES, strict=False))
    styles[NO_METHOD] = {"color": "black", "linestyle": plotting.PLAIN}
    if len(remaining := {row["method"] for row in rows} - {*styles}) == 1:
        styles[remaining.pop()] = {"color": plotting.GRAY}
    if len(percents) > 1:
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 2.0 * len(measures) + 0.4)
        axes = figure.subplots(len(measures), len(percents), sharex=True, sharey="row", squeeze=False)
    else:  # side by side
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 2.4)
        axes = figure.subplots(1, len(measures), squeeze=False).T
    depths = sorted({row["depth"] for row in rows})
    for (measure, label), line in zip(measures.items(), axes, strict=True):
        line[0].set_ylabel(label)
        for axis, percent in zip(line, percents, strict=True):
            some = [row for row in rows if row["missing_percent"] == percent]
            _curves(axis, group_by(some, "method"), measure, styles)
            axis.set_xscale("log", base=2)
            axis.set_xticks(depths, [str(depth) for depth in depths])
            axis.minorticks_off()
            if len(percents) == 1 or label == [*measures.values()][-1]:
                axis.set_xlabel("layers")
    for axis, percent in zip(axes[0], percents, strict=True):
        if len(percents) > 1 or percent:
            axis.set_title(describe_missing(percent))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    order = [text for text in (*map(short, styles), OTHERS) if text in found]
    figure.legend([found[text] for text in order], order, loc="outside right center", title=name)
    return figure


def _curves(
    axis: "Axes", methods: Mapping[tuple[str], Sequence[Row]], measure: str, styles: Mapping[str, Any]
) -> None:
    for (method,), rows in methods.items():
        points = sorted((row["depth"], nan if _never_trained(row) else row[measure]) for row in rows)
        depths, values = zip(*points, strict=True)
        if method in styles:
            axis.plot(depths, values, label=short(method), zorder=3, **{"marker": "o", **styles[method]})
            if measure == "score":
                ends = [mean_interval(list(row["scores"].values())) for row in rows]
                color = styles[method]["color"]
                axis.vlines(
                    [row["depth"] for row in rows], *zip(*ends, strict=True), color=color, linewidth=0.8
                )
        else:
            axis.plot(depths, values, color="#bbbbbb", linewidth=1, label=OTHERS, zorder=2)
