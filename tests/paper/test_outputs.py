import csv
from pathlib import Path

import pytest
from synthetic import fill

from pairnorm.paper.grids import TABLE1, TUNED
from pairnorm.paper.outputs import write_outputs
from pairnorm.paper.results import Results
from pairnorm.paper.selection import Selection

SELECTION = Selection(
    ("table1", "tuned"), datasets=("cora",), runs=2, epochs=3, depths=(2, 4), missing=(100,)
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    wanted = [found for experiment in (TABLE1, TUNED) if (found := SELECTION.narrow(experiment))]
    return Results.read(fill(tmp_path_factory.mktemp("store") / "s.sqlite", wanted))


def test_the_tuned_rows_stand_below_those_of_table_1(results: Results, tmp_path: Path) -> None:
    outputs = write_outputs(["tuned"], results, {}, SELECTION, tmp_path)
    assert sorted(path.name for path in outputs.files) == ["tuned.csv", "tuned.tex"]
    with (tmp_path / "tuned.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned"]
    # In the made-up world a learning rate of 0.05 is best.
    assert [row["learning_rate"] for row in rows] == ["0.005", "0.005", "0.05", "0.05"]
    assert float(rows[2]["accuracy"]) > float(rows[0]["accuracy"])


def test_a_table_comes_with_a_figure_unless_figure_4_is_there(results: Results, tmp_path: Path) -> None:
    alone = write_outputs(["table1"], results, {}, SELECTION, tmp_path / "a")
    assert [path.name for path in alone.files] == [
        "table1.csv", "table1.tex", "depth-sgc-cora.png", "depth-sgc-cora.pdf"
    ]  # fmt: skip
    both = write_outputs(["table1", "figure4"], results, {}, SELECTION, tmp_path / "b")
    assert [path.name for path in both.files[2:]] == ["figure4-cora.png", "figure4-cora.pdf"]


def test_without_the_search_there_is_no_table_of_it(tmp_path: Path) -> None:
    plain = SELECTION.narrow(TABLE1)
    assert plain is not None
    results = Results.read(fill(tmp_path / "s.sqlite", [plain]))
    assert write_outputs(["tuned"], results, {}, SELECTION, tmp_path).files == []


def test_what_was_not_run_leaves_no_file(results: Results, tmp_path: Path) -> None:
    outputs = write_outputs(
        ["table2", "figure1", "bars", "case-study"], results, {}, SELECTION, tmp_path / "out"
    )
    assert outputs.files == []
    assert not (tmp_path / "out").exists()


def test_figure_2_is_there_without_results(tmp_path: Path) -> None:
    outputs = write_outputs(["figure2"], Results({}), {}, Selection(), tmp_path)
    assert [path.name for path in outputs.files] == ["figure2.png", "figure2.pdf"]
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"%PDF") for path in outputs.files)
