"""Hostile names of classes, files and nodes in the report, the terminal and a spreadsheet."""

import csv
import os
import shutil

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown import markdown

from pairnorm import cli
from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph

CLASSES = {"low": "<img src=x onerror=alert(1)>", "high": "=cmd|' /C calc'!A0\x1b[31m$x_$"}


def test_hostile_names_are_escaped_in_all_outputs(corpus, tmp_path, capsys):
    frame = pandas.read_csv(corpus / "nodes.csv")
    frame["risk"] = frame["risk"].map(CLASSES)
    nodes, edges = tmp_path / "![x](https:x).csv", tmp_path / "edges.csv"
    frame.replace({"id": {"c000": "@SUM(A1)"}}).to_csv(nodes, index=False)
    edges.write_text((corpus / "edges.csv").read_text().replace("c000", "@SUM(A1)"))
    words = ["fit", "--nodes", str(nodes), "--edges", str(edges), "--label", "risk", "--depth", "1"]
    words += ["--norm", "none", "--spreadsheet-safe", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    shown = markdown((tmp_path / "run" / "report.md").read_text(), extensions=["tables"])
    assert "onerror" in shown
    assert "<img src=x" not in shown
    assert 'src="https:x"' not in shown
    assert "\x1b" not in "".join(capsys.readouterr())
    with (tmp_path / "run" / "predictions.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1][0] == "'@SUM(A1)"
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "+"))]
    exact = pandas.read_parquet(tmp_path / "run" / "predictions.parquet")
    assert exact["id"][0] == "@SUM(A1)"
    assert set(exact["predicted"]) <= set(CLASSES.values())


def test_spreadsheet_safe_changes_only_hostile_names(corpus, tmp_path):
    words = ["predict", "--run", str(corpus / "run"), "--nodes", str(corpus / "nodes.csv")]
    words += ["--edges", str(corpus / "edges.csv"), "--out"]
    assert cli.main([*words, str(tmp_path / "exact.csv")]) == 0
    assert cli.main([*words, str(tmp_path / "safe.csv"), "--spreadsheet-safe"]) == 0
    assert (tmp_path / "exact.csv").read_bytes() == (tmp_path / "safe.csv").read_bytes()  # no name is hostile


def test_non_utf8_file_names_are_supported(corpus, tmp_path):
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    nodes, edges = (shutil.copy(corpus / name, folder) for name in ("nodes.csv", "edges.csv"))
    graph = ["--nodes", str(nodes), "--edges", str(edges), "--json"]
    settings = ["--label", "risk", "--model", "SGC", "--depth", "1", "--norm", "none"]
    assert cli.main(["fit", *graph, *settings, "--no-baselines", "--out", str(folder / "run")]) == 0
    words = ["predict", *graph, "--run", str(folder / "run"), "--explain", str(folder / "why.parquet")]
    for out in ("p.csv", "p.json", "p.parquet"):
        assert cli.main([*words, "--out", str(folder / out)]) == 0
    assert pandas.read_csv(folder / "p.csv").equals(pandas.read_csv(folder / "run" / "predictions.csv"))
    assert cli.main([*words, "--out", f"sqlite:///{folder}/p.db"]) in (0, 1)
    packed = ["fit", "--graph", str(corpus / "packed"), "--depth", "1", "--out", str(folder / "packed")]
    assert cli.main(packed) == 0


cells = st.one_of(
    st.text(max_size=12), st.sampled_from(["1", "-1.5", "nan", "1e999", '"', "a,b", "NA", "\x00"])
)


@pytest.mark.filterwarnings("ignore::pairnorm.data.graph.GraphWarning")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=8), st.data())
def test_random_cells_are_read_or_refused(tmp_path, rows, data):
    ids = [row[0] for row in rows]
    ends = [[data.draw(st.sampled_from(ids)) for _ in range(2)] for _ in range(4)]
    for name, header, table in (("n.csv", ["id", "a", "b"], rows), ("e.csv", ["source", "target"], ends)):
        with (tmp_path / name).open("w", newline="", encoding="utf-8", errors="replace") as file:
            csv.writer(file).writerows([header, *table])
    try:
        graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", label="b")
    except PairNormError as error:
        message, result = str(error), ids
    else:
        message, result = "", [str(name) for name in graph.node_names]
    assert len(message) < 1500
    # Rows that repeat another exactly are read once; other rows with its id are refused.
    assert message or result == list(dict.fromkeys(name.strip() for name in ids))
