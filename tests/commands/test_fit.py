import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
import sqlalchemy
import torch
from safetensors.torch import load_file
from written import Files, write_customers, write_papers

from helpers import run_python
from pairnorm import cli
from pairnorm.classify import classifier, complete_split
from pairnorm.classify.persistence import OUTPUT_FILES
from pairnorm.data import Graph, Split, csbm, features_after, load, missing_vectors

QUICK = ["--label", "risk", "--depth", "2,4", "--scale", "10,100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Path]:
    folder = tmp_path_factory.mktemp("customers")
    files = write_customers(folder)
    assert cli.main(["fit", *files.options, *QUICK, "--out", str(folder / "run")]) == 0
    return files, folder / "run"


def test_fit_writes_all_outputs(run):
    written = {path.name for path in run[1].iterdir()}
    assert written == {
        "predictions.csv",
        "predictions.parquet",
        "model.json",
        "model.safetensors",
        "report.html",
        "report.md",
        "comparison.png",
        "confusion.png",
        "depth.png",
        "smoothing.png",
    }
    assert written == OUTPUT_FILES, "a later run would not know these as its own"


def test_predictions_have_one_row_per_node(run):
    result = pandas.read_csv(run[1] / "predictions.csv")
    nodes = pandas.read_csv(run[0].nodes)
    assert list(result) == ["id", "predicted", "p_high", "p_low", "features_missing", "labeled"]
    assert result["id"].tolist() == nodes["customer"].tolist()
    np.testing.assert_allclose(result["p_high"] + result["p_low"], 1, atol=1e-5)
    assert result["labeled"].tolist() == nodes["risk"].notna().tolist()
    is_missing = nodes[["age", "income", "job", "abroad"]].isna().all(axis=1)
    assert result["features_missing"].tolist() == is_missing.tolist()
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(run[1] / "predictions.parquet"), result, check_dtype=False, rtol=1e-4
    )


def test_nodes_without_features_are_predicted_well(run):
    result = pandas.read_csv(run[1] / "predictions.csv")
    truth = np.array(["low", "high"])[csbm(400, classes=2, seed=0).labels]
    unlabeled = ~result["labeled"] & result["features_missing"]
    assert (result["predicted"] == truth)[unlabeled].mean() > 0.75


def test_report_has_all_sections_and_figures(run):
    text = (run[1] / "report.md").read_text(encoding="utf-8")
    for heading in ("# Labels for customers", "## Accuracy", "## Comparison with baselines", "## Depth"):
        assert heading in text
    for name in (
        "with most features",
        "without most features",
        "label propagation",
        "logistic regression",
        "GCN, 2 layers",
    ):
        assert f"| {name} |" in text
    for figure in run[1].glob("*.png"):
        assert f"({figure.name})" in text
        assert figure.read_bytes().startswith(b"\x89PNG")
    assert "each column is standardized" in text


def test_model_file_stores_column_types(run):
    facts = json.loads((run[1] / "model.json").read_text(encoding="utf-8"))
    kinds = {column["name"]: column["kind"] for column in facts["encoder"]["columns"]}
    assert (kinds["risk"], kinds["customer"], kinds["age"]) == ("label", "id", "number")
    assert facts["classes"] == ["high", "low"]
    assert facts["scaling"] == "columns"
    assert kinds["job"] == "category"


def test_fit_prints_summary_and_notes(tmp_path, pairnorm):
    files = write_customers(tmp_path, labeled=6)
    printed = pairnorm("fit", *files.options, *QUICK, "--out", str(tmp_path / "run"))
    for part in (
        "nodes      400",
        "labeled    6 (1.5%)",
        "Time limit: 60 s (--time-limit).",
        "Wrote to",
        "Next: read",
        "predictions.csv",
        "pairnorm predict",
    ):
        assert part in printed.out
    assert "Note: only 1 labeled node is left to test on: the interval" in printed.err
    assert "Too few nodes are held out for a verdict." in printed.out


@pytest.mark.filterwarnings("always:.* is deprecated")
def test_warnings_of_other_libraries_stay_out_of_the_report(tmp_path, capsys, monkeypatch):
    def split(graph: Graph, *given: object) -> Split:
        warnings.warn("an option of theirs is deprecated", FutureWarning, stacklevel=1)
        return complete_split(graph, *given)

    monkeypatch.setattr(classifier, "complete_split", split)
    files = write_customers(tmp_path, labeled=20)
    assert cli.main(["fit", *files.options, *QUICK, "--out", str(tmp_path / "run")]) == 0
    printed, report = capsys.readouterr(), (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    error = printed.err
    assert "of the held-out nodes have the most frequent class." in printed.out
    assert "FutureWarning: an option of theirs is deprecated" in error
    assert "theirs" not in report
    for text in (error, report):
        assert "labeled nodes are left to test on" in text


def test_password_appears_in_no_output(tmp_path, capsys, monkeypatch):
    """A file takes the place of the database server, so that a run with a password succeeds."""
    files, logs = write_customers(tmp_path, nodes=200, labeled=120), tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(logs))
    with sqlite3.connect(tmp_path / "bank.db") as database:
        for name, path in files._asdict().items():
            pandas.read_csv(path).to_sql(name, database, index=False)
    create_engine = sqlalchemy.create_engine
    monkeypatch.setattr(
        sqlalchemy, "create_engine", lambda *_, **__: create_engine(f"sqlite:///{tmp_path / 'bank.db'}")
    )
    url = "postgresql://ann:MARKER77@host/bank"
    tables = ["--database", url, "--nodes", "nodes", "--edges", "edges"]
    out = tmp_path / "run"
    quick = ["--label", "risk", "--depth", "2", "--norm", "PN", "--scale", "10"]
    assert cli.main(["fit", *tables, *quick, "--out", str(out)]) == 0
    assert cli.main(["predict", "--run", str(out), *tables, "--out", str(tmp_path / "p.csv"), "--json"]) == 0
    monkeypatch.setattr("pairnorm.data.Graph.from_files", lambda *_, **options: {}[str(options)])
    assert cli.main(["fit", *tables, *quick, "--out", str(tmp_path / "other")]) == 70
    texts = {"messages": "".join(capsys.readouterr())}
    texts |= {path.name: path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file()}
    assert {"model.json", "report.md", "report.html", "p.csv"} <= texts.keys()
    assert any(name.endswith(".log") for name in texts)
    assert [name for name, text in texts.items() if "MARKER77" in text] == []


def test_one_label_per_class_gives_no_accuracy(tmp_path, pairnorm):
    files = write_customers(tmp_path, labeled=2)
    printed = pairnorm("fit", *files.options, "--label", "risk", "--out", str(tmp_path / "run"))
    assert "depth and scale are set by rule" in printed.err
    assert "the accuracy of these predictions is not known" in printed.out
    assert not (tmp_path / "run" / "confusion.png").exists()
    assert (tmp_path / "run" / "predictions.csv").exists()


def test_cora_without_features_is_fitted_from_files(tmp_path):
    cora = load("cora")
    missing = missing_vectors(cora, 1.0)
    graph: Graph = cora.replace(features=features_after(cora, missing).trial(0), missing=missing.mask[:, 0])
    files = write_papers(graph, tmp_path)
    options = ["--id", "paper", "--label", "subject", "--split", "part", "--norm", "PN"]
    narrowed = ["--depth", "20,40", "--scale", "100,300", "--no-baselines", "--out", str(tmp_path / "run")]
    assert cli.main(["fit", *files.options, *options, *narrowed]) == 0
    result = pandas.read_csv(tmp_path / "run" / "predictions.csv")
    assert result["id"].str.startswith("paper-").all()
    right = result["predicted"].to_numpy() == np.array(cora.class_names)[cora.labels]
    assert right[cora.test.numpy()].mean() >= 0.775
    assert result["features_missing"].sum() == 2568


@pytest.mark.parametrize("directed", ["auto", "yes"])
def test_directed_option_is_saved_for_predict(tmp_path, directed):
    files, out = write_customers(tmp_path, nodes=200, labeled=120), tmp_path / "run"
    quick = ["--label", "risk", "--model", "boosted-trees", "--directed", directed]
    assert cli.main(["fit", *files.options, *quick, "--out", str(out)]) == 0
    assert ("distinguish in- from out-neighbors were" in (out / "report.md").read_text(encoding="utf-8")) == (
        directed == "yes"
    )
    predictions = tmp_path / "predictions.csv"
    assert cli.main(["predict", "--run", str(out), *files.options, "--out", str(predictions)]) == 0
    result, before = (pandas.read_csv(one)["p_high"] for one in (predictions, out / "predictions.csv"))
    np.testing.assert_allclose(result, before, atol=1e-6)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# What is done to the files, which options change (None: left out), and what the error must say.
BAD: dict[str, tuple[Callable[[Files], object], dict[str, str | list[str] | None], str]] = {
    "unknown id": (
        lambda f: replace(f.edges, "target\n", "target\nc0001,c9\n"),
        {},
        "'c9' in column 'target'",
    ),
    "no label column": (lambda f: None, {"--label": None}, "Name the column that holds them: --label"),
    "wrong delimiter": (lambda f: replace(f.nodes, ",", ";"), {"--delimiter": ":"}, "Pass --delimiter ';'"),
    "no such file": (lambda f: f.edges.unlink(), {}, "there is no such file"),
    "no edges": (lambda f: None, {"--edges": None}, "Pass --edges …"),
    "bad model": (lambda f: None, {"--model": "GNN"}, "model is 'GNN'"),
    "bad depth": (lambda f: None, {"--depth": "2,x"}, "depth is '2,x'"),
    "bad budget": (lambda f: None, {"--time-limit": "later"}, "time-limit is 'later'"),
    "bad device": (lambda f: None, {"--device": "gpu7"}, "device is 'gpu7'"),
    "bad direction": (lambda f: None, {"--directed": "true"}, "directed is 'true'"),
    "bad scaling": (lambda f: None, {"--feature-scaling": "row"}, "Did you mean 'rows'"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("before", [False, True])
def test_invalid_input_is_reported_and_keeps_the_folder(tmp_path, pairnorm, case, before):
    damage, changes, message = BAD[case]
    files = write_customers(tmp_path, nodes=100, labeled=60)
    damage(files)
    out = tmp_path / "run"
    old = '{"format": 1, "pairnorm": "0.1"}'
    if before:
        out.mkdir()
        (out / "model.json").write_text(old)
    usual = {"--nodes": str(files.nodes), "--edges": str(files.edges), "--label": "risk", "--out": str(out)}
    words = ["fit"]
    for option, value in (usual | changes).items():
        for one in [value] if isinstance(value, str) else value or []:
            words += [option, one]
    error = pairnorm(*words, code=1).err
    assert message in error
    assert len(error.strip().splitlines()) <= 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert ([path.read_text() for path in out.iterdir()] == [old]) if before else not out.exists()


def test_old_imputation_name_prints_note(tmp_path, pairnorm):
    words = ["--nodes", tmp_path / "absent.csv", "--label", "risk", "--out", tmp_path / "run"]
    for name, is_old in (("mass", True), ("zero,mass", True), ("known-neighbor-mean", False)):
        error = pairnorm("fit", *words, "--impute", name, code=1).err
        assert ("mass is now called known_neighbor_mean" in error) == is_old
        assert "Pass --edges" in error


def test_foreign_output_folder_is_refused_early(tmp_path, pairnorm):
    (tmp_path / "thesis.tex").write_text("x")
    assert (
        "holds files that no run wrote"
        in pairnorm("fit", "--nodes", "none.csv", "--label", "risk", "--out", str(tmp_path), code=1).err
    )


def test_input_inside_output_folder_is_refused(tmp_path, pairnorm):
    for name in ("model.json", "predictions.csv"):
        (tmp_path / name).write_text('{"format": 1, "pairnorm": "0.1"}')
    nodes = str(tmp_path / "predictions.csv")
    assert (
        f"would replace {nodes}, which is read"
        in pairnorm("fit", "--nodes", nodes, "--label", "risk", "--out", str(tmp_path), code=1).err
    )


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def packed(run: tuple[Files, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "graph"
    assert cli.main(["pack", *run[0].options, "--label", "risk", "--out", str(folder)]) == 0
    return folder


def test_torchrun_ranks_predict_like_one_process(packed, tmp_path):
    # Five folds of three networks each: a rank trains two of a fold, the other rank one.
    common = ["--model", "GCN,GCNII", "--depth", "2", "--epochs", "4", "--seeds", "15"]
    fit = ["fit", "--graph", str(packed), *common, "--out"]
    assert cli.main([*fit, str(tmp_path / "alone")]) == 0
    done = run_python(*TORCHRUN, "-m", "pairnorm", *fit, tmp_path / "together", timeout=300)
    assert done.stdout.count("Wrote to") == 1
    alone, together = (pandas.read_csv(tmp_path / name / "predictions.csv") for name in ("alone", "together"))
    np.testing.assert_allclose(together["p_high"], alone["p_high"], atol=1e-6)


@pytest.mark.slow  # two launches of torchrun, the second after a rank was killed
@pytest.mark.skipif(not Path("/proc").exists(), reason="Linux says which process is which rank")
def test_killed_rank_resumes_from_last_checkpoint(packed, tmp_path):
    common = ["--model", "GCN", "--depth", "2", "--norm", "PN-SI", "--epochs", "100", "--seeds", "1"]
    fit = ["fit", "--graph", str(packed), *common, "--checkpoint"]
    whole = tmp_path / "kept alone"
    assert cli.main([*fit, str(whole), "--out", str(tmp_path / "alone")]) == 0
    kept, epochs, at_kill = tmp_path / "kept", dict[str, int](), dict[str, int]()
    words = [sys.executable, *TORCHRUN, "--max-restarts", "1", "-m", "pairnorm", *fit, str(kept)]
    words += ["--out", str(tmp_path / "again")]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as launcher:
        end = time.monotonic() + 300
        while launcher.poll() is None and time.monotonic() < end:
            for path in kept.glob("*.pt"):  # one per fold
                epoch = int(torch.load(path, weights_only=True)["epoch"])
                assert epoch >= epochs.get(path.name, 0)  # from the start, the 25th would be written again
                epochs[path.name] = epoch
            if not at_kill and any(50 <= epoch < 100 for epoch in epochs.values()):
                os.kill(_rank(launcher.pid, 1), signal.SIGKILL)
                at_kill = dict(epochs)
            time.sleep(0.02)
        assert launcher.stderr is not None
        error = launcher.stderr.read()
    assert launcher.returncode == 0, error
    assert at_kill
    assert "process_group" not in error  # no warning about the process group
    # One process that was not killed trains the same networks, but in other numbers at a time.
    alone, again = (pandas.read_csv(tmp_path / name / "predictions.csv") for name in ("alone", "again"))
    np.testing.assert_allclose(again["p_high"], alone["p_high"], atol=1e-5)
    alone, again = (load_file(tmp_path / name / "model.safetensors") for name in ("alone", "again"))
    torch.testing.assert_close(again, alone, rtol=1e-3, atol=1e-4)
    # The best epoch may come before the death, the last does not: Adam's means went on, too.
    assert {path.name for path in whole.glob("*.pt")} == {path.name for path in kept.glob("*.pt")}
    for name in at_kill:
        ends = [torch.load(folder / name, weights_only=True) for folder in (whole, kept)]
        torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


def _rank(launcher: int, rank: int) -> int:
    """Return the process of a rank that a launcher has started."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text():
                return int(pid)
        except (OSError, ValueError):
            continue
    raise AssertionError(f"rank {rank} is not there")


@pytest.mark.parametrize(
    ("words", "ranks", "message"),
    [
        (["--model", "SGC"], "2", "Leave out torchrun, and pass --backend ray"),
        (["--model", "GCN", "--backend", "ray"], "1", "torchrun -m pairnorm fit"),
        (["--backend", "rya"], "1", "Did you mean 'ray'?"),
        (["--model", "GCN", "--memory", "8GB"], "1", "--memory limits blocks of columns"),
    ],
)
def test_unsupported_backend_for_model_is_refused(
    packed, tmp_path, pairnorm, monkeypatch, words, ranks, message
):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert message in " ".join(
        pairnorm("fit", "--graph", str(packed), *words, "--out", str(tmp_path / "run"), code=1).err.split()
    )
