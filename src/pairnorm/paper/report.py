"""The report, from the store alone: what was run, tables, claims, whose the gain is, figures."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pairnorm.escaping import markdown as markdown_text
from pairnorm.escaping import markdown_code
from pairnorm.page import can_render, render
from pairnorm.paper import case_study, figures
from pairnorm.paper.case_study import Layers, file_beside, read_layers
from pairnorm.paper.claims import STATUSES, Evidence, Verdict, verdicts
from pairnorm.paper.experiments import (
    ABLATION,
    DATASETS,
    EXPERIMENTS,
    NAMES,
    TABLE1_ROWS,
    Experiment,
    Place,
    Selection,
)
from pairnorm.paper.own_trials import FILE as OWN_FILE
from pairnorm.paper.own_trials import own_csv, own_section, own_trials
from pairnorm.paper.paper_page import paper_page
from pairnorm.paper.results import Chosen, Results, opened, reported
from pairnorm.paper.tables import TITLES, Table, csv_text, latex, markdown, markdown_rows
from pairnorm.plotting import save
from pairnorm.train import Spec, Store, Trial
from pairnorm.writing import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Show = Callable[[Table], str]
"""How a section shows a table: a page has it apart, and can sort it."""


def gain_section(table: Table | None, show: Show = markdown) -> str:
    """Return the section on SGC and SGC-PN when each has its own best optimiser."""
    if table is None:
        return ""
    found = {entry.place: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    lines = [
        "## How much of the gain is PairNorm's\n",
        "The paper trains SGC with the optimiser of GCN. Here both SGC and SGC-PN also choose learning rate "
        "(0.005, 0.05, 0.2), weight decay (0, 5e-6, 5e-4) and dropout (0, 0.6) by validation: first with one "
        "run of everything, then with all runs of the setting that did best.\n",
        show(table),
    ]
    rows, sentences = [], []
    for dataset in DATASETS:
        for percent in table.percents:
            methods = ("SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned")
            ours = [found.get(Place(dataset, method, percent)) for method in methods]
            known = [one.accuracy for one in ours if one is not None]
            if len(known) < len(methods):
                continue
            untuned, tuned = known[1] - known[0], known[3] - known[2]
            share = "no gain to share" if untuned <= 0.01 else f"{max(tuned, 0) / untuned:.0%}"
            rows.append([TITLES[dataset], f"{percent}%", f"{untuned:+.3f}", f"{tuned:+.3f}", share])
            if percent == 100:
                sentences.append(
                    f"On {TITLES[dataset]} with all vectors missing, a tuned SGC reaches {known[2]:.3f} "
                    f"without PairNorm and {known[3]:.3f} with it; with the paper's optimiser {known[0]:.3f} "
                    f"and {known[1]:.3f}."
                )
    headings = [
        "Graph", "Missing", "Gain of PairNorm, paper's optimiser", "Gain of PairNorm, both tuned",
        "Share that is PairNorm's",
    ]  # fmt: skip
    return "\n".join([*lines, *markdown_rows(headings, rows, left=1), "", *sentences]) + "\n"


def scaling_section(tables: Mapping[str, Table], show: Show = markdown) -> str:
    """Return the section on features that are divided by their sum and features that are not."""
    found = {name: tables[name] for name in ("scaling", "table1", "table1-rows") if name in tables}
    if "scaling" not in found:
        return ""
    lines = [
        "## How features are scaled\n",
        "The paper's text does not say how. Its released code gives SGC features as they are, GCN and GAT "
        "the features of a node divided by their sum, and so do the tables above. Here the other way for "
        "both; `raw` are features as they are.\n",
        show(found.pop("scaling")),
    ]
    for table in found.values():
        apart = [entry.difference for entry in table.entries if entry.difference is not None]
        if apart:
            lines.append(
                f"- `{table.name}`, {table.title}: {fmean(map(abs, apart)):.3f} from the paper on average "
                f"over {len(apart)} numbers, {sum(one < -0.02 for one in apart)} of them over 0.02 under it "
                f"([CSV]({table.name}.csv))"
            )
    return "\n".join(lines) + "\n"


def ablation_section(
    results: Results, selection: Selection, table: Table | None, show: Show = markdown
) -> str:
    """Return the section on adjacency, order and norm, and what it recommends."""
    experiment = selection.narrow(ABLATION)
    if table is None or experiment is None:
        return ""
    found = {
        place: chosen
        for place in experiment.places()
        if (chosen := results.chosen(experiment, place)) is not None and chosen.complete
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
            effects = [_effect(found, model, one, other, percent) for percent in experiment.missing]
            if any(effect is not None for effect in effects):
                shown = ["" if effect is None else f"{effect:+.3f}" for effect in effects]
                rows.append([f"{model}: {one} instead of {other}", *shown])
    headings = ["Change", *(f"{percent}% missing" for percent in experiment.missing)]
    advice = [_recommendation(found, model, list(experiment.missing)) for model in ("GCN", "GAT")]
    return "\n".join([*lines, *markdown_rows(headings, rows, left=1), "", *filter(None, advice)]) + "\n"


def _effect(found: dict[Place, Chosen], model: str, one: str, other: str, percent: int) -> float | None:
    """Return the mean difference between places whose methods differ in one word only."""
    differences = []
    for place, chosen in found.items():
        words = place.method.split(" ")
        if words[0] != model or one not in words or len(words) < 3 or place.missing_percent != percent:
            continue
        twin = " ".join(other if word == one else word for word in words)
        if (against := found.get(place._replace(method=twin))) is not None:
            differences.append(chosen.accuracy - against.accuracy)
    return fmean(differences) if differences else None


def _recommendation(found: dict[Place, Chosen], model: str, percents: Sequence[int]) -> str:
    """Name the method that validation prefers where every method has been tried to the end."""
    methods = [method for method in ABLATION.methods if method.split(" ")[0] == model]
    columns = [
        (dataset, percent)
        for dataset in ABLATION.datasets
        for percent in percents
        if all(Place(dataset, method, percent) in found for method in methods)
    ]
    if not columns:
        return ""

    def mean(method: str, value: Callable[[Chosen], float], among: Iterable[tuple[str, int]]) -> float:
        return fmean(value(found[Place(dataset, method, percent)]) for dataset, percent in among)

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


FIGURES = "figures"
NO_FIGURES = "There are no figures: matplotlib is not installed."
Drawing = tuple[str, str, "Figure | None"]
"""Name of the file, caption, and the figure, None where nothing has been run."""


@dataclass
class Outputs:
    """What has been written: tables by name, captions of figures by file name, and all files."""

    out: Path
    tables: dict[str, Table] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    @cached_property
    def note(self) -> str:
        """What is to be said about them: that figures cannot be drawn here."""
        return "" if find_spec("matplotlib") else NO_FIGURES

    def add_table(self, table: Table, settings: Sequence[str] = ()) -> None:
        """Write a table, if any place of it has been run."""
        if not table.filled:
            return
        self.tables[table.name] = table
        self.write(f"{table.name}.csv", csv_text(table, settings))
        self.write(f"{table.name}.tex", latex(table))

    def add_figures(self, drawings: Iterable[Drawing]) -> None:
        """Write the figures that there are."""
        for name, caption, figure in () if self.note else drawings:
            if figure is not None:
                self.captions[name] = caption
                self.files += save(figure, self.out / FIGURES, name)

    def write(self, name: str, text: str) -> Path:
        """Write a text file."""
        path = self.out / name
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
        self.files.append(path)
        return path


def write_outputs(
    what: Iterable[str], results: Results, layers: dict[Spec, Layers], selection: Selection, out: Path
) -> Outputs:
    """Write what belongs to the named experiments, without ``all``, and has been run."""
    outputs, names = Outputs(out), list(what)
    for name in names:
        if name == "figure2":
            outputs.add_figures(_figure2())
        elif experiment := selection.narrow(EXPERIMENTS[name]):
            if name == "tuned":
                _add_tuned(outputs, results, experiment, selection.narrow(TABLE1_ROWS))
            elif name == "case-study":
                outputs.add_figures(_case_study(layers, experiment))
            elif name not in PER_GRAPH:
                outputs.add_table(Table.of(results, experiment))
            if name in DRAWN and not (name in MODELS and "figure4" in names):
                outputs.add_figures(DRAWN[name](results, experiment))
    return outputs


def _add_tuned(outputs: Outputs, results: Results, tuned: Experiment, untuned: Experiment | None) -> None:
    """Add the table of tuned optimisers, below what the paper's optimiser gives with the same features."""
    if Table.of(results, tuned).filled:
        both = (tuned,) if untuned is None else (untuned, tuned)
        settings = ("scale", *tuned.searched)
        outputs.add_table(Table.of(results, *both, name=tuned.name, title=tuned.title), settings)


MODELS = {"table1": "SGC", "table2": "GCN", "table3": "GAT"}


def _depth_figures(results: Results, experiment: Experiment) -> Iterator[Drawing]:
    """Draw what a table chooses from: its model's panel of Figure 4."""
    model = MODELS[experiment.name]
    for dataset in experiment.datasets if 100 in experiment.missing else ():
        caption = f"{model} on {TITLES[dataset]} with all vectors outside the training set missing."
        figure = figures.against_depth(results, experiment, dataset, (model,), 100, mark_best=True)
        yield f"depth-{model.lower()}-{dataset}", caption, figure


def _per_graph(results: Results, experiment: Experiment) -> Iterator[Drawing]:
    """Draw a figure of the paper, which has one graph, for every graph."""
    draw, caption = PER_GRAPH[experiment.name]
    for dataset in experiment.datasets:
        number = experiment.name[-1] + ("" if dataset == "cora" else ", appendix")
        figure = draw(results, experiment, dataset)
        yield f"{experiment.name}-{dataset}", f"Figure {number}. {caption.format(TITLES[dataset])}", figure


def _figure2() -> Iterator[Drawing]:
    yield "figure2", "Figure 2. The two steps of PairNorm, on papers of Cora.", figures.figure2()


def _bars(results: Results, experiment: Experiment) -> Iterator[Drawing]:
    for model in ("GCN", "GAT"):
        caption = (
            f"{model} with skip connections (t1, t2) and PairNorm-SI (PN) by missing rate: test accuracy and "
            "chosen depth. 70, 80 and 90%: fewer runs, as in the paper."
        )
        yield f"bars-{model.lower()}", caption, figures.bars(results, experiment, model)


def _case_study(layers: dict[Spec, Layers], experiment: Experiment) -> Iterator[Drawing]:
    for model in ("SGC", "GCN"):
        found = case_study.studied(layers, experiment, model)
        name = f"case-study-{model.lower()}"
        what = "SGC" if model == "SGC" else "a trained 12-layer GCN (without its last layer, the logits)"
        yield name, f"Distances of node pairs by layer in {what}.", case_study.mean_distances(found, model)
        caption = f"Distributions of these distances, {model}."
        yield f"{name}-distributions", caption, case_study.distributions(found, model)


PER_GRAPH: dict[str, tuple[Callable[[Results, Experiment, str], "Figure | None"], str]] = {
    "figure1": (
        figures.figure1,
        "SGC on {} without PairNorm (dashed) and with it (solid), split 3 / 10 / 87%.",
    ),
    "figure3": (
        partial(figures.against_depth, models=("GCN", "GAT"), percent=0),
        "GCN and GAT on {} without PairNorm-SI (dashed) and with it (solid).",
    ),
    "figure4": (
        partial(figures.against_depth, models=("SGC", "GCN", "GAT"), percent=100, mark_best=True),
        "{} with all vectors outside the training set missing, without PairNorm (dashed) and with it "
        "(solid); diamonds mark the depths that validation chooses.",
    ),
}
DRAWN: dict[str, Callable[[Results, Experiment], Iterator[Drawing]]] = {
    **dict.fromkeys(MODELS, _depth_figures),
    **dict.fromkeys(PER_GRAPH, _per_graph),
    "bars": _bars,
}
"""The figures of an experiment, by its name."""


NOTES = "notes.md"
FEW, MANY = 3, 7
"""A claim that fails in so few of so many cases is said to."""
"""A file in the output folder that, if there is one, becomes a section of the report: findings of people."""

LARGE = 0.05


def write_report(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    selection: Selection | None = None,
) -> Outputs:
    """Write all tables and figures of what has been run, ``report.md`` and ``report.html``; return them.

    The same store gives the same files, bit for bit.

    Args:
        store: the store, or its export as ``.csv`` or ``.csv.gz``.
        out: the folder.
        selection: how much of the experiments is wanted. Default: the paper's.
    """
    selection, folder = selection or Selection(), Path(out)
    with opened(store) as found:
        cells = found.cells()
        origins = _origins(found, cells)
    results, layers = Results(cells), read_layers(file_beside(store))
    own = own_trials(cells, selection)
    alone = bool(own) and len(own) == len(cells)  # then nothing is to be said about the paper
    names = [name for name in NAMES if name != "all" and not alone]
    outputs = write_outputs(names, results, layers, selection, folder)
    if own:
        outputs.write(OWN_FILE, own_csv(own))
    decided = verdicts(Evidence(results, layers, selection))
    tables = [outputs.tables[name] for name in MODELS if name in outputs.tables]
    path = folder / NOTES
    notes = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    takeaway, notes = _takeaway(notes)
    ran = _what_was_run(cells, origins, selection, Path(store).name)
    sections = [
        f"# Trials of {markdown_text(Path(store).name)}\n" if alone else "# The paper, reproduced\n",
        "" if alone else _summary(tables, decided) + takeaway,
        own_section(own),
        ran,
        *map(_table_section, tables),
        _differences(tables),
        notes,
        scaling_section(outputs.tables),
        gain_section(outputs.tables.get("tuned")),
        ablation_section(results, selection, outputs.tables.get("ablation")),
        "" if alone else _claims(decided),
        _figures(outputs),
    ]
    outputs.write("report.md", "\n".join(section for section in sections if section))
    if can_render():
        apart: Show = lambda table: ""  # noqa: E731
        texts: dict[str, str] = {
            **{table.name: f"## Table {table.name[-1]}: {table.title}" for table in tables},
            "differences": _differences(tables),
            "notes": notes,
            "scaling": scaling_section(outputs.tables, apart),
            "tuned": gain_section(outputs.tables.get("tuned"), apart),
            "ablation": ablation_section(results, selection, outputs.tables.get("ablation"), apart),
        }
        for name in ("bars", "table1-rows"):
            if name in outputs.tables:
                texts[name] = f"## {outputs.tables[name].title}"
        texts["run"] = ran
        page = paper_page(results, selection, outputs.tables, decided, texts)
        outputs.write("report.html", render(page))
    return outputs


def _takeaway(notes: str) -> tuple[str, str]:
    """Return what the notes say before their first heading, which belongs on top, and the rest of them."""
    first, heading, rest = f"\n{notes}".partition("\n## ")
    return (f"{first}\n" if first.strip() else "", f"## {rest}" if heading else "")


def _summary(tables: Sequence[Table], decided: Sequence[Verdict]) -> str:
    filled = sum(entry.difference is not None for table in tables for entry in table.entries)
    counts = Counter(verdict.status for verdict in decided)
    listed = ", ".join(f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status])
    failed = [verdict for verdict in decided if verdict.status == "fails" and len(verdict.run) >= MANY]
    narrow = sum(1 <= sum(case.holds is False for case in verdict.run) <= FEW for verdict in failed)
    return (
        f"Of the {len(reported())} numbers in the paper's three tables, {filled} stand beside ours here. "
        f"Of {len(decided)} claims of its text, {listed}"
        + (f", {narrow} of them in one to {FEW} cases of at least {MANY}" if narrow else "")
        + ".\n"
    )


Cells = Mapping[Spec, Sequence[Trial]]


_ORIGINS = {
    "pairnorm": "pairnorm_version",
    "torch": "torch_version",
    "Python": "python_version",
    "Commit": "git_commit",
}


def _origins(store: Store, cells: Cells) -> dict[tuple[Spec, int], Any]:
    """Return where each trial comes from; nothing where pandas, which the store lists it with, is absent."""
    if find_spec("pandas") is None:
        return {}
    rows = store.frame()[["device", "finished", "seconds", *_ORIGINS.values()]].itertuples(index=False)
    # Both are sorted by spec and seed.
    trials = ((spec, trial.seed) for spec, trials in cells.items() for trial in trials)
    return dict(zip(trials, rows, strict=True))


def _what_was_run(
    cells: Cells, origins: Mapping[tuple[Spec, int], Any], selection: Selection, store: str
) -> str:
    devices = sorted({ran.device for ran in origins.values()})
    rows = []
    seeds = {spec: {trial.seed for trial in trials} for spec, trials in cells.items()}
    for experiment in EXPERIMENTS.values():
        narrowed = selection.narrow(experiment)
        if narrowed is None or experiment.name == "case-study":
            continue
        wanted = set(narrowed.pairs())
        done = [(spec, seed) for spec, seed in wanted if seed in seeds.get(spec, ())]
        times = _busy(origins[key] for key in done if key in origins)
        command = f"`pairnorm reproduce {experiment.name}{selection.options}`"
        title = experiment.title[:1].upper() + experiment.title[1:]
        spent = (times.get(device, "") for device in devices)
        rows.append([command, title, f"{len(done):,}", f"{len(wanted):,}", *spent])
    lines = [
        "## What was run\n",
        *markdown_rows(["Command", "What", "Trials", "of", *map(markdown_text, devices)], rows, left=2),
        "",
        "Experiments share trials: a trial that several of them need is trained once and counted in each. "
        "Times are those in which at least one of an experiment's trials was being trained.",
    ]
    trials = [trial for found in cells.values() for trial in found]
    if trials:
        ran = list(origins.values())
        diverged = sum(trial.diverged for trial in trials)
        lines += [
            "",
            *(
                f"- {name}: {markdown_text(_listed(getattr(one, column) for one in ran))}"
                for name, column in _ORIGINS.items()
            ),
            f"- Trials in the store: {len(trials):,}, of which diverged: {diverged:,}",
        ]
        counts, times = Counter(one.device for one in ran), _busy(ran)
        lines += [
            f"- Time in which something was trained on {markdown_text(device)}: {times[device]}, "
            f"{counts[device]:,} trials"
            for device in devices
        ]
        if ran:
            finished = [one.finished for one in ran]
            lines.append(markdown_text(f"- From {min(finished)} to {max(finished)}"))
    command = markdown_code(f"pairnorm report --store {store}{selection.options}")
    lines.append(f"- This report: {command}")
    return "\n".join(lines) + "\n"


def _busy(ran: Iterable[Any]) -> dict[str, str]:
    """Return by device how long at least one job ran: it ends when it says and began so long before."""
    jobs: dict[str, set[tuple[str, float]]] = {}
    for one in ran:
        jobs.setdefault(one.device, set()).add((one.finished, one.seconds))
    return {device: _duration(_union(found)) for device, found in jobs.items()}


def _union(jobs: Iterable[tuple[str, float]]) -> float:
    ends = [(datetime.fromisoformat(text).timestamp(), seconds) for text, seconds in jobs]
    total, reached = 0.0, float("-inf")
    for start, end in sorted((end - seconds, end) for end, seconds in ends):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _table_section(table: Table) -> str:
    name, title = table.name, table.title
    return f"## Table {name[-1]}: {title}\n\n{markdown(table)}\n[CSV]({name}.csv), [LaTeX]({name}.tex)\n"


def _differences(tables: Sequence[Table]) -> str:
    entries = [(entry, entry.difference) for table in tables for entry in table.entries]
    known = [(entry, difference) for entry, difference in entries if difference is not None]
    if not known:
        return ""
    large = [(entry, difference) for entry, difference in known if abs(difference) > LARGE]
    mean = fmean(abs(difference) for _, difference in known)
    lines = [
        "## Where we differ from the paper\n",
        f"On average over {len(known)} numbers we differ by {mean:.3f}; {len(large)} differ by more than "
        f"{LARGE}:\n",
    ]
    rows = []
    for entry, difference in sorted(large, key=lambda pair: -abs(pair[1])):
        dataset, method, percent = entry.place
        values = [
            f"{one.accuracy:.3f} @ {one.layers}" for one in (entry.ours, entry.paper) if one is not None
        ]
        rows.append([TITLES[dataset], method, f"{percent}%", *values, f"{difference:+.3f}"])
    headings = ["Graph", "Method", "Missing", "Ours", "Paper", "Difference"]
    return "\n".join([*lines, *markdown_rows(headings, rows, left=2)]) + "\n"


def _claims(decided: Sequence[Verdict]) -> str:
    lines = [
        "## Claim by claim\n",
        "A case that lacks some of its trials counts as not run.\n",
        "| | Where | The paper says | Read as | Cases |",
        "|---|---|---|---|---|",
    ]
    for verdict in decided:
        claim = verdict.claim
        lines.append(
            f"| **{verdict.status}** | {claim.place} | {claim.text} | {claim.reading} | {verdict.counts} |"
        )
    for verdict in decided:
        if verdict.run:
            lines += ["", *_details(verdict)]
    return "\n".join(lines) + "\n"


def _details(verdict: Verdict) -> Iterable[str]:
    marks = {True: "yes", False: "**no**", None: "not run"}
    yield f"<details><summary>{verdict.claim.text} ({verdict.status}: {verdict.counts})</summary>\n"
    yield "| Case | | Evidence |"
    yield "|---|---|---|"
    for case in verdict.cases:
        yield f"| {case.label} | {marks[case.holds]} | {case.evidence} |"
    yield "\n</details>"


def _figures(outputs: Outputs) -> str:
    if not outputs.captions:
        return outputs.note and f"{outputs.note}\n"
    lines = ["## Figures\n"]
    for name, caption in outputs.captions.items():
        lines.append(f"![{caption}]({FIGURES}/{name}.png)\n\n{caption} [PDF]({FIGURES}/{name}.pdf)\n")
    return "\n".join(lines)


def _listed(values: Iterable[object]) -> str:
    known = sorted({str(value) for value in values if value is not None and value == value})
    return ", ".join(known) or "unknown"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
