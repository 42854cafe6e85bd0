"""From tables to predictions without the graph in memory."""

import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from written import write_customers

from helpers import run_python
from pairnorm import cli
from pairnorm.data import Graph

pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")
pytest.importorskip("numba")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    files = write_customers(folder)
    columns = ["--id", "customer", "--label", "risk", "--memory", "300MB"]
    assert cli.main(["pack", *files.options, *columns, "--out", str(folder / "graph")]) == 0
    return folder / "graph"


def test_pack_prints_summary_and_next_command(packed, pairnorm, tmp_path):
    assert Graph.open(packed).facts.nodes == 400
    files = write_customers(tmp_path)
    printed = pairnorm("pack", *files.options, "--label", "risk", "--out", str(tmp_path / "graph")).out
    assert "400" in printed
    assert "pairnorm fit --graph" in printed
    assert "there is something of that name" in pairnorm(
        "pack", *files.options, "--label", "risk", "--out", str(tmp_path / "graph"), code=1
    ).err.replace("\n", " ")


def test_fit_on_packed_graph(packed, tmp_path, pairnorm):
    options = ["--memory", "2GB", "--depth", "1,4", "--out", str(tmp_path / "run")]
    printed = pairnorm("fit", "--graph", str(packed), *options).out
    assert printed.index("Memory: at most") < printed.index("Propagating")  # the plan comes before the work
    assert "GCN, GAT" in printed
    frame = pandas.read_csv(tmp_path / "run" / "predictions.csv")
    assert frame["id"].tolist() == [f"c{number:04}" for number in range(400)]
    np.testing.assert_allclose(frame[["p_high", "p_low"]].sum(axis=1), 1, atol=1e-5)
    same = pandas.read_parquet(tmp_path / "run" / "predictions.parquet")
    assert (same["predicted"] == frame["predicted"]).all()
    truth = Graph.open(packed)
    labeled = truth.labels >= 0
    right = np.array(truth.facts.classes)[truth.labels[labeled]] == frame["predicted"][labeled]
    assert right.mean() > 0.8
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "single features are missing" in report
    assert "label propagation" in report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_pack_prints_no_leak_warning(tmp_path):
    files = write_customers(tmp_path)
    words = [*files.options, "--id", "customer", "--label", "risk", "--out", str(tmp_path / "graph")]
    assert "leaked" not in run_python("-m", "pairnorm", "pack", *words).stderr


def test_refit_replaces_own_files_only(packed, tmp_path):
    out = tmp_path / "run"
    words = ["fit", "--graph", str(packed), "--depth", "1", "--norm", "none", "--out", str(out)]
    assert [cli.main([*words, "--seed", str(seed)]) for seed in (0, 1)] == [0, 0]
    (out / "report.md").rename(out / "mine.md")
    assert cli.main(words) == 1
    assert (out / "mine.md").exists()


def test_invalid_options_for_packed_graph_raise(packed, tmp_path, pairnorm):
    out = ["--out", str(tmp_path / "run")]
    for words, printed in (
        (["--graph", str(packed), "--memory", "10MB"], "--memory"),
        (["--graph", str(packed), "--model", "GAN"], "model is 'GAN'"),
        (["--graph", str(packed), "--nodes", "n.csv"], "is about tables"),
        (["--graph", str(packed), "--depth", "0"], "depth is 0"),
        (["--graph", str(packed), "--norm", "PN-SCS"], "norm is 'PN-SCS'"),
        (["--graph", str(packed), "--metric", "recall"], "metric is 'recall'"),
        (["--graph", str(packed), "--class-weight", "balanced"], "--class-weight is for models in memory"),
        (["--graph", str(tmp_path)], "no packed graph"),
    ):
        assert printed in pairnorm("fit", *words, *out, code=1).err.replace("\n", " ")
    assert not (tmp_path / "run").exists()


HONORED = {
    *("--graph", "--memory", "--out", "--spreadsheet-safe", "--model", "--depth", "--norm", "--scale"),
    *(
        "--impute",
        "--metric",
        "--device",
        "--quiet",
        "--json",
        "--backend",
        "--seed",
        "--time-limit",
        "--help",
    ),
}


def test_fit_options_are_supported_or_refused_for_packed_graph(packed, tmp_path, capsys):
    values = {"N": "3", "KIND": "yes", "NUMBERS": "2", "TIME": "90s"}
    own = {"--on-unknown-node": "drop", "--class-weight": "balanced", "--feature-scaling": "rows"}
    for action in cli.build_parser()[1]["fit"]._actions:
        name = next((name for name in action.option_strings if name.startswith("--")), "--help")
        if name in HONORED:
            continue
        value = [] if action.nargs == 0 else [own.get(name, values.get(str(action.metavar), "x"))]
        words = ["fit", "--graph", str(packed), name, *value, "--out", str(tmp_path / "run")]
        assert cli.main(words) == 1, name
        error = capsys.readouterr().err
        assert name in error, error
    assert not (tmp_path / "run").exists()


def test_non_utf8_name_is_valid_for_tables_only(packed, tmp_path, pairnorm):
    nodes = tmp_path / os.fsdecode(b"n\xff.csv")
    nodes.write_text("id,age\na,1\nb,2\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    words = ["--nodes", str(nodes), "--edges", str(tmp_path / "e.csv"), "--out", str(tmp_path / "graph")]
    pairnorm("pack", *words)
    words[-1] = str(tmp_path / os.fsdecode(b"g\xff"))
    assert "not valid UTF-8" in pairnorm("pack", *words, code=1).err
