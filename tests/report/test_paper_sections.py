import pytest
from synthetic import fill

from helpers import make_trial
from pairnorm.paper.experiments import ABLATION, Selection
from pairnorm.report.document import Document, Section, render_markdown
from pairnorm.report.paper_report import find_user_trials, user_section, write_report
from pairnorm.report.paper_sections import ablation_section, gain_section
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.tables import Table
from pairnorm.train import Spec, Store, Trial

PAPER = Spec("cora", "GCN", 2)


def text_of(section: Section | None) -> str:
    assert section is not None
    return render_markdown(Document("t", [], [section]))


@pytest.fixture
def cells() -> dict[Spec, list[Trial]]:
    return {
        PAPER: [make_trial(0, 0.5, 0.5)],
        Spec("mine", "GCN", 2): [
            make_trial(0, 0.6, 0.7, measures={"row_diff": 1.0}),
            make_trial(1, 0.6, 0.5, measures={"row_diff": 3.0}),
        ],
        Spec("mine", "GCN", 8, norm="PN-SI"): [make_trial(0, 0.9, 0.8, measures={"row_diff": 4.0})],
        Spec("cora", "GCN", 2, hidden=77): [make_trial(0, 0.1, 0.1)],
    }


def test_paper_trials_are_not_user_trials(cells):
    assert [one.spec for one in find_user_trials(cells, Selection())] == list(cells)[1:]
    few = Spec("cora", "GCN", 2, epochs=7)
    assert find_user_trials({few: [make_trial(0, 1, 1)]}, Selection())
    assert not find_user_trials({few: [make_trial(0, 1, 1)]}, Selection(epochs=7))


def test_user_section_lists_best_by_validation_with_varied_fields(cells):
    text = text_of(user_section(find_user_trials(cells, Selection())))
    assert "Best by validation: `mine GCN depth=8 norm=PN-SI`, 0.800 of the test nodes" in text
    table = text[text.index("### mine") : text.index("### cora")]
    assert [line for line in table.splitlines() if line.startswith("| ")] == [
        r"| depth | norm | runs | validation | test accuracy | row\_diff |",
        "| 8 | PN-SI | 1 | 0.900 | 0.800 | 4 |",
        "| 2 | none | 2 | 0.600 | 0.600 ± 0.141 | 2 |",
    ]


def test_graph_names_are_escaped(cells):
    hostile = Spec("a|b<img>`", "GCN", 2)
    text = text_of(user_section(find_user_trials({hostile: [make_trial(0, 0.5, 0.5)]}, Selection())))
    assert r"### a\|b&lt;img&gt;\`" in text
    assert r"`` 'a\|b<img>`' GCN depth=2 ``" in text


@pytest.mark.parametrize("with_paper", [True, False])
def test_report_on_a_user_store(cells, with_paper, tmp_path):
    with Store(tmp_path / "mine.sqlite") as store:
        for spec, trials in cells.items():
            if with_paper or spec != PAPER:
                store.add(spec, trials, seconds=1.0)
    write_report(tmp_path / "mine.sqlite", tmp_path / "out", Selection(datasets=["cora"], depths=[2], runs=1))
    text = (tmp_path / "out/report.md").read_text()
    assert text.startswith("# PairNorm, reproduced" if with_paper else "# Trials of mine.sqlite")
    assert "### mine" in text
    assert ("claims of its text" in text) == with_paper
    assert "| 2 | none | 2 | 0.600 | 0.600 ± 0.141 | 2 |" in text


def test_shortened_paper_runs_are_not_user_trials():
    user_trials = {
        PAPER.replace(epochs=5): [make_trial(0, 0.5, 0.5)],
        PAPER.replace(epochs=5, hidden=77): [make_trial(0, 0.5, 0.5)],
    }
    text = text_of(user_section(find_user_trials(user_trials, Selection())))
    assert "2 specs that are none of the paper's" in text
    assert find_user_trials({PAPER.replace(epochs=5): [make_trial(0, 0.5, 0.5)]}, Selection(epochs=5)) == []


SELECTION = Selection(runs=1, epochs=3, depths=(2,))


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> str:
    experiment = SELECTION.narrow(ABLATION)
    assert experiment is not None
    results = ResultIndex.read(fill(tmp_path_factory.mktemp("store") / "s.sqlite", [experiment]))
    return text_of(ablation_section(Table.of(results, experiment)))


def row(section: str, start: str) -> list[float]:
    [result] = [line for line in section.splitlines() if line.startswith(f"| {start} |")]
    return [float(cell) for cell in result.split("|")[2:-1]]


def test_effects_are_mean_paired_differences(section):
    # Made up: +0.003 for rw, -0.02 before the activation, +0.004 for PN-SI, +-0.0005 of chance.
    assert row(section, "GCN: sym instead of rw") == pytest.approx([-0.003, -0.003], abs=6e-4)
    assert row(section, "GCN: before instead of after") == pytest.approx([-0.02, -0.02], abs=6e-4)
    assert row(section, "GAT: PN-SI instead of PN") == pytest.approx([0.004, 0.004], abs=6e-4)
    assert "GAT: sym" not in section


def test_missing_tables_give_no_section():
    assert ablation_section(None) is None
    assert gain_section(None) is None
