"""The paper's claims in its words, each with the test that decides whether it holds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, product
from math import sqrt
from typing import Concatenate, ParamSpec

from pairnorm.paper.case_study import Layers
from pairnorm.paper.evidence import Case, Cases, Claim, Evidence, PaperEvidence, Verdict, compare
from pairnorm.paper.experiments import DATASETS, EXPERIMENTS, Selection
from pairnorm.sweep.grid import Experiment, Summary
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.tables import TITLES
from pairnorm.train import Spec

P = ParamSpec("P")
Decision = tuple[bool, str]
"""Whether a test passes, and the numbers that decide."""

TABLE = {"SGC": "table1", "GCN": "table2", "GAT": "table3"}
GNNS = ("GCN", "GAT")
RATES = (0, 20, 40, 60, 80, 100)
BAR_RATES = (0, 70, 80, 90, 100)
NOISE = 0.01
"""Relative change against a trend that still counts as monotone: means of a few runs scatter."""


def cases(make: Callable[Concatenate[Evidence, P], Iterable[Case]]) -> Callable[P, Cases]:
    """Make a function of the evidence and other arguments a function of the other arguments only."""
    return lambda *args, **options: lambda evidence: make(evidence, *args, **options)


def decide(label: str, test: Callable[..., Decision], *found: object) -> Case:
    """Return the case that ``test(*found)`` decides; with None among them it has not been run."""
    return Case(label, None) if any(one is None for one in found) else Case(label, *test(*found))


@cases
def pairs_of(
    evidence: Evidence,
    one: str,
    other: str,
    test: str,
    percents: Sequence[int] = (100,),
    models: Sequence[str] = ("SGC", "GCN", "GAT"),
    experiment: str | None = None,
) -> Iterator[Case]:
    """Compare two methods on every graph.

    Args:
        evidence: the numbers.
        one: a method; ``*`` stands for the model's name.
        other: another method; of several, separated by commas, the one that validation accuracy selects.
        test: one of ``TESTS``.
        percents: of missing vectors.
        models: what ``*`` stands for.
        experiment: where to look. Default: each model's table.
    """
    datasets = EXPERIMENTS[experiment].datasets if experiment else DATASETS
    for model, dataset, percent in product(models, datasets, percents):

        def chosen(method: str, dataset: str = dataset, percent: int = percent) -> Chosen | None:
            return evidence.chosen(experiment or TABLE[method.split("-")[0]], dataset, method, percent)

        method, others = one.replace("*", model), other.replace("*", model)
        shown = f"best of {others}" if ", " in others else others
        label = f"{method} / {shown}, {TITLES[dataset]}, {percent}%"
        yield compare(label, test, chosen(method), *map(chosen, others.split(", ")))


@cases
def at_most(
    evidence: Evidence,
    layers: int,
    models: Sequence[str],
    percents: Sequence[int],
    experiment: str | None = None,
) -> Iterator[Case]:
    """Test that validation selects at most this many layers for a plain model."""
    for model, dataset, percent in product(models, DATASETS, percents):
        yield decide(
            f"{model}, {TITLES[dataset]}, {percent}%",
            lambda found: (found.layers <= layers, f"{found.layers} layers"),
            evidence.chosen(experiment or TABLE[model], dataset, model, percent),
        )


@cases
def drop(evidence: Evidence) -> Iterator[Case]:
    """Test that plain models lose accuracy when all vectors are missing."""
    for model, dataset in product(GNNS, DATASETS):
        found = [evidence.chosen(TABLE[model], dataset, model, percent) for percent in (100, 0)]
        yield compare(f"{model}, {TITLES[dataset]}, 100% / 0%", "worse", *found)


@cases
def monotone_drop(evidence: Evidence) -> Iterator[Case]:
    """Test that plain models lose accuracy from each missing rate of the bar charts to the next.

    Means are over all the runs that there are: the paper has a single one of most.
    """

    def falls(*found: Chosen) -> Decision:
        runs = [chosen.every or chosen.best for chosen in found]
        values = [one.mean("test_accuracy") for one in runs]
        holds = all(later <= before + NOISE for before, later in pairwise(values))
        counts = ", ".join(str(len(one.trials)) for one in runs)
        return holds, ", ".join(f"{value:.3f}" for value in values) + f"; of {counts} runs"

    for model, dataset in product(GNNS, DATASETS):
        found = [evidence.chosen("bars", dataset, model, percent) for percent in BAR_RATES]
        yield decide(f"{model}, {TITLES[dataset]}", falls, *found)


@cases
def trend(evidence: Evidence, name: str, direction: int) -> Iterator[Case]:
    """Test that a metric of SGC in Figure 1 on Cora rises (or falls) with every step in depth."""

    def steady(curve: Sequence[Summary]) -> Decision:
        points = [(one.spec.depth, one.mean(name)) for one in curve]
        wrong = [
            str(depth)
            for (_, before), (depth, after) in pairwise(points)
            if direction * after < direction * before - NOISE * abs(before)
        ]
        shown = " to ".join(f"{value:.4g} at {depth}" for depth, value in (points[0], points[-1]))
        return not wrong, shown + (f"; not at {', '.join(wrong)}" if wrong else "")

    yield decide("SGC, Cora", steady, evidence.curve("figure1", "cora", "SGC", 0))


@cases
def gap_closes(evidence: Evidence) -> Iterator[Case]:
    """Test that up to 4 layers the test loss comes nearer to the training loss, and later accuracy falls."""
    curve = evidence.curve("figure1", "cora", "SGC", 0)
    if curve is None:
        yield Case("SGC, Cora", None)
        return
    middle = max(
        (one for one in curve if one.spec.depth <= 4), default=curve[0], key=lambda one: one.spec.depth
    )
    first, last = curve[0], curve[-1]
    gaps = [one.mean("test_loss") - one.mean("train_loss") for one in (first, middle)]
    yield Case(
        "gap between training and test loss, Cora",
        gaps[1] < gaps[0],
        f"{gaps[0]:.3f} at {first.spec.depth}, {gaps[1]:.3f} at {middle.spec.depth} layers",
    )
    before, after = (one.mean("test_accuracy") for one in (middle, last))
    yield Case(
        "test accuracy beyond, Cora",
        after < before,
        f"{before:.3f} at {middle.spec.depth}, {after:.3f} at {last.spec.depth} layers",
    )


@cases
def slower_decay(evidence: Evidence) -> Iterator[Case]:
    """Test that from the best depth to the largest, less than half as much accuracy is lost with PairNorm."""

    def loses_less(*curves: Sequence[Summary]) -> Decision:
        accuracies = [[one.mean("test_accuracy") for one in curve] for curve in curves]
        plain, normalized = (max(values) - values[-1] for values in accuracies)
        return normalized < plain / 2, f"loses {normalized:.3f} against {plain:.3f}"

    for model, dataset in product(("SGC", *GNNS), DATASETS):
        figure = "figure1" if model == "SGC" else "figure3"
        curves = [evidence.curve(figure, dataset, name, 0) for name in (model, f"{model}-PN")]
        yield decide(f"{model}, {TITLES[dataset]}", loses_less, *curves)


@cases
def by_layer(
    evidence: Evidence, model: str, norms: Sequence[str], label: str, test: Callable[..., Decision]
) -> Iterator[Case]:
    """Test the case study of a model, with one norm or with several."""
    yield decide(label, test, *(evidence.study(model, norm) for norm in norms))


def together(*parts: Cases) -> Cases:
    """Return the cases of all parts."""
    return lambda evidence: (case for part in parts for case in part(evidence))


def shrinks_to(share: float, values: Sequence[float]) -> Decision:
    """Test that the last value is less than a share of the first."""
    return values[-1] < share * values[0], f"{values[0]:.3g} in the first layer, {values[-1]:.3g} in the last"


def shrinks(
    model: str, norm: str, label: str, share: float, quantity: str = "apd", kind: str = "random"
) -> Cases:
    """Return the case that a quantity of pairs shrinks over the layers to less than a share."""
    return by_layer(model, (norm,), label, lambda found: shrinks_to(share, getattr(found, quantity)[kind]))


def constant(values: Sequence[float]) -> Decision:
    """Test that all values agree to a thousandth."""
    return max(values) - min(values) <= 1e-3 * max(values), f"from {min(values):.4g} to {max(values):.4g}"


def more_stable(quantity: str) -> Cases:
    """Return the case that a quantity of random pairs varies less over the layers with PN-SI than with PN."""

    def varies_less(*found: Layers) -> Decision:
        series = [getattr(layers, quantity)["random"] for layers in found]
        one, other = ((max(values) - min(values)) / max(values) for values in series)
        return one < other, f"varies by {one:.1%} with PN-SI, by {other:.1%} with PN"

    return by_layer("SGC", ("PN-SI", "PN"), f"SGC, {quantity.upper()} of random pairs", varies_less)


def stays_apart(layers: Layers) -> Decision:
    """Test that in the last hidden layer connected pairs are nearer to each other than random ones."""
    connected, random = (layers.apd[kind][-1] for kind in ("connected", "random"))
    return connected < 0.8 * random, f"connected {connected:.3g}, random {random:.3g}"


def spreads(layers: Layers) -> Decision:
    """Test that the standard deviation of random pair distances grows from the first to the last layer."""
    first, last = (_deviation(layers, layer) for layer in (0, -1))
    return last > first, f"standard deviation {first:.3g} in the first layer, {last:.3g} in the last"


def _deviation(layers: Layers, layer: int) -> float:
    edges, counts = layers.edges["random"], layers.histograms["random"][layer]
    centers = [(low + high) / 2 for low, high in pairwise(edges)]
    mean = sum(center * count for center, count in zip(centers, counts, strict=True)) / sum(counts)
    squares = sum(count * (center - mean) ** 2 for center, count in zip(centers, counts, strict=True))
    return sqrt(squares / sum(counts))


@cases
def other_models(evidence: Evidence, percents: Sequence[int]) -> Iterator[Case]:
    """Test that SGC-PN is not notably worse than GCN-PN and GAT-PN."""
    for model, dataset, percent in product(GNNS, DATASETS, percents):
        label = f"SGC-PN / {model}-PN, {TITLES[dataset]}, {percent}%"
        ours = evidence.chosen("table1", dataset, "SGC-PN", percent)
        yield compare(label, "not worse", ours, evidence.chosen("bars", dataset, f"{model}-PN", percent))


@cases
def less_scatter(evidence: Evidence) -> Iterator[Case]:
    """Test that runs with PN-SI have a smaller standard deviation than runs with PN."""

    def varies_less(one: Chosen, other: Chosen) -> Decision:
        shown = f"standard deviation {one.accuracy_std:.4f} against {other.accuracy_std:.4f}"
        return one.accuracy_std < other.accuracy_std, shown

    for model, dataset, percent in product(("GCN rw", "GAT"), EXPERIMENTS["ablation"].datasets, (0, 100)):
        found = [
            evidence.chosen("ablation", dataset, f"{model} after {norm}", percent) for norm in ("PN-SI", "PN")
        ]
        yield decide(f"{model}, {TITLES[dataset]}, {percent}%", varies_less, *found)


@cases
def deeper_range(evidence: Evidence) -> Iterator[Case]:
    """Test that over all missing rates the largest selected depth grows with PairNorm, to at most 12."""

    def reaches_further(*found: Chosen) -> Decision:
        layers = [chosen.layers for chosen in found]
        plain, normalized = max(layers[: len(BAR_RATES)]), max(layers[len(BAR_RATES) :])
        return plain < normalized <= 12, f"up to {normalized} layers, without up to {plain}"

    for model, dataset in product(GNNS, DATASETS):
        found = [
            evidence.chosen("bars", dataset, name, percent)
            for name in (model, f"{model}-PN")
            for percent in BAR_RATES
        ]
        yield decide(f"{model}, {TITLES[dataset]}", reaches_further, *found)


@cases
def earlier_epoch(evidence: Evidence) -> Iterator[Case]:
    """Test that a 12-layer GCN with PN-SI reaches its best validation accuracy earlier than with PN."""

    def is_earlier(one: Chosen, other: Chosen) -> Decision:
        epochs = [chosen.best.mean("best_epoch") for chosen in (one, other)]
        return epochs[0] < epochs[
            1
        ], f"epoch {epochs[0]:.0f} against {epochs[1]:.0f}, means of {len(one.best.trials)} runs"

    found = [evidence.chosen("deep-gcn", "cora", f"GCN-{norm}", 0) for norm in ("PN-SI", "PN")]
    known = [one if one is not None and one.best.mean("best_epoch") else None for one in found]
    yield decide("GCN, 12 layers, Cora", is_earlier, *known)


MOST, ALMOST_ALL = 0.75, 0.9
BOTH_SKIPS, BOTH_SKIPS_PN = "*-t1, *-t2", "*-t1-PN, *-t2-PN"

CLAIMS = (
    Claim("2.2, Figure 1", "The training loss of SGC monotonically increases with larger K.",
          "at no step in depth does it fall by more than 1%", trend("train_loss", +1)),
    Claim("2.2, Figure 1",
          "Convolutions reduce the gap between training and test loss up to K = 4, after which "
          "oversmoothing begins to hurt performance.",
          "gap smaller at 4 layers than at the first depth; test accuracy at the largest depth below that "
          "at 4", gap_closes()),
    Claim("2.2, Figure 1", "Row-diff and col-diff both continue decreasing monotonically with K.",
          "at no step in depth do they rise by more than 1%",
          together(trend("row_diff", -1), trend("col_diff", -1))),
    Claim("3.1, Figures 1 and 3", "The performance decay with PairNorm at work is much slower.",
          "test accuracy lost from the best to the largest depth is less than half with PairNorm, nothing "
          "missing",
          slower_decay()),
    Claim("3.1", "With nothing missing, PairNorm does not improve the overall test accuracy.",
          "accuracy with PairNorm at most 0.02 above that without",
          pairs_of("*-PN", "*", "not notably better", (0,))),
    Claim("3.1", "The benchmark graphs require no more than 4 layers.",
          "GCN and GAT choose at most 4 layers, nothing missing", at_most(4, GNNS, (0,))),
    Claim("3.2, Figure 4",
          "Models with PairNorm achieve a higher test accuracy when all vectors are missing.",
          "higher accuracy at the chosen depth", pairs_of("*-PN", "*", "better")),
    Claim("3.2, Figure 4", "They typically reach it at a larger number of layers.",
          "chosen depth larger with PairNorm, in three quarters of the cases",
          pairs_of("*-PN", "*", "deeper"), MOST),
    Claim("4.2, Table 1", "SGC-PN performs similar or better over 0% missing.",
          "accuracy at least that of SGC minus 0.02", pairs_of("SGC-PN", "SGC", "not worse", (0,), ("SGC",))),
    Claim("4.2, Table 1", "SGC-PN beats SGC at 100% missing on all four graphs.", "higher accuracy",
          pairs_of("SGC-PN", "SGC", "better", (100,), ("SGC",))),
    Claim("4.2, Table 1",
          "SGC-PN significantly outperforms SGC for most other settings, especially for larger missing "
          "rates.",
          "accuracy more than 0.02 higher at 60, 80 and 100% missing, in three quarters of the cases",
          pairs_of("SGC-PN", "SGC", "notably better", (60, 80, 100), ("SGC",)), MOST),
    Claim("4.2, Table 1", "The number of layers chosen is larger for SGC-PN than for SGC.",
          "chosen depth larger, in three quarters of the cases",
          pairs_of("SGC-PN", "SGC", "deeper", RATES, ("SGC",)), MOST),
    Claim("4.2", "SGC-PN is comparable to or better than GCN-PN and GAT-PN in all SSNC-MV settings.",
          "accuracy at least that of the other minus 0.02, at 80 and 100% missing", other_models((80, 100))),
    Claim("4.2, Tables 2 and 3 (1)",
          "The vanilla model suffers from a performance drop with increasing missing rate.",
          "accuracy lower at 100% than at 0% missing", drop()),
    Claim("4.2, Tables 2 and 3 (2)", "Both residual connections and PairNorm-SI enable deeper models.",
          "chosen depth larger than the plain model's, at 100% missing",
          together(*(pairs_of(f"*-{name}", "*", "deeper", models=GNNS) for name in ("PN", "t1", "t2")))),
    Claim("4.2, Tables 2 and 3 (2)", "Both residual connections and PairNorm-SI improve performance.",
          "accuracy higher than the plain model's, at 100% missing",
          together(*(pairs_of(f"*-{name}", "*", "better", models=GNNS) for name in ("PN", "t1", "t2")))),
    Claim("4.2, Tables 2 and 3 (3)", "GCN-PN and GAT-PN are comparable to or better than just using skips.",
          "accuracy at least that of the better skip minus 0.02, at 100% missing",
          pairs_of("*-PN", BOTH_SKIPS, "not worse", models=GNNS)),
    Claim("4.2, Tables 2 and 3 (4)",
          "Performance can be further improved, albeit slightly, by skips along with PairNorm-SI.",
          "the better skip with PairNorm-SI is above PairNorm-SI alone, at 100% missing, in three quarters "
          "of the cases", pairs_of("*-PN", BOTH_SKIPS_PN, "worse", models=GNNS), MOST),
    Claim("4.2, footnote", "There is a slight performance drop when PairNorm is applied at 0% missing.",
          "GCN and GAT lose accuracy, in three quarters of the cases",
          pairs_of("*-PN", "*", "worse", (0,), GNNS), MOST),
    Claim("A.5", "Vanilla GCN and GAT drop monotonically as the missing fraction increases.",
          "no rise of more than 0.01 from one missing rate to the next", monotone_drop()),
    Claim("A.5",
          "PairNorm-enhanced models (no skips) perform comparably or better than vanilla in all cases.",
          "accuracy at least the plain model's minus 0.02 at 0, 70, 80, 90 and 100% missing",
          pairs_of("*-PN", "*", "not worse", BAR_RATES, GNNS, "bars")),
    Claim("A.5", "The best number of layers for GCN only changes between 2 and 4.",
          "at most 4 layers at every missing rate", at_most(4, ("GCN",), BAR_RATES, "bars")),
    Claim("A.5", "For GAT it changes mostly between 2 and 6.",
          "at most 6 layers, in three quarters of the cases", at_most(6, ("GAT",), BAR_RATES, "bars"), MOST),
    Claim("A.5",
          "PairNorm-enhanced models use an equal number or more layers than vanilla in almost all cases.",
          "chosen depth not smaller, in nine cases of ten",
          pairs_of("*-PN", "*", "not shallower", BAR_RATES, GNNS, "bars"), ALMOST_ALL),
    Claim("A.5", "PairNorm-enhanced models can leverage a larger range of layers, 2 to 12.",
          "over the missing rates the largest selected depth exceeds the plain model's and is at most 12",
          deeper_range(), MOST),
    Claim("A.5", "Without any normalization, adding skip connections helps, especially as more is missing.",
          "the better skip is above the plain model at 70% missing and more",
          pairs_of("*", BOTH_SKIPS, "worse", BAR_RATES[1:], GNNS, "bars")),
    Claim("A.5", "With PairNorm but no skip, performance is comparable to or better than just adding skips.",
          "accuracy at least that of the better skip minus 0.02 at every missing rate",
          pairs_of("*-PN", BOTH_SKIPS, "not worse", BAR_RATES, GNNS, "bars")),
    Claim("A.5", "Adding skips on top of PairNorm does not introduce any notable gains.",
          "the better skip with PairNorm at most 0.02 above PairNorm alone at every missing rate",
          pairs_of("*-PN", BOTH_SKIPS_PN, "not worse", BAR_RATES, GNNS, "bars")),
    Claim("A.6, SGC",
          "Without normalization, SGC suffers from fast diminishing APD and APSD of random pairs.",
          "in the last layer less than half of what they were in the first",
          together(*(shrinks("SGC", "none", f"SGC, {name.upper()}", 0.5, name) for name in ("apd", "apsd")))),
    Claim("A.6, SGC", "PairNorm keeps APSD constant across layers.",
          "APSD of all pairs the same in every layer, to a thousandth",
          by_layer("SGC", ("PN",), "SGC with PN", lambda found: constant(found.apsd["random"]))),
    Claim("A.6, SGC", "PairNorm does not normalize APD, which decreases with the number of layers.",
          "APD of random pairs smaller in the last layer than in the first",
          shrinks("SGC", "PN", "SGC with PN", 1.0)),
    Claim("A.6, SGC", "PairNorm-SI achieves more stable APSD and APD than PairNorm.",
          "over the layers APD varies by a smaller share of its largest value; APSD is constant to 0.1% with "
          "both and decides nothing", more_stable("apd")),
    Claim("A.6, SGC", "PairNorm-SI spreads the distribution of random pair distances out.",
          "their standard deviation is larger in the last layer than in the first",
          by_layer("SGC", ("PN-SI",), "SGC with PN-SI", spreads)),
    Claim("A.6, GCN", "In a deep GCN without normalization, connected and random pair distances reach zero.",
          "APD in the last hidden layer less than a hundredth of that in the first",
          together(*(shrinks("GCN", "none", f"GCN, {kind} pairs", 0.01, kind=kind)
                     for kind in ("connected", "random")))),
    Claim("A.6, GCN",
          "With PairNorm or PairNorm-SI, random pairs stay apart while connected pairs come closer.",
          "in the last hidden layer, APD of connected pairs below 0.8 of that of random pairs",
          together(*(by_layer("GCN", (norm,), f"GCN with {norm}", stays_apart) for norm in ("PN", "PN-SI")))),
    Claim("A.6, GCN",
          "PairNorm and PairNorm-SI help to train a 12-layer GCN (paper: 31.1% without, 77.8%, 75.1%).",
          "test accuracy more than 0.02 above that without, 20 runs",
          together(*(pairs_of(f"GCN-{norm}", "GCN", "notably better", (0,), ("GCN",), "deep-gcn")
                     for norm in ("PN", "PN-SI")))),
    Claim("A.6, GCN", "Restricting representations to a sphere makes training faster.",
          "the best epoch of a 12-layer GCN comes earlier with PN-SI than with PN, 20 runs",
          earlier_epoch()),
    Claim("3.1", "Both PairNorm and PairNorm-SI work well for SGC.",
          "accuracy above that without, at 100% missing",
          together(*(pairs_of(f"SGC-{norm}", "SGC", "better", (100,), ("SGC",), "sgc-modes")
                     for norm in ("PN", "PN-SI")))),
    Claim("3.1", "PairNorm-SI provides more stable results than PairNorm for GCN and GAT.",
          "standard deviation over runs lower, in three quarters of the cases of the ablation",
          less_scatter(), MOST),
    Claim("3.1", "PairNorm-SI provides better results than PairNorm for GCN and GAT.",
          "accuracy higher, in three quarters of the cases of the ablation",
          pairs_of("* after PN-SI", "* after PN", "better", (0, 100), ("GCN rw", "GAT"), "ablation"), MOST),
)  # fmt: skip


def verdicts(evidence: Evidence) -> Sequence[Verdict]:
    """Decide every claim, by the given evidence and by the paper's own numbers."""
    paper = PaperEvidence()
    return [Verdict(claim, tuple(claim.cases(evidence)), tuple(claim.cases(paper))) for claim in CLAIMS]


def requested_runs(results: ResultIndex, experiment: Experiment) -> dict[Spec, range]:
    """Return the runs to add where the paper's number of runs leaves a verdict within noise.

    Args:
        results: what has been run.
        experiment: ``CLAIMS_AGAIN``, or a selected part of it.
    """
    selection = Selection(epochs=experiment.settings.get("epochs"), depths=experiment.settings.get("depth"))
    decided = verdicts(Evidence(results, {}, selection, every_run=False))
    specs = dict.fromkeys(spec for one in decided for case in one.unsure for spec in case.unsure)
    runs = {percent / 100: range(count) for percent, count in experiment.missing.items()}
    return {
        spec: runs[spec.missing_rate]
        for spec in specs
        if spec.dataset in experiment.datasets and spec.missing_rate in runs
    }
