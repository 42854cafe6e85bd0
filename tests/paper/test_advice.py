from pathlib import Path

import pytest
from synthetic import accuracy, fill

from pairnorm.paper.advice import ablation_section, gain_section
from pairnorm.paper.grids import ABLATION
from pairnorm.paper.results import Results
from pairnorm.paper.selection import Selection
from pairnorm.paper.tables import Table
from pairnorm.train import Spec, Store

SELECTION = Selection(runs=1, epochs=3, depths=(2,))


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> str:
    experiment = SELECTION.narrow(ABLATION)
    assert experiment is not None
    results = Results.read(fill(tmp_path_factory.mktemp("store") / "s.sqlite", [experiment]))
    return ablation_section(results, SELECTION, Table.of(results, experiment))


def row(section: str, start: str) -> list[float]:
    [found] = [line for line in section.splitlines() if line.startswith(f"| {start} |")]
    return [float(cell) for cell in found.split("|")[2:-1]]


def test_effects_are_mean_differences_between_twins(section: str) -> None:
    # Made up: +0.003 for rw, -0.02 before the activation, +0.004 for PN-SI, +-0.0005 of chance.
    assert row(section, "GCN: sym instead of rw") == pytest.approx([-0.003, -0.003], abs=6e-4)
    assert row(section, "GCN: before instead of after") == pytest.approx([-0.02, -0.02], abs=6e-4)
    assert row(section, "GAT: PN-SI instead of PN") == pytest.approx([0.004, 0.004], abs=6e-4)
    assert "GAT: sym" not in section


def test_the_recommendation_is_the_best_by_validation(section: str) -> None:
    assert "**Recommendation for GCN: rw after PN-SI**" in section
    assert "**Recommendation for GAT: after PN-SI**" in section
    [text] = [line for line in section.splitlines() if "for GAT" in line]
    shown = [float(word.split(" at ")[0]) for word in text.split("test accuracy ")[1].split(", ")]
    made_up = [accuracy(Spec("cora", "GAT", 2, norm="PN-SI", missing_rate=rate)) for rate in (0, 1)]
    assert shown == pytest.approx(made_up, abs=1e-3)


def test_nothing_was_run() -> None:
    assert ablation_section(Results({}), SELECTION, None) == ""
    assert gain_section(None) == ""


def test_a_graph_on_which_some_depth_is_lacking_does_not_weigh_in(tmp_path: Path) -> None:
    selection = Selection(runs=1, epochs=3, depths=(2, 4))
    experiment = selection.narrow(ABLATION)
    assert experiment is not None
    with Store(fill(tmp_path / "s.sqlite", [experiment])) as store:
        cells = store.cells()
    lacking = {
        spec: trials for spec, trials in cells.items() if (spec.dataset, spec.depth) != ("citeseer", 2)
    }
    whole, part = (
        ablation_section(Results(found), selection, Table.of(Results(found), experiment))
        for found in (cells, lacking)
    )
    assert "on Cora and Citeseer (" in whole
    assert "on Cora (" in part
    assert "on Cora and Citeseer (" not in part
