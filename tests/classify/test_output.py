from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from pairnorm.classify.output import check_folder, predictions, whole_file, whole_folder, write_table
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


def test_an_earlier_run_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "model.json").write_text("old")
    (out / "report.md").write_text("old")
    with whole_folder(out) as folder:
        (folder / "model.json").write_text("new")
        assert content(out) == {"model.json": "old", "report.md": "old"}
    assert content(tmp_path) == {"run/model.json": "new"}


@pytest.mark.parametrize("error", [PairNormError("bad input"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_after_an_error_nothing_has_changed(tmp_path: Path, error: BaseException, before: bool) -> None:
    out = tmp_path / "run"
    if before:
        out.mkdir()
        (out / "model.json").write_text("old")
    with pytest.raises(type(error)), whole_folder(out) as folder:  # noqa: PT012
        (folder / "model.json").write_text("new")
        raise error
    assert content(tmp_path) == ({"run/model.json": "old"} if before else {})
    assert out.exists() == before


def test_other_peoples_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(PairNormError, match="holds files that no run wrote"):
        check_folder(tmp_path)
    with pytest.raises(PairNormError, match="there is a file of that name"):
        check_folder(tmp_path / "thesis.tex")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


def test_a_file_appears_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "table.csv"
    with whole_file(out) as file:
        file.write_text("first")
    with pytest.raises(PairNormError, match="bad input"), whole_file(out) as file:  # noqa: PT012
        file.write_text("second")
        raise PairNormError("bad input")
    assert content(tmp_path) == {"deep/table.csv": "first"}
    with pytest.raises(PairNormError, match="there is a folder of that name"), whole_file(tmp_path):
        pass


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
