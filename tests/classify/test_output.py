from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from pairnorm.classify.output import check_folder, predictions, whole_folder, write_table
from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_appears_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with whole_folder(out) as folder:
        (folder / "model.json").write_text("new")
        assert not out.exists()
    assert content(tmp_path) == {"deep/run/model.json": "new"}


def earlier_run(folder: Path) -> dict[str, str]:
    """Write what a run may have left, and return it."""
    folder.mkdir(parents=True)
    files = {"model.json": '{"format": 1, "pairnorm": "0.1"}', "report.md": "old", "confusion.png": "old"}
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def test_an_earlier_run_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    out = tmp_path / "run"
    old = earlier_run(out) | {"march.csv": "theirs", "src/thesis.tex": "theirs"}
    (out / "src").mkdir()
    (out / "src" / "thesis.tex").write_text("theirs")
    (out / "march.csv").write_text("theirs")
    with whole_folder(out) as folder:
        (folder / "model.json").write_text("new")
        (folder / "report.md").write_text("new")
        assert {name: (out / name).read_text() for name in old} == old
    theirs = {"march.csv": "theirs", "src/thesis.tex": "theirs"}
    assert content(out) == {"model.json": "new", "report.md": "new"} | theirs
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_may_be_reached_by_a_link_or_be_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    real, link = tmp_path / "real", tmp_path / "run"
    link.symlink_to(real)
    if there:
        earlier_run(real)
    with whole_folder(link) as folder:
        (folder / "model.json").write_text('{"format": 1, "pairnorm": "0.1"}')
    assert list(content(real)) == ["model.json"]
    assert link.is_symlink()
    monkeypatch.chdir(real)
    with whole_folder(Path()) as folder:
        (folder / "report.md").write_text("new")
    assert content(real) == {"report.md": "new"}


@pytest.mark.parametrize("error", [PairNormError("bad input"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_after_an_error_nothing_has_changed(tmp_path: Path, error: BaseException, before: bool) -> None:
    out = tmp_path / "deep" / "run"
    old = earlier_run(out) if before else {}
    with pytest.raises(type(error)), whole_folder(out) as folder:  # noqa: PT012
        (folder / "model.json").write_text("new")
        raise error
    assert content(tmp_path) == {f"deep/run/{name}": text for name, text in old.items()}
    assert (tmp_path / "deep").exists() == before


def test_what_cannot_be_written_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with (
        pytest.raises(PairNormError, match=r"thesis.tex/run: cannot be written \(Not a directory\)"),
        whole_folder(tmp_path / "thesis.tex" / "run"),
    ):
        pytest.fail("nothing can be written there")


@pytest.mark.parametrize("model", [None, "old", "[]", '{"name": "bert", "format": 1}'])
def test_other_peoples_folders_are_refused(tmp_path: Path, model: str | None) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    if model is not None:
        (tmp_path / "model.json").write_text(model)
    with pytest.raises(PairNormError, match="holds files that no run wrote"):
        check_folder(tmp_path)
    with pytest.raises(PairNormError, match="there is a file of that name"):
        check_folder(tmp_path / "thesis.tex")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_row_for_every_node(tmp_path: Path, suffix: str) -> None:
    graph = Graph.from_edges(
        [[0, 1], [1, 2]],
        torch.ones(3, 1),
        [0, -1, 1],
        missing=torch.tensor([False, True, False]),
        node_names=["007", "b", "c"],
        class_names=("low", "high risk"),
    )
    chances = np.array([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]], dtype=np.float32)
    frame = predictions(graph, chances, np.array(graph.class_names))
    path = tmp_path / f"table.{suffix}"
    write_table(frame, path)
    found = pandas.read_csv(path, dtype={"id": str}) if suffix == "csv" else pandas.read_parquet(path)
    assert list(found) == ["id", "predicted", "p_low", "p_high risk", "features_missing", "labelled"]
    assert found["id"].tolist() == ["007", "b", "c"]
    assert found["predicted"].tolist() == ["low", "low", "high risk"]
    assert found["p_high risk"].tolist() == [0.25, 0.5, 1.0]
    assert found["features_missing"].tolist() == [False, True, False]
    assert found["labelled"].tolist() == [True, False, True]
