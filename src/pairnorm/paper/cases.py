"""The tests behind the claims: which cases there are, and whether our numbers pass in each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from pairnorm.paper.claim import COMPARABLE, Case, Evidence, compare
from pairnorm.paper.experiment import DATASETS
from pairnorm.paper.layers import Layers
from pairnorm.paper.results import Chosen
from pairnorm.paper.tables import TITLES

Test = Callable[[Chosen, Chosen], bool]
Cases = Callable[[Evidence], Iterator[Case]]

TABLE = {"SGC": "table1", "GCN": "table2", "GAT": "table3"}
RATES = (0, 20, 40, 60, 80, 100)
BAR_RATES = (0, 70, 80, 90, 100)
NOISE = 0.01
"""Relative change against a trend that is still called monotone: means of a few runs scatter."""


def better(one: Chosen, other: Chosen) -> bool:
    """Whether the first has the higher accuracy."""
    return one.accuracy > other.accuracy


def not_worse(one: Chosen, other: Chosen) -> bool:
    """Whether the first is comparable or better."""
    return one.accuracy >= other.accuracy - COMPARABLE


def notably_better(one: Chosen, other: Chosen) -> bool:
    """Whether the first is better by more than what counts as comparable."""
    return one.accuracy > other.accuracy + COMPARABLE


def deeper(one: Chosen, other: Chosen) -> bool:
    """Whether the first has more layers."""
    return one.layers > other.layers


def not_shallower(one: Chosen, other: Chosen) -> bool:
    """Whether the first has as many layers or more."""
    return one.layers >= other.layers


def pairs_of(
    one: str,
    other: str,
    test: Test,
    percents: Sequence[int] = (100,),
    models: Sequence[str] = ("SGC", "GCN", "GAT"),
    experiment: str | None = None,
) -> Cases:
    """Return cases that compare two methods on every graph; ``*`` stands for the model's name."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        for model in models:
            for dataset in DATASETS:
                for percent in percents:
                    ours = (one.replace("*", model), other.replace("*", model))
                    found = [
                        evidence.chosen(experiment or TABLE[model], dataset, name, percent) for name in ours
                    ]
                    label = f"{ours[0]} / {ours[1]}, {TITLES[dataset]}, {percent}%"
                    yield compare(label, found[0], found[1], test)

    return cases


def trend(name: str, direction: int, method: str = "SGC") -> Cases:
    """Return the case that a metric of Figure 1 on Cora rises (or falls) with every step in depth."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        curve = evidence.curve("figure1", "cora", method, 0)
        if curve is None:
            yield Case(f"{method}, Cora", None)
            return
        values = [direction * summary.mean(name) for summary in curve]
        wrong = [
            str(later.spec.depth)
            for before, after, later in zip(values, values[1:], curve[1:], strict=False)
            if after < before - NOISE * abs(before)
        ]
        ends = [(curve[end].spec.depth, curve[end].mean(name)) for end in (0, -1)]
        shown = " to ".join(f"{value:.4g} at {depth}" for depth, value in ends)
        yield Case(f"{method}, Cora", not wrong, shown + (f"; not at {', '.join(wrong)}" if wrong else ""))

    return cases


def gap_closes(evidence: Evidence) -> Iterator[Case]:
    """Test that up to 4 layers the test loss comes nearer to the training loss, and later accuracy falls."""
    curve = evidence.curve("figure1", "cora", "SGC", 0)
    if curve is None:
        yield Case("SGC, Cora", None)
        return
    gaps = {one.spec.depth: one.mean("test_loss") - one.mean("train_loss") for one in curve}
    accuracies = {one.spec.depth: one.mean("test_accuracy") for one in curve}
    first, last = min(gaps), max(gaps)
    middle = max((depth for depth in gaps if depth <= 4), default=first)
    yield Case(
        "gap between training and test loss, Cora",
        gaps[middle] < gaps[first],
        f"{gaps[first]:.3f} at {first}, {gaps[middle]:.3f} at {middle} layers",
    )
    yield Case(
        "test accuracy beyond, Cora",
        accuracies[last] < accuracies[middle],
        f"{accuracies[middle]:.3f} at {middle}, {accuracies[last]:.3f} at {last} layers",
    )


def slower_decay(evidence: Evidence) -> Iterator[Case]:
    """Test that from the best depth to the largest, less accuracy is lost with PairNorm."""
    for model, experiment in (("SGC", "figure1"), ("GCN", "figure3"), ("GAT", "figure3")):
        for dataset in DATASETS:
            label = f"{model}, {TITLES[dataset]}"
            curves = [evidence.curve(experiment, dataset, name, 0) for name in (model, f"{model}-PN")]
            if curves[0] is None or curves[1] is None:
                yield Case(label, None)
                continue
            accuracies = [[one.mean("test_accuracy") for one in curve] for curve in curves if curve]
            plain, normalised = (max(values) - values[-1] for values in accuracies)
            yield Case(label, normalised < plain, f"loses {normalised:.3f} against {plain:.3f}")


def at_most(
    layers: int, models: Sequence[str], percents: Sequence[int], experiment: str | None = None
) -> Cases:
    """Return cases that a plain model chooses no more than so many layers."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        for model in models:
            for dataset in DATASETS:
                for percent in percents:
                    found = evidence.chosen(experiment or TABLE[model], dataset, model, percent)
                    label = f"{model}, {TITLES[dataset]}, {percent}%"
                    holds = None if found is None else found.layers <= layers
                    yield Case(label, holds, "" if found is None else f"{found.layers} layers")

    return cases


def strong_sgc(evidence: Evidence) -> Iterator[Case]:
    """Test SGC-PN against GCN-PN and GAT-PN."""
    for model in ("GCN", "GAT"):
        for dataset in DATASETS:
            yield compare(
                f"SGC-PN / {model}-PN, {TITLES[dataset]}, 100%",
                evidence.chosen("table1", dataset, "SGC-PN", 100),
                evidence.chosen(TABLE[model], dataset, f"{model}-PN", 100),
                not_worse,
            )


def drop(evidence: Evidence) -> Iterator[Case]:
    """Test that plain models lose accuracy when all vectors are missing."""
    for model in ("GCN", "GAT"):
        for dataset in DATASETS:
            found = [evidence.chosen(TABLE[model], dataset, model, percent) for percent in (100, 0)]
            yield compare(f"{model}, {TITLES[dataset]}, 100% / 0%", found[0], found[1],
                          lambda one, other: better(other, one))  # fmt: skip


def monotone_drop(evidence: Evidence) -> Iterator[Case]:
    """Test that plain models lose accuracy from each missing rate of the bar charts to the next."""
    for model in ("GCN", "GAT"):
        for dataset in DATASETS:
            found = [evidence.chosen("bars", dataset, model, percent) for percent in BAR_RATES]
            known = [one.accuracy for one in found if one is not None]
            label = f"{model}, {TITLES[dataset]}"
            if len(known) < len(found):
                yield Case(label, None)
                continue
            falls = all(later <= before + NOISE for before, later in pairwise(known))
            yield Case(label, falls, ", ".join(f"{value:.3f}" for value in known))


def better_of_skips(
    one: str, test: Test, percents: Sequence[int], with_norm: bool, experiment: str | None = None
) -> Cases:
    """Return cases that compare a method with the better of one and two skip steps, which come second."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        for model in ("GCN", "GAT"):
            for dataset in DATASETS:
                for percent in percents:
                    names = [f"{model}-t{step}{'-PN' if with_norm else ''}" for step in (1, 2)]
                    skips = [
                        evidence.chosen(experiment or TABLE[model], dataset, name, percent) for name in names
                    ]
                    known = [chosen for chosen in skips if chosen is not None]
                    method = one.replace("*", model)
                    yield compare(
                        f"{method} / best of {', '.join(names)}, {TITLES[dataset]}, {percent}%",
                        evidence.chosen(experiment or TABLE[model], dataset, method, percent),
                        max(known, key=lambda chosen: chosen.accuracy) if len(known) == 2 else None,
                        test,
                    )

    return cases


def pairs_in_ablation(one: str, other: str, test: Test) -> Cases:
    """Return cases that compare two rows of the ablation; ``*`` stands for ``GCN rw`` and for ``GAT``."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        for model in ("GCN rw", "GAT"):
            for dataset in ("cora", "citeseer"):
                for percent in (0, 100):
                    names = (one.replace("*", model), other.replace("*", model))
                    found = [evidence.chosen("ablation", dataset, name, percent) for name in names]
                    label = f"{names[0]} / {names[1]}, {TITLES[dataset]}, {percent}%"
                    yield compare(label, found[0], found[1], test)

    return cases


def by_layer(model: str, norm: str, label: str, test: Callable[[Layers], tuple[bool, str]]) -> Cases:
    """Return the case of a model with a norm in the case study."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        found = evidence.study(model, norm)
        yield Case(label, None) if found is None else Case(label, *test(found))

    return cases


def together(*parts: Cases) -> Cases:
    """Return the cases of all parts."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        for part in parts:
            yield from part(evidence)

    return cases


def shrinks_to(share: float, values: Sequence[float]) -> tuple[bool, str]:
    """Test that the last value is less than a share of the first."""
    return values[-1] < share * values[0], f"{values[0]:.3g} in the first layer, {values[-1]:.3g} in the last"


def constant(values: Sequence[float]) -> tuple[bool, str]:
    """Test that all values agree to a thousandth."""
    return max(values) - min(values) <= 1e-3 * max(values), f"from {min(values):.4g} to {max(values):.4g}"


def more_stable(quantity: str) -> Cases:
    """Return the case that a quantity of random pairs varies less over the layers with PN-SI than with PN."""

    def cases(evidence: Evidence) -> Iterator[Case]:
        label = f"SGC, {quantity.upper()} of random pairs"
        found = [evidence.study("SGC", norm) for norm in ("PN-SI", "PN")]
        if found[0] is None or found[1] is None:
            yield Case(label, None)
            return
        series = [getattr(layers, quantity)["random"] for layers in found]
        varies = [(max(values) - min(values)) / max(values) for values in series]
        shown = f"varies by {varies[0]:.1%} with PN-SI, by {varies[1]:.1%} with PN"
        yield Case(label, varies[0] < varies[1], shown)

    return cases


def stays_apart(layers: Layers) -> tuple[bool, str]:
    """Test that in the last hidden layer connected pairs are nearer to each other than random ones."""
    connected, random = (layers.apd[kind][-1] for kind in ("connected", "random"))
    return connected < 0.8 * random, f"connected {connected:.3g}, random {random:.3g}"


def deep_gcn_trains(evidence: Evidence) -> Iterator[Case]:
    """Test that with a norm the 12-layer GCN is notably more accurate than without."""
    plain = evidence.study("GCN", "none")
    for norm in ("PN", "PN-SI"):
        found = evidence.study("GCN", norm)
        label = f"GCN with {norm}, 12 layers"
        if found is None or plain is None or found.test_accuracy is None or plain.test_accuracy is None:
            yield Case(label, None)
        else:
            holds = found.test_accuracy > plain.test_accuracy + COMPARABLE
            yield Case(label, holds, f"{found.test_accuracy:.3f} against {plain.test_accuracy:.3f}")
