"""The comparison by depth for people: who is ahead where, what to use, what was not run, and figures."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pairnorm.base import plotting
from pairnorm.base.escaping import markdown
from pairnorm.base.plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.compare.depth import EPOCHS, DepthComparison, Place, Table
from pairnorm.compare.depth_rows import (
    DEEP,
    MOST_NAMED,
    NONE,
    PAIR_NORM,
    Choice,
    Row,
    by,
    compared,
    features,
    names,
    only,
    ranked,
    short,
    title,
)
from pairnorm.compare.over_graphs import draw_ranking, over_graphs
from pairnorm.compare.ranking import critical_difference, leaders, told_apart
from pairnorm.sweep.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, "#56B4E9")
OTHERS = "others"

INTRODUCTION = """\
# Depth: which remedy where

Written by `pairnorm {command}` from the runs in the store. Mean test accuracy ± standard deviation over
{runs} runs of {epochs} epochs. Every remedy had four settings at every depth, of learning rate, dropout and
its own parameter, of which the first run's validation accuracy chose. At 100% missing only training nodes
have features. Two means are told apart where they differ by more than two standard errors over the runs, pair
by pair; a run draws weights, dropout and missing features, but never another split, and other splits differ
by more.
"""
CHOSEN = """\
Remedy and depth by validation accuracy, among all of a situation; beside it those that are as good or not
told apart from it, each at the depth that validation chooses for it.
"""
RANKING = """\
Mean rank by test accuracy over {situations} situations (depths and missing rates of one graph), 1 is best.
The interval is what 95% of the draws give when situations and runs are drawn again; it does not speak of
other graphs. Nemenyi's test, which compares all pairs at once and takes situations for independent, tells
apart ranks that differ by {difference:.1f}.
"""
BEST = """\
By test accuracy, so that luck is on its side. PairNorm is the mode that validation prefers, those that are
centerd by degrees among them.
"""
FIGURE = """\
The effective rank is that of the last hidden state: 1 where all nodes share one direction, 0 where all are
zero. Jumping knowledge need not use that state. Where a line ends before the others, all runs diverged.
"""
TOO_LITTLE = "At every depth less than half of the remedies have been run: too little to compare."
PUBLISHED = """\
## Published numbers beside ours

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


def advice(wanted: DepthComparison, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each graph, model and missing rate: what validation chooses, whether it pays.

    As in ``report``, among depths of which enough was run.
    """
    groups = by(compared(rows), "dataset", "model", "missing_percent")
    for (dataset, model, percent), some in groups.items():
        where = f"{title(wanted, dataset)}, {model}, {features(percent)}: " if len(groups) > 1 else ""
        yield where + _advice(some)


def _advice(rows: Sequence[Row]) -> str:
    best, plain = Choice.among(rows), Choice.among(only(rows, [NONE]))
    assert best is not None
    text = f"{best}: {best.accuracy:.1%} of the test nodes right"
    if best.method == NONE:
        return f"Take no remedy, and {best.depth} layers{text[len(str(best)) :]}. Validation prefers none."
    if plain is None:
        return f"Take {text}."
    text += f", against {plain.accuracy:.1%} with {plain}"
    if not told_apart(best.accuracies, plain.accuracies):
        return f"Validation prefers {text}; these runs do not tell it apart from none. More runs may."
    if best.accuracy < plain.accuracy:
        return f"Take no remedy, and {plain.depth} layers: validation prefers {text}."
    return f"Take {text}."


def tables(
    wanted: DepthComparison, rows: Sequence[Row]
) -> Iterator[tuple[str, tuple[list[str], list[list[str]]]]]:
    """Yield for each graph, model and missing rate what it is, headings, and a row for each method."""
    for (dataset, model, percent), some in by(rows, "dataset", "model", "missing_percent").items():
        depths = sorted({row["depth"] for row in some})
        lines = []
        for (method,), of in by(some, "remedy").items():
            cells = {
                row["depth"]: _number(row)
                + ("" if isnan(row["effective_rank"]) else f" ({row['effective_rank']:.1f})")
                for row in of
            }
            lines.append([short(method), *(cells.get(depth, "") for depth in depths)])
        headings = ["Remedy", *(f"{depth} layers" for depth in depths)]
        yield f"{title(wanted, dataset)}, {model}, {features(percent)}", (headings, lines)


def report(table: Table, command: str, figures: Mapping[tuple[str, str], str] | None = None) -> str:
    """Return the comparison in Markdown.

    Args:
        table: what a store says.
        command: that writes it.
        figures: files of the figures, relative to the report, by graph and model; of a ranking over graphs,
            by an empty name and the model.
    """
    wanted, rows = table.wanted, list(table.rows())
    parts = [INTRODUCTION.format(command=command, runs=wanted.runs, epochs=wanted.epochs)]
    figures = figures or {}
    enough = compared(rows)
    parts += over_graphs(enough, {model: file for (dataset, model), file in figures.items() if not dataset})
    if enough:
        parts.append(_what_to_use(wanted, enough))
    for (dataset, model), some in by(rows, "dataset", "model").items():
        parts.append(f"## {markdown(title(wanted, dataset))}, {model}")
        if (dataset, model) in figures:
            parts.append(f"![Accuracy and effective rank against depth]({figures[dataset, model]})")
            parts.append("" if model == "SGC" else FIGURE)
        if here := [row for row in enough if (row["dataset"], row["model"]) == (dataset, model)]:
            parts += [_ranking(here), _best_at_each_depth(here)]
        else:
            parts.append(TOO_LITTLE)
        for (percent,), here in sorted(by(some, "missing_percent").items()):
            parts.append(_accuracies(percent, here))
    ours = by(rows, "dataset", "model", "missing_percent", "remedy", "depth")
    anchors = {"gcnii_64": ("GCNII", 64), "gcnii_32": ("GCNII", 32), "appnp_32": ("APPNP", 32)}
    found = {name: ours.get(("cora", "GCN", 0, *at)) for name, at in anchors.items()}
    if any(found.values()) and wanted.epochs == EPOCHS:
        parts.append(PUBLISHED.format(**{name: _number(*(of or [])) for name, of in found.items()}))
    parts.append(_not_run(table))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _number(row: Row | None = None) -> str:
    if row is None:
        return "not run"
    if _never_trained(row):
        return "diverged"
    deviation = row["accuracy_std"]
    diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
    return f"{row['accuracy']:.3f}" + ("" if isnan(deviation) else f" ± {deviation:.3f}") + diverged


def _never_trained(row: Row) -> bool:
    """Say whether all runs diverged before an epoch could be kept: then no node has a label."""
    return row["accuracy"] == 0 and row["diverged"] == row["runs"]  # type: ignore[no-any-return]


def _what_to_use(wanted: DepthComparison, rows: Sequence[Row]) -> str:
    """Say by situation what validation chooses among all methods and depths, and what it is worth."""

    def chosen(choice: Choice | None) -> str:
        return "not run" if choice is None else f"{choice.accuracy:.3f} ({choice})"

    lines = []
    for (dataset, model, percent), some in sorted(by(rows, "dataset", "model", "missing_percent").items()):
        for kind, least in (("any", 0), (f"{DEEP} or more", DEEP)):
            here = [row for row in some if row["depth"] >= least]
            each = [choice for of in by(here, "remedy").values() if (choice := Choice.among(of))]
            if (best := Choice.among(here)) is None:
                continue
            equal = [
                one.method
                for one in sorted(each, key=lambda one: -one.accuracy)
                if one.method != best.method
                and (one.accuracy >= best.accuracy or not told_apart(one.accuracies, best.accuracies))
            ]
            others = (Choice.among(only(here, [NONE])), Choice.among(only(here, PAIR_NORM)))
            where = f"{markdown(title(wanted, dataset))}, {model}"
            words = (where, features(percent), kind, str(best), f"{best.accuracy:.3f}", names(equal))
            lines.append((*words, *map(chosen, others)))
    headings = ("graph, model", "features", "layers", "chosen", "accuracy", "as good, or not told apart",
                "without a remedy", "PairNorm")  # fmt: skip
    return f"## What to use on each graph\n\n{CHOSEN}\n{markdown_table(headings, lines)}"


def _ranking(rows: Sequence[Row]) -> str:
    standings, situations = ranked(rows)
    if not standings:
        return ""
    parts = {
        "all features": [row for row in rows if row["missing_percent"] == 0],
        "100% missing": [row for row in rows if row["missing_percent"] == 100],
        f"{DEEP} layers or more": [row for row in rows if row["depth"] >= DEEP],
    }
    ranks = {name: {one.method: one.rank for one in ranked(some)[0]} for name, some in parts.items()}
    ranks = {name: of for name, of in ranks.items() if of}
    lines = [
        (short(one.method), f"{one.rank:.1f}", f"{one.low:.1f} to {one.high:.1f}",
         *(f"{of[one.method]:.1f}" if one.method in of else "" for of in ranks.values()))
        for one in standings
    ]  # fmt: skip
    difference = critical_difference(len(standings), len(situations))
    text = RANKING.format(situations=len(situations), difference=difference)
    return f"### Ranking\n\n{text}\n{markdown_table(('method', 'mean rank', '95% interval', *ranks), lines)}"


def _best_at_each_depth(rows: Sequence[Row]) -> str:
    lines, total = [], 0
    led, worse = (defaultdict[str, list[str]](list) for _ in range(2))
    beaten: Counter[str] = Counter()
    for (percent, depth), here in sorted(by(rows, "missing_percent", "depth").items()):
        scores = {row["remedy"]: row["accuracies"] for row in here}
        best, *equal = leaders(scores)
        plain, ours = Choice.among(only(here, [NONE])), Choice.among(only(here, PAIR_NORM))
        if ours is not None:
            total += 1
            # In the order of the table, which decides between those that are ahead as often.
            ahead = [
                method
                for method, accuracies in scores.items()
                if method not in PAIR_NORM
                and told_apart(accuracies, ours.accuracies)
                and fmean(accuracies) > ours.accuracy
            ]
            beaten.update(method for method in ahead if method != NONE)
            if not ahead:
                led[features(percent)].append(str(depth))
            if NONE in ahead:
                worse[features(percent)].append(str(depth))
        lines.append((features(percent), str(depth), short(best), f"{fmean(scores[best]):.3f}", names(equal),
                      f"{ours.accuracy:.3f} ({ours.method})" if ours else "not run",
                      f"{plain.accuracy:.3f}" if plain else "not run"))  # fmt: skip
    headings = ("features", "layers", "best", "accuracy", "not told apart", "PairNorm", "without a remedy")
    parts = ["### The best at each depth", f"{BEST}\n{markdown_table(headings, lines)}"]

    def places(found: Mapping[str, Sequence[str]]) -> str:
        return "; ".join(f"{', '.join(depths)} layers with {given}" for given, depths in found.items())

    if total:
        count = sum(map(len, led.values()))
        often = ", ".join(f"{short(method)} ({count})" for method, count in beaten.most_common(MOST_NAMED))
        parts.append(
            f"**PairNorm** is behind nothing that is told apart from it in {count} of {total} situations"
            f"{f' ({places(led)})' if led else ''}. Ahead of it most often: {often or 'nobody'}. Worse "
            f"than no remedy: {places(worse) or 'nowhere'}."
        )
    return "\n\n".join(parts)


def _accuracies(percent: int, rows: Sequence[Row]) -> str:
    top = {depth: max(row["accuracy"] for row in of) for (depth,), of in sorted(by(rows, "depth").items())}
    lines = []
    for (method,), of in by(rows, "remedy").items():
        cells = {
            row["depth"]: f"**{_number(row)}**" if row["accuracy"] == top[row["depth"]] else _number(row)
            for row in of
        }
        lines.append((short(method), *(cells.get(depth, "") for depth in top)))
    table = markdown_table(("remedy", *(f"{depth} layers" for depth in top)), lines)
    return f"### Accuracy, {features(percent)}\n\n{table}"


def _not_run(table: Table) -> str:
    """Say which parts of what was asked for have no row."""
    wanted = table.wanted
    groups: dict[tuple[str, str], dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in wanted.places():
        groups[place.dataset, place.model][place.depth].append(place)
    nowhere, lines = list[str](), list[str]()
    for (dataset, model), depths in groups.items():
        name = f"{markdown(title(wanted, dataset))}, {model}"
        said: dict[str, list[str]] = defaultdict(list)
        for depth, places in sorted(depths.items()):
            lacking = [place for place in places if table.lacking(place)]
            there = [place for place in places if place not in lacking]
            which = "all" if not there else f"all but {_listed(wanted, there)}"
            if lacking:
                said[which if len(there) < len(lacking) else _listed(wanted, lacking)].append(str(depth))
        if len(said["all"]) == len(depths):
            nowhere.append(name)
        elif any(said.values()):
            parts = (f"{', '.join(of)} layers of {which}" for which, of in said.items() if of)
            lines.append(f"- {name}: {'; '.join(parts)}")
    if nowhere:
        lines.append(f"- All of {'; '.join(nowhere)}")
    return "## What was not run\n\n" + "\n".join(lines) if lines else ""


def _listed(wanted: DepthComparison, places: Sequence[Place]) -> str:
    """Name the methods of some places of one depth, with the missing rate where it is not all of them."""
    rates: dict[str, list[int]] = defaultdict(list)
    for place in places:
        rates[place.method].append(place.missing_percent)
    return names(
        [
            method if len(of) == len(wanted.missing) else f"{method} with {' or '.join(map(features, of))}"
            for method, of in rates.items()
        ]
    )


def draw(
    wanted: DepthComparison, rows: Sequence[Row], folder: Path, name: str
) -> dict[tuple[str, str], list[Path]]:
    """Draw accuracy and effective rank against depth for every graph and model, and rankings over graphs.

    In color are six: the user's own methods, what validation chooses, a mode of PairNorm, and the best of
    the others by mean rank. None is black, and what remains is gray.

    Args:
        wanted: the comparison.
        rows: its complete rows.
        folder: for the files.
        name: what they are called; graph and model follow where there are several.
    """
    files, rows = {}, compared(rows)
    for (dataset, model), some in by(rows, "dataset", "model").items():
        alone = len(wanted.datasets) * len(wanted.models) == 1
        with plotting.style():
            figure = _figure(some, f"{title(wanted, dataset)}, {model}")
            file = name if alone else f"{name}-{dataset.partition('@')[0]}-{model}".lower()
            files[dataset, model] = plotting.save(figure, folder, file)
    for (model,), some in by(rows, "model").items():
        with plotting.style():
            several = len({row["dataset"] for row in some}) > 1
            if several and (ranks := draw_ranking(some, model)) is not None:
                files["", model] = plotting.save(ranks, folder, f"{name}-ranking-{model}".lower())
    return files


def _figure(rows: Sequence[Row], name: str) -> "Figure":
    percents = sorted({row["missing_percent"] for row in rows})
    measures = {"accuracy": "test accuracy"}
    if any(not isnan(row["effective_rank"]) for row in rows):
        measures["effective_rank"] = "effective rank of the last state"
    best = [one.method for one in ranked(rows)[0]] or list(dict.fromkeys(row["remedy"] for row in rows))
    panels = by(rows, "missing_percent").values()
    chosen = {choice.method for some in panels if (choice := Choice.among(some))}
    first = [method for method in best if "@" in method] + [method for method in best if method in chosen]
    if not {*first} & {*PAIR_NORM}:
        first += [method for method in best if method in PAIR_NORM][:1]
    shown = [method for method in dict.fromkeys([*first, *best]) if method != NONE][: len(COLORS)]
    styles = dict(zip(sorted(shown, key=best.index), ({"color": color} for color in COLORS), strict=False))
    styles[NONE] = {"color": "black", "linestyle": plotting.PLAIN}
    if len(remaining := {row["remedy"] for row in rows} - {*styles}) == 1:
        styles[remaining.pop()] = {"color": plotting.GRAY}
    if len(percents) > 1:
        figure = plotting.new_figure(3.6 * len(percents) + 2, 2.8 * len(measures) + 0.4)
        axes = figure.subplots(len(measures), len(percents), sharex=True, sharey="row", squeeze=False)
    else:  # side by side
        figure = plotting.new_figure(3.6 * len(measures) + 2, 3.2)
        axes = figure.subplots(1, len(measures), squeeze=False).T
    depths = sorted({row["depth"] for row in rows})
    for (measure, label), line in zip(measures.items(), axes, strict=True):
        line[0].set_ylabel(label)
        for axis, percent in zip(line, percents, strict=True):
            some = [row for row in rows if row["missing_percent"] == percent]
            _curves(axis, by(some, "remedy"), measure, styles)
            axis.set_xscale("log", base=2)
            axis.set_xticks(depths, [str(depth) for depth in depths])
            axis.minorticks_off()
            if len(percents) == 1 or label == [*measures.values()][-1]:
                axis.set_xlabel("layers")
    for axis, percent in zip(axes[0], percents, strict=True):
        if len(percents) > 1 or percent:
            axis.set_title(features(percent))
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
            axis.plot(depths, values, marker="o", label=short(method), zorder=3, **styles[method])
        else:
            axis.plot(depths, values, color="#bbbbbb", linewidth=1, label=OTHERS, zorder=2)
