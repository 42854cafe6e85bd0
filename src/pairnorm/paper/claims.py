"""The paper's claims, in its words, each with the test that decides whether it holds in our runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pairnorm.paper.case_study import Layers
from pairnorm.paper.experiments import DATASETS, EXPERIMENTS, Place, Selection
from pairnorm.paper.results import Chosen, Results, Summary
from pairnorm.paper.tables import TITLES
from pairnorm.train import Spec

COMPARABLE = 0.02
"""Accuracies that differ by no more than this count as similar; a notable gain is larger."""


@dataclass(frozen=True)
class Case:
    """One graph, model or rate that a claim speaks about: whether it holds there, None where not run."""

    label: str
    holds: bool | None
    evidence: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything a claim may look at; what was not run, or not completely, is None."""

    results: Results
    layers: Mapping[Spec, Layers]
    selection: Selection

    def chosen(self, experiment: str, dataset: str, method: str, percent: int) -> Chosen | None:
        """Return what is reported at a place of an experiment."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or dataset not in narrowed.datasets or percent not in narrowed.missing:
            return None
        found = self.results.chosen(narrowed, Place(dataset, method, percent))
        return found if found is not None and found.complete else None

    def curve(self, experiment: str, dataset: str, method: str, percent: int) -> list[Summary] | None:
        """Return the best candidate of each depth at a place, with one scale for all of them in Figure 1."""
        if self.chosen(experiment, dataset, method, percent) is None:
            return None
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        assert narrowed is not None
        place = Place(dataset, method, percent)
        return self.results.by_depth(narrowed, place, one_scale=experiment == "figure1")

    def study(self, model: str, norm: str) -> Layers | None:
        """Return the case study of a model with a norm."""
        narrowed = self.selection.narrow(EXPERIMENTS["case-study"])
        places = [] if narrowed is None else list(narrowed.places())
        specs = [spec for place in places for spec in narrowed.candidates(place)]  # type: ignore[union-attr]
        found = [spec for spec in specs if (spec.model, spec.norm) == (model, norm)]
        return self.layers.get(found[-1]) if found else None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Args:
        place: where the paper says so.
        text: what it says.
        reading: what is tested in each case.
        cases: tests every case on the evidence.
        share: of the cases in which the test must pass for the claim to hold.
    """

    place: str
    text: str
    reading: str
    cases: Callable[[Evidence], Iterable[Case]]
    share: float = 1.0


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of its cases."""

    claim: Claim
    cases: Sequence[Case]

    @property
    def run(self) -> list[Case]:
        """The cases that have been run."""
        return [case for case in self.cases if case.holds is not None]

    @property
    def status(self) -> str:
        """``holds``, ``fails`` or ``not run``; ``so far`` where cases that have not been run decide."""
        if not self.run:
            return "not run"
        failed = sum(case.holds is False for case in self.run)
        if failed > (1 - self.claim.share) * len(self.cases) + 1e-9:
            return "fails"
        if len(self.run) == len(self.cases):
            return "holds"
        enough = failed <= (1 - self.claim.share) * len(self.run) + 1e-9
        return "holds so far" if enough else "fails so far"

    @property
    def counts(self) -> str:
        """Such as ``3 of 4``, and how many cases have yet to be run."""
        passed = sum(case.holds is True for case in self.run)
        absent = len(self.cases) - len(self.run)
        return f"{passed} of {len(self.run)}" + (f", {absent} not run" if absent else "")


def compare(
    label: str, one: Chosen | None, other: Chosen | None, test: Callable[[Chosen, Chosen], bool]
) -> Case:
    """Return the case in which ``test(one, other)`` must pass."""
    if one is None or other is None:
        return Case(label, None)
    return Case(label, test(one, other), f"{show(one)} against {show(other)}")


def show(chosen: Chosen) -> str:
    """Return accuracy and layers, such as ``0.794 @ 40``."""
    return f"{chosen.accuracy:.3f} @ {chosen.layers}"


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


MOST, ALMOST_ALL = 0.75, 0.9
GNNS = ("GCN", "GAT")

CLAIMS = (
    Claim(
        "2.2, Figure 1",
        "The training loss of SGC monotonically increases with larger K.",
        "at no step in depth does it fall by more than 1%",
        trend("train_loss", +1),
    ),
    Claim(
        "2.2, Figure 1",
        "Convolutions reduce the gap between training and test loss up to K = 4, after which oversmoothing "
        "begins to hurt performance.",
        "gap smaller at 4 layers than at the first depth; test accuracy at the largest depth below that at 4",
        gap_closes,
    ),
    Claim(
        "2.2, Figure 1",
        "Row-diff and col-diff both continue decreasing monotonically with K.",
        "at no step in depth do they rise by more than 1%",
        together(trend("row_diff", -1), trend("col_diff", -1)),
    ),
    Claim(
        "3.1, Figures 1 and 3",
        "The performance decay with PairNorm at work is much slower.",
        "test accuracy lost from the best to the largest depth is smaller with PairNorm, nothing missing",
        slower_decay,
    ),
    Claim(
        "3.1",
        "With nothing missing, PairNorm does not improve the overall test accuracy.",
        "accuracy with PairNorm at most 0.02 above that without",
        pairs_of("*-PN", "*", lambda one, other: not notably_better(one, other), (0,)),
    ),
    Claim(
        "3.1",
        "The benchmark graphs require no more than 4 layers.",
        "GCN and GAT choose at most 4 layers, nothing missing",
        at_most(4, GNNS, (0,)),
    ),
    Claim(
        "3.2, Figure 4",
        "Models with PairNorm achieve a higher test accuracy when all vectors are missing.",
        "higher accuracy at the chosen depth",
        pairs_of("*-PN", "*", better),
    ),
    Claim(
        "3.2, Figure 4",
        "They typically reach it at a larger number of layers.",
        "chosen depth larger with PairNorm, in three quarters of the cases",
        pairs_of("*-PN", "*", deeper),
        MOST,
    ),
    Claim(
        "4.2, Table 1",
        "SGC-PN performs similar or better over 0% missing.",
        "accuracy at least that of SGC minus 0.02",
        pairs_of("SGC-PN", "SGC", not_worse, (0,), ("SGC",)),
    ),
    Claim(
        "4.2, Table 1",
        "SGC-PN beats SGC at 100% missing on all four graphs.",
        "higher accuracy",
        pairs_of("SGC-PN", "SGC", better, (100,), ("SGC",)),
    ),
    Claim(
        "4.2, Table 1",
        "SGC-PN significantly outperforms SGC for most other settings, especially for larger missing rates.",
        "accuracy more than 0.02 higher at 60, 80 and 100% missing, in three quarters of the cases",
        pairs_of("SGC-PN", "SGC", notably_better, (60, 80, 100), ("SGC",)),
        MOST,
    ),
    Claim(
        "4.2, Table 1",
        "The number of layers chosen is larger for SGC-PN than for SGC.",
        "chosen depth larger, in three quarters of the cases",
        pairs_of("SGC-PN", "SGC", deeper, RATES, ("SGC",)),
        MOST,
    ),
    Claim(
        "4.2",
        "SGC-PN is comparable to or better than GCN-PN and GAT-PN with missing vectors.",
        "accuracy at least that of the other minus 0.02, at 100% missing",
        strong_sgc,
    ),
    Claim(
        "4.2, Tables 2 and 3 (1)",
        "The vanilla model suffers from a performance drop with increasing missing rate.",
        "accuracy lower at 100% than at 0% missing",
        drop,
    ),
    Claim(
        "4.2, Tables 2 and 3 (2)",
        "Both residual connections and PairNorm-SI enable deeper models.",
        "chosen depth larger than the plain model's, at 100% missing",
        together(*(pairs_of(f"*-{name}", "*", deeper, models=GNNS) for name in ("PN", "t1", "t2"))),
    ),
    Claim(
        "4.2, Tables 2 and 3 (2)",
        "Both residual connections and PairNorm-SI improve performance.",
        "accuracy higher than the plain model's, at 100% missing",
        together(*(pairs_of(f"*-{name}", "*", better, models=GNNS) for name in ("PN", "t1", "t2"))),
    ),
    Claim(
        "4.2, Tables 2 and 3 (3)",
        "GCN-PN and GAT-PN are comparable to or better than just using skips.",
        "accuracy at least that of the better skip minus 0.02, at 100% missing",
        better_of_skips("*-PN", not_worse, (100,), with_norm=False),
    ),
    Claim(
        "4.2, Tables 2 and 3 (4)",
        "Performance can be further improved, albeit slightly, by skips along with PairNorm-SI.",
        "the better skip with PairNorm-SI is above PairNorm-SI alone, at 100% missing, in three quarters of "
        "the cases",
        better_of_skips("*-PN", lambda one, other: better(other, one), (100,), with_norm=True),
        MOST,
    ),
    Claim(
        "4.2, footnote",
        "There is a slight performance drop when PairNorm is applied at 0% missing.",
        "GCN and GAT lose accuracy, in three quarters of the cases",
        pairs_of("*-PN", "*", lambda one, other: better(other, one), (0,), GNNS),
        MOST,
    ),
    Claim(
        "A.5",
        "Vanilla GCN and GAT drop monotonically as the missing fraction increases.",
        "no rise of more than 0.01 from one missing rate to the next",
        monotone_drop,
    ),
    Claim(
        "A.5",
        "PairNorm-enhanced models (no skips) perform comparably or better than vanilla in all cases.",
        "accuracy at least the plain model's minus 0.02 at 0, 70, 80, 90 and 100% missing",
        pairs_of("*-PN", "*", not_worse, BAR_RATES, GNNS, "bars"),
    ),
    Claim(
        "A.5",
        "The best number of layers for GCN only changes between 2 and 4.",
        "at most 4 layers at every missing rate",
        at_most(4, ("GCN",), BAR_RATES, "bars"),
    ),
    Claim(
        "A.5",
        "For GAT it changes mostly between 2 and 6.",
        "at most 6 layers, in three quarters of the cases",
        at_most(6, ("GAT",), BAR_RATES, "bars"),
        MOST,
    ),
    Claim(
        "A.5",
        "PairNorm-enhanced models use an equal number or more layers than vanilla in almost all cases.",
        "chosen depth not smaller, in nine cases of ten",
        pairs_of("*-PN", "*", not_shallower, BAR_RATES, GNNS, "bars"),
        ALMOST_ALL,
    ),
    Claim(
        "A.5",
        "Without any normalisation, adding skip connections helps, especially as more is missing.",
        "the better skip is above the plain model at 70% missing and more",
        better_of_skips("*", lambda one, other: better(other, one), BAR_RATES[1:], False, "bars"),
    ),
    Claim(
        "A.5",
        "With PairNorm but no skip, performance is comparable to or better than just adding skips.",
        "accuracy at least that of the better skip minus 0.02 at every missing rate",
        better_of_skips("*-PN", not_worse, BAR_RATES, False, "bars"),
    ),
    Claim(
        "A.5",
        "Adding skips on top of PairNorm does not introduce any notable gains.",
        "the better skip with PairNorm at most 0.02 above PairNorm alone at every missing rate",
        better_of_skips("*-PN", not_worse, BAR_RATES, True, "bars"),
    ),
    Claim(
        "A.6, SGC",
        "Without normalisation, SGC suffers from fast diminishing APD and APSD of random pairs.",
        "in the last layer less than half of what they were in the first",
        together(
            by_layer("SGC", "none", "SGC, APD", lambda found: shrinks_to(0.5, found.apd["random"])),
            by_layer("SGC", "none", "SGC, APSD", lambda found: shrinks_to(0.5, found.apsd["random"])),
        ),
    ),
    Claim(
        "A.6, SGC",
        "PairNorm keeps APSD constant across layers.",
        "APSD of all pairs the same in every layer, to a thousandth",
        by_layer("SGC", "PN", "SGC with PN", lambda found: constant(found.apsd["random"])),
    ),
    Claim(
        "A.6, SGC",
        "PairNorm does not normalise APD, which decreases with the number of layers.",
        "APD of random pairs smaller in the last layer than in the first",
        by_layer("SGC", "PN", "SGC with PN", lambda found: shrinks_to(1.0, found.apd["random"])),
    ),
    Claim(
        "A.6, SGC",
        "PairNorm-SI achieves more stable APSD and APD than PairNorm.",
        "over the layers each varies by a smaller share of its largest value",
        together(more_stable("apsd"), more_stable("apd")),
    ),
    Claim(
        "A.6, GCN",
        "In a deep GCN without normalisation, connected and random pair distances reach zero.",
        "APD in the last hidden layer less than a hundredth of that in the first",
        together(
            *(
                by_layer("GCN", "none", f"GCN, {kind} pairs",
                         lambda found, kind=kind: shrinks_to(0.01, found.apd[kind]))  # type: ignore[misc]
                for kind in ("connected", "random")
            )
        ),
    ),
    Claim(
        "A.6, GCN",
        "With PairNorm or PairNorm-SI, random pairs stay apart while connected pairs come closer.",
        "in the last hidden layer, APD of connected pairs below 0.8 of that of random pairs",
        together(*(by_layer("GCN", norm, f"GCN with {norm}", stays_apart) for norm in ("PN", "PN-SI"))),
    ),
    Claim(
        "A.6, GCN",
        "PairNorm and PairNorm-SI help to train a 12-layer GCN (paper: 31.1% without, 77.8%, 75.1%).",
        "test accuracy more than 0.02 above that without",
        deep_gcn_trains,
    ),
    Claim(
        "3.1",
        "PairNorm-SI provides better and more stable results than PairNorm for GCN and GAT.",
        "accuracy higher, in three quarters of the cases of the ablation",
        pairs_in_ablation("* after PN-SI", "* after PN", better),
        MOST,
    ),
)  # fmt: skip


def verdicts(evidence: Evidence) -> Sequence[Verdict]:
    """Decide every claim."""
    return [Verdict(claim, tuple(claim.cases(evidence))) for claim in CLAIMS]
