from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import SMALL, fill, small_experiments, trial

from pairnorm.paper.claims import CLAIMS, constant, requested_runs, shrinks_to, stays_apart, verdicts
from pairnorm.paper.evidence import Case, Evidence, Layers, Verdict, compare, read_layers
from pairnorm.paper.experiments import BARS, CLAIMS_AGAIN, EXPERIMENTS, TABLE3, Selection
from pairnorm.sweep.grid import Summary, TableCell
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.train import Spec, Store


@pytest.mark.parametrize(("values", "holds"), [([1.0, 0.9, 0.4], True), ([1.0, 0.2, 0.6], False)])
def test_shrinks_to(values, holds):
    assert shrinks_to(0.5, values) == (holds, f"1 in the first layer, {values[-1]:g} in the last")


@pytest.mark.parametrize(("values", "holds"), [([2.0, 2.001, 1.9995], True), ([2.0, 2.01], False)])
def test_constant(values, holds):
    assert constant(values)[0] is holds


@pytest.mark.parametrize(("connected", "holds"), [(0.5, True), (0.9, False)])
def test_stays_apart_compares_the_last_layer(connected, holds):
    layers = Layers(0.7, {"connected": [0.1, connected], "random": [0.1, 1.0]}, {}, {}, {})
    assert stays_apart(layers) == (holds, f"connected {connected}, random 1")


def chosen(depth: int, *accuracies: float) -> Chosen:
    spec = Spec("cora", "GCN", depth)
    trials = [
        replace(trial(spec, seed), test_accuracy=one, validation_accuracy=one)
        for seed, one in enumerate(accuracies)
    ]
    return Chosen(Summary(spec, tuple(trials)), True)


def test_difference_within_noise_is_unsure():
    high, low, near = chosen(2, 0.8, 0.81), chosen(4, 0.7, 0.71), chosen(8, 0.796, 0.804)
    assert compare("label", "better", high, low) == Case("label", True, "0.805 @ 2 against 0.705 @ 4")
    # The one with the highest validation accuracy is compared; all of them get more runs.
    specs = tuple(one.best.spec for one in (high, low, near))
    assert compare("label", "better", high, low, near) == Case(
        "label", True, "0.805 @ 2 against 0.800 @ 8", specs
    )
    assert not compare("label", "not worse", high, near).unsure  # by 0.025, with an interval of ± 0.013
    assert compare("label", "better", chosen(2, 0.9), low).unsure  # of a single run nothing is known
    assert not compare("label", "deeper", high, near).unsure
    # More runs count where there are as many of both: one that is rare would decide against a mean.
    more = [
        replace(chosen(2, 0.8, 0.81), all_runs=chosen(2, *[0.8] * 20).best),
        replace(low, all_runs=chosen(4, *[0.7] * 20).best),
    ]
    assert compare("label", "better", *more) == Case("label", True, "0.800 @ 2 against 0.700 @ 4, 20 runs")
    assert compare("label", "better", more[0], low) == compare("label", "better", high, low)


def test_compared_method_is_selected_by_validation_accuracy():
    """Bug: "the better skip" was the one with the higher test accuracy."""
    lucky = chosen(4, 0.9, 0.92)
    for one in lucky.best.trials:
        object.__setattr__(one, "validation_accuracy", 0.1)
    result = compare("label", "better", chosen(2, 0.8, 0.81), chosen(8, 0.7, 0.72), lucky)
    assert result.evidence == "0.805 @ 2 against 0.710 @ 8"


def test_nine_claims_fail_on_the_papers_own_numbers():
    result = verdicts(Evidence(ResultIndex({}), {}, Selection()))
    answers = {one.claim.text: one.in_paper.answer for one in result if one.in_paper}
    assert sum("only" in answer for answer in answers.values()) == 9
    assert answers[claims("With nothing missing, PairNorm does not improve")] == "holds in only 9 of 12"
    assert answers[claims("SGC-PN beats SGC")] == "holds in 4 of 4"
    assert answers[claims("PairNorm and PairNorm-SI help to train")] == "holds in 2 of 2"


def test_strength_is_the_margin_and_the_significant_cases():
    good, bad = chosen(2, 0.8, 0.81, 0.8, 0.81), chosen(4, 0.7, 0.72, 0.71, 0.7)
    cases = [compare("a", "better", good, bad), compare("b", "better", bad, good)]
    [claim] = [claim for claim in CLAIMS if claim.text == claims("SGC-PN beats SGC")]
    assert Verdict(claim, cases).strength == "+0.000 (-0.098 to +0.098); 1 for, 1 against of 2"
    # A notable gain must exceed 0.02: the margin is smaller by that.
    notable = compare("c", "notably better", good, bad)
    assert Verdict(claim, [notable]).strength == "+0.078; 1 for, 0 against of 1"
    assert Verdict(claim, [compare("d", "deeper", good, bad)]).strength == ""


def test_unsure_deciding_cases_request_more_runs():
    def world(runs: int, level: float, selection: Selection = Selection()) -> ResultIndex:  # noqa: B008
        """One case of one claim: GAT-PN against GAT with skips, which have 0.625."""
        cells, table = {}, selection.narrow(TABLE3)
        assert table is not None
        for method, mean in {"GAT-PN": level, "GAT-t1": 0.625, "GAT-t2": 0.61}.items():
            for spec in table.candidates(TableCell("cora", method, 100)):
                cells[spec] = [
                    replace(
                        trial(spec, seed),
                        validation_accuracy=0.9 if spec.depth == 8 else 0.5,
                        test_accuracy=mean + 0.02 * (-1) ** sign,
                    )
                    for seed in range(runs if spec.depth == 8 else 5)
                    for sign in [seed + (seed // 2 if method == "GAT-PN" else 0)]
                ]
        return ResultIndex(cells)

    claim = claims("GCN-PN and GAT-PN are comparable")
    few, many = world(5, 0.6), world(20, 0.61)
    specs = [
        Spec("cora", "GAT", 8, missing_rate=1.0, **own)
        for own in ({"norm": "PN-SI"}, {"skip": 1}, {"skip": 2})
    ]  # type: ignore[arg-type]
    assert requested_runs(few, CLAIMS_AGAIN) == [(spec, seed) for spec in specs for seed in range(20)]
    assert requested_runs(few, replace(CLAIMS_AGAIN, datasets=("pubmed",))) == []
    # Bug: options that narrow the experiments did not narrow the runs for their claims.
    selection = Selection(("claims",), epochs=7, depths=[4, 8])
    [narrow] = selection.experiments()
    assert requested_runs(few, narrow) == []  # it has no trials of 7 epochs
    narrowed = [spec.replace(epochs=7) for spec in specs]
    assert requested_runs(world(5, 0.6, selection), narrow) == [
        (spec, seed) for spec in narrowed for seed in range(20)
    ]
    assert requested_runs(world(5, 0.6, selection), CLAIMS_AGAIN) == []
    result = {}
    for name, results in {"few": few, "many": many}.items():
        [result[name]] = [
            one for one in verdicts(Evidence(results, {}, Selection())) if one.claim.text == claim
        ]
    assert result["few"].status == "fails"
    assert result["few"].unsure
    assert result["many"].status == "holds so far"
    assert "20 runs" in result["many"].run[0].evidence


@pytest.mark.parametrize(
    ("runs", "holds", "evidence"),
    [
        (1, True, "0.900, 0.790, 0.780, 0.770, 0.500; of 5, 1, 1, 1, 5 runs"),
        (20, False, "0.900, 0.723, 0.742, 0.761, 0.500; of 20, 20, 20, 20, 20 runs"),
    ],
)
def test_monotone_drop_uses_all_available_runs(runs, holds, evidence):
    cells = {}
    for cell, (percent, least) in enumerate(BARS.missing.items()):
        # Between, the first run loses from rate to rate, and the others gain.
        first, others = (0.8 - 0.01 * cell, 0.7 + 0.02 * cell) if 0 < percent < 100 else (0.9, 0.9)
        first, others = (0.5, 0.5) if percent == 100 else (first, others)
        levels = [first] + [others] * (max(runs, least) - 1)
        for spec in BARS.candidates(TableCell("pubmed", "GAT", percent)):
            cells[spec] = [
                replace(trial(spec, seed), validation_accuracy=0.5, test_accuracy=level)
                for seed, level in enumerate(levels)
            ]
    text = claims("Vanilla GCN and GAT drop monotonically")
    [result] = [
        one for one in verdicts(Evidence(ResultIndex(cells), {}, Selection())) if one.claim.text == text
    ]
    assert result.run == [Case("GAT, Pubmed", holds, evidence)]


USED = ("table1", "table2", "table3", "figure1", "figure3", "bars", "ablation", "case-study", "deep-gcn",
        "sgc-modes")  # fmt: skip


def decide(path: Path, contrary: bool) -> dict[str, str]:
    fill(path, small_experiments(*USED), contrary)
    with Store(path, read_only=True) as store:
        evidence = Evidence(ResultIndex(store.trials_by_spec()), read_layers(store), SMALL)
    return {verdict.claim.text: verdict.status for verdict in verdicts(evidence)}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return decide(tmp_path_factory.mktemp("right") / "s.sqlite", contrary=False)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return decide(tmp_path_factory.mktemp("wrong") / "s.sqlite", contrary=True)


def claims(start: str) -> str:
    [result] = [claim.text for claim in CLAIMS if claim.text.startswith(start)]
    return result


@pytest.mark.parametrize(
    "start",
    [
        "The training loss of SGC",
        "Convolutions reduce the gap",
        "Row-diff and col-diff",
        "The performance decay",
        "Models with PairNorm achieve a higher",
        "They typically reach it",
        "SGC-PN beats SGC at 100%",
        "SGC-PN significantly outperforms",
        "The number of layers chosen is larger",
        "Both residual connections and PairNorm-SI improve",
        "GCN-PN and GAT-PN are comparable",
        "There is a slight performance drop",
        "PairNorm-enhanced models (no skips) perform",
        "The best number of layers for GCN",
        "For GAT it changes",
        "PairNorm-enhanced models use an equal",
        "Without any normalization, adding skip",
        "With PairNorm but no skip",
        "Adding skips on top",
        "Without normalization, SGC suffers",
        "PairNorm keeps APSD constant",
        "With PairNorm or PairNorm-SI, random",
        "Both PairNorm and PairNorm-SI work well",
    ],
)
def test_claim_holds_in_confirming_and_fails_in_contrary_store(right, wrong, start):
    assert right[claims(start)] == "holds"
    assert wrong[claims(start)] == "fails"


@pytest.mark.parametrize(("normalized", "status"), [(0.7, "holds"), (0.31, "fails")])
def test_deep_gcns_are_compared_on_20_runs(normalized, status):
    levels = {"GCN": 0.3, "GCN-PN": normalized, "GCN-PN-SI": normalized}
    cells = {}
    for method, level in levels.items():
        [spec] = EXPERIMENTS["deep-gcn"].candidates(TableCell("cora", method, 0))
        cells[spec] = [replace(trial(spec, seed), test_accuracy=level) for seed in range(20)]
    result = verdicts(Evidence(ResultIndex(cells), {}, Selection()))
    [decided] = [one for one in result if one.claim.text == claims("PairNorm and PairNorm-SI help to train")]
    assert decided.status == status
    assert "20 runs" in decided.run[0].evidence


def test_equal_variability_fails_the_stability_claim(right):
    # PN and PN-SI have the same synthetic variance, so neither is more stable.
    assert right[claims("PairNorm-SI achieves more stable")] == "fails"


def test_empty_index_gives_no_verdict():
    result = verdicts(Evidence(ResultIndex({}), {}, SMALL))
    assert {verdict.status for verdict in result} == {"not run"}
    assert all(case.evidence == "" for verdict in result for case in verdict.cases)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
