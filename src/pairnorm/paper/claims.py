"""The paper's claims in its words, each with the test that decides whether it holds."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from math import sqrt
from typing import Any

from pairnorm.paper.evidence import Case, Cases, Claim, Evidence, Layers, PaperEvidence, Verdict, compare
from pairnorm.paper.experiments import DATASETS, EXPERIMENTS, Selection
from pairnorm.sweep.grid import Experiment, Summary
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.tables import TITLES
from pairnorm.train.engine import Pair

Decision = tuple[bool, str]
"""Whether a test passes, and the numbers that decide."""
TABLE = {"SGC": "table1", "GCN": "table2", "GAT": "table3"}
GNNS = ("GCN", "GAT")
RATES = (0, 20, 40, 60, 80, 100)
BAR_RATES = (0, 70, 80, 90, 100)
NOISE = 0.01
"""Relative change against a trend that still counts as monotone: means of a few runs scatter."""


def decide(label: str, test: Callable[..., Decision | None], *numbers: object) -> Case:
    """Return the case that ``test(*numbers)`` decides; not run with None for a number or the result."""
    decided = None if any(number is None for number in numbers) else test(*numbers)
    return Case(label, None) if decided is None else Case(label, *decided)


def together(*parts: Cases) -> Cases:
    """Return a function that yields the cases of all parts."""
    return lambda evidence: (case for part in parts for case in part(evidence))


def selected(
    test: str | Callable[..., Decision | None],
    *cells: str,
    label: str = "*, {graph}, {percent}%",
    percents: Sequence[int] = (100,),
    models: Sequence[str] = GNNS,
    experiment: str | None = None,
) -> Cases:
    """Test the selected candidates of cells against each other: a case per model, graph and missing rate.

    Args:
        test: one of ``TESTS``, of the first candidate against the others, or a function of all candidates.
        *cells: methods; ``*`` stands for the model's name. Of its own it may have an experiment, as in
            ``bars:GCN``, and a missing rate, as in ``GCN@70``.
        label: of a case.
        percents: of missing vectors.
        models: what ``*`` stands for.
        experiment: where to look. Default: each model's table.
    """
    datasets = EXPERIMENTS[experiment].datasets if experiment else DATASETS

    def cases(evidence: Evidence) -> Iterator[Case]:
        for model, dataset, percent in product(models, datasets, percents):
            candidates = []
            for cell in cells:
                where, method, rate = _parse_cell(cell.replace("*", model), experiment)
                candidates.append(evidence.chosen(where, dataset, method, percent if rate is None else rate))
            name = label.replace("*", model).format(graph=TITLES[dataset], percent=percent)
            yield (
                compare(name, test, *candidates) if isinstance(test, str) else decide(name, test, *candidates)
            )

    return cases


def _parse_cell(cell: str, experiment: str | None) -> tuple[str, str, int | None]:
    named, _, cell = cell.rpartition(":")
    method, _, rate = cell.partition("@")
    return named or experiment or TABLE[method.split("-")[0]], method, int(rate) if rate else None


def pairs_of(
    method: str,
    others: str,
    test: str,
    percents: Sequence[int] = (100,),
    models: Sequence[str] = ("SGC", *GNNS),
    experiment: str | None = None,
) -> Cases:
    """Compare a method with the best of others by validation; arguments as for ``selected``."""
    name, shown = method.rpartition(":")[2], others.rpartition(":")[2]
    label = f"{name} / {'best of ' * (', ' in shown)}{shown}, {{graph}}, {{percent}}%"
    where: dict[str, Any] = {"percents": percents, "models": models, "experiment": experiment}
    return selected(test, method, *others.split(", "), label=label, **where)


def at_most(
    layers: int, models: Sequence[str], percents: Sequence[int], experiment: str | None = None
) -> Cases:
    """Test that validation selects at most this many layers for a plain model."""

    def is_shallow(chosen: Chosen) -> Decision:
        return chosen.layers <= layers, f"{chosen.layers} layers"

    return selected(is_shallow, "*", percents=percents, models=models, experiment=experiment)


def falls(*by_rate: Chosen) -> Decision:
    """Test that accuracy falls from each missing rate to the next, over all runs that there are.

    The paper has a single run of most.
    """
    runs = [chosen.all_runs or chosen.best for chosen in by_rate]
    values = [summary.mean("test_accuracy") for summary in runs]
    holds = all(later <= before + NOISE for before, later in pairwise(values))
    counts = ", ".join(str(len(summary.trials)) for summary in runs)
    return holds, ", ".join(f"{value:.3f}" for value in values) + f"; of {counts} runs"


def varies_less(one: Chosen, other: Chosen) -> Decision:
    """Test that the runs of the first have a smaller standard deviation."""
    shown = f"standard deviation {one.accuracy_std:.4f} against {other.accuracy_std:.4f}"
    return one.accuracy_std < other.accuracy_std, shown


def reaches_further(*chosen: Chosen) -> Decision:
    """Test that over all missing rates the largest selected depth grows with PairNorm, to at most 12."""
    layers = [best.layers for best in chosen]
    plain, normalized = max(layers[: len(BAR_RATES)]), max(layers[len(BAR_RATES) :])
    return plain < normalized <= 12, f"up to {normalized} layers, without up to {plain}"


def trains_faster(one: Chosen, other: Chosen) -> Decision | None:
    """Test that the best epoch of the first comes earlier; not on the paper's numbers, which have none."""
    first, second = one.best.mean("best_epoch"), other.best.mean("best_epoch")
    shown = f"epoch {first:.0f} against {second:.0f}, means of {len(one.best.trials)} runs"
    return (first < second, shown) if second else None


def curves(
    test: Callable[..., Decision], *cells: tuple[str, str], label: str, datasets: Sequence[str] = ("cora",)
) -> Cases:
    """Test curves against depth with all features: cells are figures and methods, a case per graph."""
    return lambda evidence: (
        decide(
            f"{label}, {TITLES[dataset]}",
            test,
            *(evidence.curve(figure, dataset, method, 0) for figure, method in cells),
        )
        for dataset in datasets
    )


def trend(name: str, direction: int) -> Cases:
    """Test that a metric of SGC in Figure 1 on Cora rises (or falls) with every step in depth."""

    def is_monotone(curve: Sequence[Summary]) -> Decision:
        points = [(point.spec.depth, point.mean(name)) for point in curve]
        wrong = [
            str(depth)
            for (_, before), (depth, after) in pairwise(points)
            if direction * after < direction * before - NOISE * abs(before)
        ]
        shown = " to ".join(f"{value:.4g} at {depth}" for depth, value in (points[0], points[-1]))
        return not wrong, shown + (f"; not at {', '.join(wrong)}" if wrong else "")

    return curves(is_monotone, ("figure1", "SGC"), label="SGC")


def _at_4_layers(curve: Sequence[Summary]) -> Summary:
    shallow = [point for point in curve if point.spec.depth <= 4]
    return shallow[-1] if shallow else curve[0]


def gap_closes(curve: Sequence[Summary]) -> Decision:
    """Test that the test loss is nearer to the training loss at 4 layers than at the first depth."""
    ends = (curve[0], _at_4_layers(curve))
    gaps = [point.mean("test_loss") - point.mean("train_loss") for point in ends]
    shown = ", ".join(f"{gap:.3f} at {point.spec.depth}" for gap, point in zip(gaps, ends, strict=True))
    return gaps[1] < gaps[0], f"{shown} layers"


def accuracy_falls(curve: Sequence[Summary]) -> Decision:
    """Test that accuracy is lower at the largest depth than at 4 layers."""
    ends = (_at_4_layers(curve), curve[-1])
    before, after = (point.mean("test_accuracy") for point in ends)
    return after < before, f"{before:.3f} at {ends[0].spec.depth}, {after:.3f} at {ends[1].spec.depth} layers"


def loses_less(*both: Sequence[Summary]) -> Decision:
    """Test that from the best depth to the largest, less than half as much is lost with PairNorm."""
    accuracies = [[point.mean("test_accuracy") for point in curve] for curve in both]
    plain, normalized = (max(values) - values[-1] for values in accuracies)
    return normalized < plain / 2, f"loses {normalized:.3f} against {plain:.3f}"


def by_layer(model: str, norms: Sequence[str], label: str, test: Callable[..., Decision]) -> Cases:
    """Test the case study of a model, with one norm or with several."""
    return lambda evidence: [decide(label, test, *(evidence.study(model, norm) for norm in norms))]


def shrinks_to(share: float, values: Sequence[float]) -> Decision:
    """Test that the last value is less than a share of the first."""
    return values[-1] < share * values[0], f"{values[0]:.3g} in the first layer, {values[-1]:.3g} in the last"


def shrinks(
    model: str, norm: str, label: str, share: float, name: str = "apd", kind: str = "random"
) -> Cases:
    """Return the case that a quantity of pairs shrinks over the layers to less than a share."""
    return by_layer(model, (norm,), label, lambda layers: shrinks_to(share, getattr(layers, name)[kind]))


def constant(values: Sequence[float]) -> Decision:
    """Test that all values agree to a thousandth."""
    return max(values) - min(values) <= 1e-3 * max(values), f"from {min(values):.4g} to {max(values):.4g}"


def is_steadier(*both: Layers) -> Decision:
    """Test that the APD of random pairs varies less over the layers with PN-SI than with PN."""
    with_si, with_pn = (1 - min(layers.apd["random"]) / max(layers.apd["random"]) for layers in both)
    return with_si < with_pn, f"varies by {with_si:.1%} with PN-SI, by {with_pn:.1%} with PN"


def stays_apart(layers: Layers) -> Decision:
    """Test that in the last hidden layer connected pairs are nearer to each other than random ones."""
    connected, random = (layers.apd[kind][-1] for kind in ("connected", "random"))
    return connected < 0.8 * random, f"connected {connected:.3g}, random {random:.3g}"


def spreads(layers: Layers) -> Decision:
    """Test that the standard deviation of random pair distances grows from the first to the last layer."""
    first, last = (_deviation(layers, layer) for layer in (0, -1))
    return last > first, f"standard deviation {first:.3g} in the first layer, {last:.3g} in the last"


def _deviation(layers: Layers, layer: int) -> float:
    """Return the standard deviation of random pair distances in a layer, from its histogram."""
    counts, edges = layers.histograms["random"][layer], layers.edges["random"]
    weighted = [((low + high) / 2, count) for (low, high), count in zip(pairwise(edges), counts, strict=True)]
    mean = sum(center * count for center, count in weighted) / sum(counts)
    return sqrt(sum(count * (center - mean) ** 2 for center, count in weighted) / sum(counts))


MOST, ALMOST_ALL = 0.75, 0.9
BOTH_SKIPS, BOTH_SKIPS_PN = "*-t1, *-t2", "*-t1-PN, *-t2-PN"

CLAIMS = (
    Claim("2.2, Figure 1", "The training loss of SGC monotonically increases with larger K.",
          "at no step in depth does it fall by more than 1%", trend("train_loss", +1)),
    Claim("2.2, Figure 1",
          "Convolutions reduce the gap between training and test loss up to K = 4, after which "
          "oversmoothing begins to hurt performance.",
          "gap smaller at 4 layers than at the first depth; test accuracy at the largest depth below that "
          "at 4",
          together(curves(gap_closes, ("figure1", "SGC"), label="gap between training and test loss"),
                   curves(accuracy_falls, ("figure1", "SGC"), label="test accuracy beyond"))),
    Claim("2.2, Figure 1", "Row-diff and col-diff both continue decreasing monotonically with K.",
          "at no step in depth do they rise by more than 1%",
          together(trend("row_diff", -1), trend("col_diff", -1))),
    Claim("3.1, Figures 1 and 3", "The performance decay with PairNorm at work is much slower.",
          "test accuracy lost from the best to the largest depth is less than half with PairNorm, nothing "
          "missing",
          together(*(curves(loses_less, (figure, model), (figure, f"{model}-PN"), label=model,
                            datasets=DATASETS)
                     for model, figure in (("SGC", "figure1"), ("GCN", "figure3"), ("GAT", "figure3"))))),
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
          "accuracy at least that of the other minus 0.02, at 80 and 100% missing",
          pairs_of("table1:SGC-PN", "bars:*-PN", "not worse", (80, 100), GNNS)),
    Claim("4.2, Tables 2 and 3 (1)",
          "The vanilla model suffers from a performance drop with increasing missing rate.",
          "accuracy lower at 100% than at 0% missing",
          selected("worse", "*@100", "*@0", label="*, {graph}, 100% / 0%")),
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
          "no rise of more than 0.01 from one missing rate to the next",
          selected(falls, *(f"*@{rate}" for rate in BAR_RATES), label="*, {graph}", experiment="bars")),
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
          selected(reaches_further, *(f"{name}@{rate}" for name in ("*", "*-PN") for rate in BAR_RATES),
                   label="*, {graph}", experiment="bars"), MOST),
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
          by_layer("SGC", ("PN",), "SGC with PN", lambda layers: constant(layers.apsd["random"]))),
    Claim("A.6, SGC", "PairNorm does not normalize APD, which decreases with the number of layers.",
          "APD of random pairs smaller in the last layer than in the first",
          shrinks("SGC", "PN", "SGC with PN", 1.0)),
    Claim("A.6, SGC", "PairNorm-SI achieves more stable APSD and APD than PairNorm.",
          "over the layers APD varies by a smaller share of its largest value; APSD is constant to 0.1% with "
          "both and decides nothing",
          by_layer("SGC", ("PN-SI", "PN"), "SGC, APD of random pairs", is_steadier)),
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
          selected(trains_faster, "GCN-PN-SI", "GCN-PN", label="GCN, 12 layers, {graph}", percents=(0,),
                   models=("GCN",), experiment="deep-gcn")),
    Claim("3.1", "Both PairNorm and PairNorm-SI work well for SGC.",
          "accuracy above that without, at 100% missing",
          together(*(pairs_of(f"SGC-{norm}", "SGC", "better", (100,), ("SGC",), "sgc-modes")
                     for norm in ("PN", "PN-SI")))),
    Claim("3.1", "PairNorm-SI provides more stable results than PairNorm for GCN and GAT.",
          "standard deviation over runs lower, in three quarters of the cases of the ablation",
          selected(varies_less, "* after PN-SI", "* after PN", percents=(0, 100), models=("GCN rw", "GAT"),
                   experiment="ablation"), MOST),
    Claim("3.1", "PairNorm-SI provides better results than PairNorm for GCN and GAT.",
          "accuracy higher, in three quarters of the cases of the ablation",
          pairs_of("* after PN-SI", "* after PN", "better", (0, 100), ("GCN rw", "GAT"), "ablation"), MOST),
)  # fmt: skip


def verdicts(evidence: Evidence) -> Sequence[Verdict]:
    """Decide every claim, by the given evidence and by the paper's own numbers."""
    paper = PaperEvidence()
    return [Verdict(claim, tuple(claim.cases(evidence)), tuple(claim.cases(paper))) for claim in CLAIMS]


def requested_runs(results: ResultIndex, experiment: Experiment) -> list[Pair]:
    """Return the runs to add where the paper's number of runs leaves a verdict within noise."""
    selection = Selection(epochs=experiment.settings.get("epochs"), depths=experiment.settings.get("depth"))
    decided = verdicts(Evidence(results, {}, selection, all_runs=False))
    unsure = dict.fromkeys(spec for verdict in decided for case in verdict.unsure for spec in case.unsure)
    runs = {percent / 100: range(count) for percent, count in experiment.missing.items()}
    specs = [spec for spec in unsure if spec.dataset in experiment.datasets]
    return [(spec, seed) for spec in specs for seed in runs.get(spec.missing_rate, ())]
