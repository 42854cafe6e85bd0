from pathlib import Path

import pytest
from synthetic import SMALL, fill, small_experiments

from pairnorm.paper.case_study import Layers, file_beside, read_layers
from pairnorm.paper.claims import (
    CLAIMS,
    Case,
    Claim,
    Evidence,
    Verdict,
    compare,
    constant,
    shrinks_to,
    stays_apart,
    verdicts,
)
from pairnorm.paper.experiments import TABLE1, Place, Selection
from pairnorm.paper.results import Results


def verdict(share: float, *cases: bool | None) -> Verdict:
    claim = Claim("1", "text", "reading", lambda evidence: (), share)
    return Verdict(claim, [Case(str(number), holds) for number, holds in enumerate(cases)])


@pytest.mark.parametrize(
    ("share", "cases", "status", "counts"),
    [
        (1.0, (True, True), "holds", "2 of 2"),
        (1.0, (True, False), "fails", "1 of 2"),
        (1.0, (True, None), "holds so far", "1 of 1, 1 not run"),
        (1.0, (None, None), "not run", "0 of 0, 2 not run"),
        (0.75, (True, True, True, False), "holds", "3 of 4"),
        (0.75, (True, True, False, False), "fails", "2 of 4"),
        (0.75, (False, None, None, None), "fails so far", "0 of 1, 3 not run"),
        (0.5, (False, True, None, None), "holds so far", "1 of 2, 2 not run"),
        (0.9, (True,) * 9 + (False,), "holds", "9 of 10"),
    ],
)
def test_status(share: float, cases: tuple[bool | None, ...], status: str, counts: str) -> None:
    found = verdict(share, *cases)
    assert (found.status, found.counts) == (status, counts)


def test_evidence_is_what_was_run_completely(tmp_path: Path) -> None:
    small = Selection(datasets=("cora",), runs=1, epochs=3, depths=(2, 4), missing=(0,))
    wider = Selection(datasets=("cora",), runs=1, epochs=3, depths=(2, 4, 8), missing=(0,))
    experiment = small.narrow(TABLE1)
    assert experiment is not None
    results = Results.read(fill(tmp_path / "s.sqlite", [experiment]))
    place = Place("cora", "SGC", 0)
    found = Evidence(results, {}, small).chosen("table1", *place)
    assert found == results.chosen(experiment, place)
    curve = Evidence(results, {}, small).curve("table1", *place)
    assert curve is not None
    assert [one.spec.depth for one in curve] == [2, 4]
    assert Evidence(results, {}, wider).chosen("table1", *place) is None  # depth 8 is lacking
    assert Evidence(results, {}, wider).curve("table1", *place) is None
    assert Evidence(results, {}, small).chosen("table1", "cora", "SGC", 100) is None  # not asked for
    assert Evidence(results, {}, small).chosen("table1", "pubmed", "SGC", 0) is None
    assert Evidence(results, {}, small).study("GCN", "PN") is None
    other = Evidence(results, {}, small).chosen("table1", "cora", "SGC-PN", 0)
    case = compare("label", "better", found, other)
    assert case.holds is True
    assert case.evidence == "0.803 @ 2 against 0.789 @ 2"
    assert compare("label", "better", found, None) == Case("label", None)


@pytest.mark.parametrize(("values", "holds"), [([1.0, 0.9, 0.4], True), ([1.0, 0.2, 0.6], False)])
def test_shrinks_to(values: list[float], holds: bool) -> None:
    assert shrinks_to(0.5, values) == (holds, f"1 in the first layer, {values[-1]:g} in the last")


@pytest.mark.parametrize(("values", "holds"), [([2.0, 2.001, 1.9995], True), ([2.0, 2.01], False)])
def test_constant(values: list[float], holds: bool) -> None:
    assert constant(values)[0] is holds


@pytest.mark.parametrize(("connected", "holds"), [(0.5, True), (0.9, False)])
def test_stays_apart_looks_at_the_last_layer(connected: float, holds: bool) -> None:
    layers = Layers(0.7, {"connected": [0.1, connected], "random": [0.1, 1.0]}, {}, {}, {})
    assert stays_apart(layers) == (holds, f"connected {connected}, random 1")


SKIPPED = ("table1", "table2", "table3", "figure1", "figure3", "bars", "ablation", "case-study")


def decide(path: Path, contrary: bool) -> dict[str, str]:
    wanted = [experiment for experiment in small_experiments() if experiment.name in SKIPPED]
    fill(path, wanted, contrary)
    evidence = Evidence(Results.read(path), read_layers(file_beside(path)), SMALL)
    return {verdict.claim.text: verdict.status for verdict in verdicts(evidence)}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return decide(tmp_path_factory.mktemp("right") / "s.sqlite", contrary=False)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return decide(tmp_path_factory.mktemp("wrong") / "s.sqlite", contrary=True)


def claims(start: str) -> str:
    [found] = [claim.text for claim in CLAIMS if claim.text.startswith(start)]
    return found


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
        "Without any normalisation, adding skip",
        "With PairNorm but no skip",
        "Adding skips on top",
        "Without normalisation, SGC suffers",
        "PairNorm keeps APSD constant",
        "With PairNorm or PairNorm-SI, random",
        "PairNorm and PairNorm-SI help to train",
    ],
)
def test_a_claim_holds_in_one_world_and_fails_in_the_other(
    right: dict[str, str], wrong: dict[str, str], start: str
) -> None:
    assert right[claims(start)] == "holds"
    assert wrong[claims(start)] == "fails"


def test_a_claim_that_the_made_up_world_does_not_bear_out_fails(right: dict[str, str]) -> None:
    # PN and PN-SI are made up to vary alike, so neither is more stable.
    assert right[claims("PairNorm-SI achieves more stable")] == "fails"


def test_nothing_was_run() -> None:
    found = verdicts(Evidence(Results({}), {}, SMALL))
    assert {verdict.status for verdict in found} == {"not run"}
    assert all(case.evidence == "" for verdict in found for case in verdict.cases)
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
