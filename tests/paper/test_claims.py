from pathlib import Path

import pytest
from synthetic import SMALL, fill, small_experiments

from pairnorm.paper.claim import Evidence
from pairnorm.paper.claims import CLAIMS, verdicts
from pairnorm.paper.layers import file_beside, read_layers
from pairnorm.paper.results import Results

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
