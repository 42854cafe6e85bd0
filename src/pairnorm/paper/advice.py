"""What our runs say beyond the paper: whose the gain is, and which protocol to use."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from pairnorm.paper.experiment import DATASETS, Place
from pairnorm.paper.grids import ABLATION
from pairnorm.paper.results import Chosen, Results
from pairnorm.paper.selection import Selection
from pairnorm.paper.tables import TITLES, Table, markdown


def gain_section(table: Table | None) -> str:
    """Return the section on SGC and SGC-PN when each has its own best optimiser."""
    if table is None:
        return ""
    found = {entry.place: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    lines = [
        "## How much of the gain is PairNorm's\n",
        "The paper trains SGC with the optimiser of GCN. Here both SGC and SGC-PN also choose learning rate "
        "(0.005, 0.05, 0.2), weight decay (0, 5e-6, 5e-4) and dropout (0, 0.6) by validation: first with one "
        "run of everything, then with all runs of the setting that did best.\n",
        markdown(table),
        "| Graph | Missing | Gain of PairNorm, paper's optimiser | Gain of PairNorm, both tuned | Share that "
        "is PairNorm's |",
        "|---|---:|---:|---:|---:|",
    ]
    sentences = []
    for dataset in DATASETS:
        for percent in table.percents:
            methods = ("SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned")
            ours = [found.get(Place(dataset, method, percent)) for method in methods]
            known = [one.accuracy for one in ours if one is not None]
            if len(known) < len(methods):
                continue
            untuned, tuned = known[1] - known[0], known[3] - known[2]
            share = "no gain to share" if untuned <= 0.01 else f"{max(tuned, 0) / untuned:.0%}"
            lines.append(f"| {TITLES[dataset]} | {percent}% | {untuned:+.3f} | {tuned:+.3f} | {share} |")
            if percent == 100:
                sentences.append(
                    f"On {TITLES[dataset]} with all vectors missing, a tuned SGC reaches {known[2]:.3f} "
                    f"without PairNorm and {known[3]:.3f} with it; with the paper's optimiser {known[0]:.3f} "
                    f"and {known[1]:.3f}."
                )
    return "\n".join([*lines, "", *sentences]) + "\n"


def scaling_section(table: Table | None) -> str:
    """Return the section on features that are divided by their sum and features that are not."""
    if table is None:
        return ""
    return "\n".join(
        [
            "## How features are scaled\n",
            "The paper does not say how. Everywhere else we divide the features of a node by their sum, as "
            "is usual for these graphs; `raw` are features as they are.\n",
            markdown(table),
        ]
    )


def ablation_section(results: Results, selection: Selection, table: Table | None) -> str:
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
        markdown(table),
        "What changes when one choice is changed and the others stay (mean difference of test accuracy over "
        "graphs and the other choices):\n",
        "| Change | " + " | ".join(f"{percent}% missing" for percent in experiment.missing) + " |",
        "|---|" + "---:|" * len(experiment.missing),
    ]
    for one, other in (("sym", "rw"), ("before", "after"), ("PN-SI", "PN"), ("PN-SCS", "PN")):
        for model in ("GCN", "GAT"):
            effects = [_effect(found, model, one, other, percent) for percent in experiment.missing]
            if any(effect is not None for effect in effects):
                shown = " | ".join("" if effect is None else f"{effect:+.3f}" for effect in effects)
                lines.append(f"| {model}: {one} instead of {other} | {shown} |")
    lines.append("")
    lines += [
        text for model in ("GCN", "GAT") if (text := _recommendation(found, model, list(experiment.missing)))
    ]
    return "\n".join(lines) + "\n"


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
