import io
import json
import re
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
import sqlalchemy
from _pytest.capture import CaptureResult
from written import Files, write_customers

from helpers import run_python
from pairnorm import cli
from pairnorm.classify.predictions import write_table

MODEL = ["--label", "risk", "--norm", "PN", "--depth", "4", "--scale", "30"]
QUICK_MODEL = ["--label", "risk", "--norm", "PN", "--depth", "2", "--scale", "30"]
READERS = {".csv": pandas.read_csv, ".json": pandas.read_json, ".parquet": pandas.read_parquet}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Path]:
    """The files of customers, and the folder of a model that is fitted to them."""
    folder = tmp_path_factory.mktemp("customers")
    files = write_customers(folder)
    assert cli.main(["fit", *files.options, *MODEL, "--ignore", "abroad", "--out", str(folder / "run")]) == 0
    return files, folder / "run"


@pytest.fixture
def predict(run, pairnorm) -> Callable[..., CaptureResult[str]]:
    """Predict with the fitted model, by default the nodes of fit, and return what is printed."""

    def call(*words: object, nodes: Path = run[0].nodes, code: int = 0) -> CaptureResult[str]:
        return pairnorm(
            "predict", "--run", run[1], "--nodes", nodes, "--edges", run[0].edges, *words, code=code
        )

    return call


def changed(run: tuple[Files, Path], folder: Path, **columns: object) -> Path:
    """Write the table of nodes with changed columns; None drops one."""
    frame = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)
    for name, value in columns.items():
        frame = frame.drop(columns=name) if value is None else frame.assign(**{name: value})
    frame.to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def predictions_of(run: tuple[Files, Path]) -> pandas.DataFrame:
    return pandas.read_csv(run[1] / "predictions.csv")


@pytest.mark.parametrize("columns", [{}, {"height": "180"}], ids=["same", "ignored column"])
def test_same_features_get_the_same_predictions(run, predict, tmp_path, columns):
    if columns:
        predict("--out", tmp_path / "p.csv", "--ignore", *columns, nodes=changed(run, tmp_path, **columns))
    else:
        predict("--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_bytes() == (run[1] / "predictions.csv").read_bytes()


def test_changed_graph_prints_a_note(run, predict, tmp_path):
    """Bug: labels of one class only, after a change of the graph, were written without a note."""
    risk = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)["risk"]
    swapped = changed(run, tmp_path, risk=risk.map({"high": "low", "low": "high"}).fillna(""))
    printed = predict("--out", tmp_path / "p.csv", "--json", nodes=swapped)
    assert "the graph has changed too much for this model. Run pairnorm fit again." in printed.err
    facts = json.loads(printed.out)
    assert "changed too much" in facts["notes"][-1]
    low, high = facts["accuracy_on_trained_labels_interval"]
    assert low < facts["accuracy_on_trained_labels"] < high < facts["accuracy_at_fit_interval"][0]
    assert facts["trained_labels"] == (risk != "").sum()
    assert "changed too much" not in predict("--out", tmp_path / "p.csv").err


def test_ignoring_an_unknown_column_raises(run, predict, tmp_path):
    nodes = changed(run, tmp_path, height="180")
    error = predict("--out", tmp_path / "p.csv", "--ignore", "heigth", nodes=nodes, code=1).err
    assert "no column 'heigth' (ignore)" in error
    assert "Did you mean 'height'?" in error


def test_categorical_columns_can_be_empty(pairnorm, tmp_path):
    """New customers have no history; columns of text or declared categories are then empty."""
    files = write_customers(tmp_path)
    frame = pandas.read_csv(files.nodes, dtype=str, keep_default_na=False)
    frame["zip"] = [("", "10115", "20095")[row % 3] for row in range(len(frame))]
    frame.to_csv(files.nodes, index=False)
    run = files, tmp_path / "run"
    pairnorm("fit", *files.options, *MODEL, "--categorical", "zip", "--out", run[1])
    results = []
    for zips in ("", ["10115", "20095"] * 200):
        words = ["--nodes", changed(run, tmp_path, job="", zip=zips), "--edges", files.edges]
        pairnorm("predict", "--run", run[1], *words, "--out", tmp_path / "p.csv")
        results.append(pandas.read_csv(tmp_path / "p.csv"))
    assert (results[0]["predicted"] == predictions_of(run)["predicted"]).mean() > 0.8
    assert (results[0]["p_high"] != results[1]["p_high"]).any()


@pytest.mark.parametrize("risk", [None, "", "low"])
def test_labels_are_optional(run, predict, tmp_path, risk):
    predict("--out", tmp_path / "p.parquet", nodes=changed(run, tmp_path, risk=risk))
    result = pandas.read_parquet(tmp_path / "p.parquet")
    assert result["predicted"].tolist() == predictions_of(run)["predicted"].tolist()
    assert set(result["labeled"]) == {risk == "low"}


def test_column_order_and_absent_categories_do_not_matter(run, predict, tmp_path):
    frame = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)
    frame["job"] = frame["job"].replace("pilot", "")
    frame[["customer", "risk", "job", "income", "age"]].to_csv(tmp_path / "new.csv", index=False)
    printed = predict("--out", tmp_path / "p.csv", nodes=tmp_path / "new.csv").out
    result = pandas.read_csv(tmp_path / "p.csv")
    assert (result["predicted"] == predictions_of(run)["predicted"]).mean() > 0.9
    assert f"Wrote {tmp_path / 'p.csv'}: 400 rows, one per node." in printed


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": None, "job": None}, "has no column 'age', 'job', which the model uses: imputed"),
        (
            {"job": "astronaut"},
            "category 'astronaut' in column 'job', unknown to the model: such cells count",
        ),
        ({"height": "180"}, "has a column 'height', unknown to the model: ignored"),
        (
            {"risk": "medium"},
            "400 nodes have a class in column 'risk' that is unknown to the model, such as 'medium': such "
            "labels count as unknown",
        ),
    ],
)
def test_changed_table_is_predicted_with_notes_or_refused_if_strict(run, predict, tmp_path, columns, message):
    nodes, out = changed(run, tmp_path, **columns), tmp_path / "p.csv"
    assert " ".join(predict("--out", out, nodes=nodes).out.split()).count(message) == 1
    assert len(pandas.read_csv(out)) == 400
    out.unlink()
    refused = "class 'medium' is unknown to the model" if "risk" in columns else message.partition(":")[0]
    assert refused in predict("--out", out, "--strict", nodes=nodes, code=1).err
    assert not out.exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": None, "job": None, "income": None}, "which the model uses. Add it"),
        ({"age": "old"}, "text such as 'old' in column 'age', where the model knows numbers"),
        ({"job": "7"}, "numbers in column 'job', where the model knows categories"),
    ],
)
def test_incompatible_table_raises_and_writes_nothing(run, predict, tmp_path, columns, message):
    out = tmp_path / "p.csv"
    out.write_text("old")
    error = predict("--out", out, nodes=changed(run, tmp_path, **columns), code=1).err
    assert message in error
    assert len(error.strip().splitlines()) <= 3
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "p.csv"]


def test_stdout_has_the_table_and_stderr_the_messages(run, predict, tmp_path):
    printed = predict("--out", "-")
    assert printed.out == (run[1] / "predictions.csv").read_text(encoding="utf-8")
    assert "Predicted: " in printed.err
    words = ["--out", tmp_path / "p.csv", "--explain", "-"]
    printed = predict(*words)
    assert list(pandas.read_csv(io.StringIO(printed.out))) == ["id", "predicted", "source", "name", "value"]
    assert "Predicted: " in printed.err
    assert "write to standard output" in predict(*words, "--json", code=1).err


@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.parquet", "sqlite:///{}/p.db"])
def test_output_suffix_determines_format(run, predict, tmp_path, name):
    out = name.format(tmp_path) if "://" in name else str(tmp_path / name)
    predict("--out", out, "--quiet")
    if "://" in name:
        with sqlite3.connect(tmp_path / "p.db") as database:
            frame = pandas.read_sql("select * from predictions", database)
    else:
        suffix = Path(name).suffix
        frame = READERS[suffix](out) if suffix in READERS else pandas.read_json(out, lines=True)
    before = predictions_of(run)
    assert list(frame) == list(before)
    assert frame["predicted"].tolist() == before["predicted"].tolist()


def test_duckdb_prints_nothing_at_exit(run, tmp_path):
    pytest.importorskip("duckdb_engine", reason="needs duckdb-engine: pip install pairnorm[all]")
    words = ["predict", "--run", run[1], *run[0].options, "--json"]
    words += ["--out", f"duckdb:///{tmp_path}/out.db", "--table", "my labels"]
    done = run_python("-m", "pairnorm", *words)
    assert json.loads(done.stdout)["files"] == [words[-3]]
    assert "leaked" not in done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_predictions_and_explanations_are_written_to_one_database(run, predict, tmp_path, kind):
    pytest.importorskip("duckdb_engine", reason="needs duckdb-engine: pip install pairnorm[all]")
    url = f"{kind}:///{tmp_path}/out.db"
    predict("--quiet", "--out", url, "--explain", url, "--table", "my labels")
    assert [path.name for path in tmp_path.iterdir()] == ["out.db"], "complete without another file"
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        labels, reasons = (
            pandas.read_sql_query(sqlalchemy.text(f'SELECT * FROM "{name}"'), connection)
            for name in ("my labels", "explanations")
        )
    assert labels["id"].tolist() == predictions_of(run)["id"].tolist()
    assert set(reasons["id"]) <= set(labels["id"])


def test_database_tables_are_replaced_atomically(predict, tmp_path, monkeypatch):
    url, write = f"sqlite:///{tmp_path}/out.db", pandas.DataFrame.to_sql
    words = ["--quiet", "--out", url, "--explain", url]
    predict(*words)
    before = (tmp_path / "out.db").read_bytes()

    def fail(frame: pandas.DataFrame, name: str, *more: object, **options: object) -> None:
        write(frame, name, *more, **options)
        if name == "explanations":
            raise KeyboardInterrupt

    monkeypatch.setattr(pandas.DataFrame, "to_sql", fail)
    predict(*words, code=130)
    assert (tmp_path / "out.db").read_bytes() == before


@pytest.mark.parametrize("table", ["Customers", "payments"])
def test_writing_to_an_input_table_raises(run, pairnorm, tmp_path, table):
    url = f"sqlite:///{tmp_path}/bank.db"
    with sqlite3.connect(tmp_path / "bank.db") as database:
        for name, path in (("customers", run[0].nodes), ("payments", run[0].edges)):
            pandas.read_csv(path).to_sql(name, database, index=False)
    before = (tmp_path / "bank.db").read_bytes()
    words = ["--database", url, "--nodes", "customers", "--edges", "SELECT * FROM payments"]
    words = ["predict", "--run", run[1], *words, "--out", url.replace("bank", "./bank")]
    assert "would be replaced, and is read" in pairnorm(*words, "--table", table, code=1).err
    assert (tmp_path / "bank.db").read_bytes() == before
    pairnorm(*words)


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.parquet"])
def test_prediction_sets_and_explanations_are_exported(predict, tmp_path, name):
    out, why = tmp_path / name, tmp_path / f"why{Path(name).suffix}"
    predict("--out", out, "--sets", "0.9", "--explain", why)
    frame, reasons = (READERS[why.suffix](path) for path in (out, why))
    sets = frame["set"].map(json.loads if why.suffix == ".csv" else list)
    assert all(label in labels for label, labels in zip(frame["predicted"], sets, strict=True))
    assert {len(labels) for labels in sets} <= {1, 2}
    assert list(reasons) == ["id", "predicted", "source", "name", "value"]
    assert set(reasons["source"]) == {"neighborhood", "neighbor"}, "the model is an SGC"
    assert set(reasons["id"]) <= set(frame["id"])
    assert {"age", "income"} <= set(reasons["name"])


SAME_PLACE = "--out and --explain write to the same place"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out p.csv --sets 1.2", r"(?<![\w.-])(1\.2|--sets)(?![\w-])"),
        ("--out p.csv --table mine", r"(?<![\w.-])(mine|--table)(?![\w-])"),
        ("--out p.csv --explain why.xlsx", r"(?<![\w.-])(why\.xlsx|--explain)(?![\w-])"),
        ("--out p.csv --explain ./p.csv --table explanations", SAME_PLACE),
        ("--out - --explain - --table explanations", SAME_PLACE),
        ("--out sqlite:///p.db --explain sqlite:///p.db --table explanations", SAME_PLACE),
        ("--out p.xlsx", r"cannot be written as \.xlsx\. Use \.csv, \.parquet"),
        ("--out p", "a file without an ending"),
        ("--out nosuch://host/db", "databases of type 'nosuch' are not known"),
        ("--out sqlite://", "what is written to memory is lost"),
        ("--out sqlite:///no/folder/p.db", "there is no such folder"),
        ("--out duckdb://ann:hunter22@[::1]:1/p.db", "duckdb is a file, without host"),
        ("--out postgresql://ann:hunter22@127.0.0.1:notaport/db", "cannot be written"),
    ],
)
def test_invalid_outputs_raise_and_write_nothing(predict, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    error = predict(*words.split(), code=1).err
    assert re.search(message, error)
    assert "hunter22" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reads", [True, False])
def test_silent_server_times_out(run, pairnorm, monkeypatch, reads):
    pytest.importorskip("psycopg")
    monkeypatch.setattr("pairnorm.base.databases.CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://ann:MARKER77@127.0.0.1:{server.getsockname()[1]}/bank"
        tables = ["--database", url, "--nodes", "nodes", "--edges", "edges"] if reads else run[0].options
        out = [] if reads else ["--out", url]
        start = time.monotonic()
        error = pairnorm("predict", "--run", run[1], *tables, *out, code=1).err
    assert time.monotonic() - start < 20
    assert "timeout" in error
    assert "MARKER77" not in error


def test_integer_classes_stay_integers_in_parquet(tmp_path):
    frame = pandas.DataFrame({"id": ["a", "b"], "predicted": ["1", "20"]})
    write_table(frame, tmp_path / "p.parquet")
    assert pandas.read_parquet(tmp_path / "p.parquet")["predicted"].tolist() == [1, 20]


def test_json_prints_summary(predict, tmp_path):
    summary = json.loads(predict("--out", tmp_path / "p.csv", "--json").out)
    assert summary["nodes"] == 400
    assert sum(summary["predicted"].values()) == 400
    assert summary["files"] == [str(tmp_path / "p.csv")]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_control_characters_in_names_are_escaped(pairnorm, tmp_path):
    files = write_customers(tmp_path)
    text = files.nodes.read_text(encoding="utf-8")
    files.nodes.write_text(text.replace("high", "\x1b]0;high\x07[red]"), encoding="utf-8")
    printed = pairnorm("fit", *files.options, *MODEL, "--out", tmp_path / "run").out
    words = ["predict", "--run", tmp_path / "run", *files.options, "--out", tmp_path / "\x1b[31mp.csv"]
    printed += pairnorm(*words).out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert r"\x1b]0;high\x07[red]" in printed
    assert r"\x1b[31mp.csv" in printed


def test_folder_without_model_raises(pairnorm, tmp_path):
    error = pairnorm("predict", "--run", tmp_path, "--nodes", "nodes.csv", code=1).err
    message = "there is no model.json. Name a folder that NodeClassifier.save or `pairnorm fit --out` wrote"
    assert message in error


def test_predict_reads_input_formats_like_fit(pairnorm, tmp_path):
    """Zipped text, a long table, several files of edges, names and dates."""
    files = write_customers(tmp_path, nodes=120, labeled=80)
    frame = pandas.read_csv(files.nodes, dtype=str, keep_default_na=False)
    frame["name"] = [f"Customer {row}" for row in range(120)]
    frame["since"] = [f"20{row % 20 + 10}-01-15" for row in range(120)]
    frame["income"] = frame["income"].str.replace(".", ",")
    frame.to_csv(tmp_path / "n.csv.gz", index=False, sep=";", encoding="utf-16")
    edges = pandas.read_csv(files.edges)
    edges[:100].to_csv(tmp_path / "e-1.csv.zip", index=False, sep=";")
    edges[100:].to_csv(tmp_path / "e-2.csv", index=False, sep=";")
    words = pandas.DataFrame({"customer": frame["customer"], "word": [f"w{row % 7}" for row in range(120)]})
    words[:100].to_json(tmp_path / "words.jsonl", orient="records", lines=True)
    given = ["--nodes", tmp_path / "n.csv.gz", "--edges", tmp_path / "e-*"]
    given += ["--features", tmp_path / "words.jsonl"]
    pairnorm("fit", *given, *QUICK_MODEL, "--delimiter", ";", "--out", tmp_path / "run")
    pairnorm("predict", "--run", tmp_path / "run", *given, "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "run/predictions.csv").read_bytes()


def test_graph_without_features_is_predicted_from_structure(pairnorm, tmp_path):
    files = write_customers(tmp_path, nodes=120, labeled=80)
    pandas.read_csv(files.nodes)[["customer", "risk"]].to_csv(files.nodes, index=False)
    pairnorm("fit", *files.options, *QUICK_MODEL, "--out", tmp_path / "run")
    pairnorm("predict", "--run", tmp_path / "run", *files.options, "--out", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "run/predictions.csv").read_bytes()


def test_quiet_and_json_keep_notes(run, predict, tmp_path):
    nodes = changed(run, tmp_path, height="180")
    printed = predict("--out", tmp_path / "p.csv", "--quiet", "--json", nodes=nodes)
    notes = json.loads(printed.out)["notes"]
    assert any("height" in note for note in notes)
    assert all(f"Note: {note}" in printed.err for note in notes)
