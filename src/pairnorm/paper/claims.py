"""The paper's claims, in its words, each with the test that decides whether it holds in our runs."""

from collections.abc import Sequence

from pairnorm.paper.cases import (
    BAR_RATES,
    RATES,
    at_most,
    better,
    better_of_skips,
    by_layer,
    constant,
    deep_gcn_trains,
    deeper,
    drop,
    gap_closes,
    monotone_drop,
    more_stable,
    not_shallower,
    not_worse,
    notably_better,
    pairs_in_ablation,
    pairs_of,
    shrinks_to,
    slower_decay,
    stays_apart,
    strong_sgc,
    together,
    trend,
)
from pairnorm.paper.claim import Claim, Evidence, Verdict

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
