import io
import json
import re
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import sqlalchemy
from written import Files, write_customers

from pairnorm import cli
from pairnorm.classify.predictions import write_table


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Path]:
    folder = tmp_path_factory.mktemp("customers")
    files = write_customers(folder)
    options = ["--label", "risk", "--norm", "PN", "--depth", "4", "--scale", "30", "--ignore", "abroad"]
    assert cli.main(["fit", *files.options, *options, "--out", str(folder / "run")]) == 0
    return files, folder / "run"


def predict(run: tuple[Files, Path], nodes: Path, out: Path, *more: str) -> int:
    files = ["--nodes", str(nodes), "--edges", str(run[0].edges), "--out", str(out)]
    return cli.main(["predict", "--run", str(run[1]), *files, *more])


def changed(run: tuple[Files, Path], folder: Path, **columns: object) -> Path:
    """Write the table of nodes with changed columns; None drops one."""
    frame = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)
    for name, value in columns.items():
        frame = frame.drop(columns=name) if value is None else frame.assign(**{name: value})
    frame.to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def test_same_graph_gets_the_same_predictions(run: tuple[Files, Path], tmp_path: Path) -> None:
    assert predict(run, run[0].nodes, tmp_path / "p.csv") == 0
    assert (tmp_path / "p.csv").read_bytes() == (run[1] / "predictions.csv").read_bytes()


def test_new_columns_can_be_ignored(run: tuple[Files, Path], tmp_path: Path) -> None:
    assert predict(run, changed(run, tmp_path, height="180"), tmp_path / "p.csv", "--ignore", "height") == 0
    assert (tmp_path / "p.csv").read_bytes() == (run[1] / "predictions.csv").read_bytes()


def test_changed_graph_prints_a_note(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: labels of one class only, after a change of the graph, were written without a note."""
    risk = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)["risk"]
    swapped = changed(run, tmp_path, risk=risk.map({"high": "low", "low": "high"}).fillna(""))
    assert predict(run, swapped, tmp_path / "p.csv", "--json") == 0
    printed = capsys.readouterr()
    assert "the graph has changed too much for this model. Run pairnorm fit again." in printed.err
    assert "changed too much" in json.loads(printed.out)["notes"][-1]
    assert predict(run, run[0].nodes, tmp_path / "p.csv") == 0
    assert "changed too much" not in capsys.readouterr().err


def test_ignoring_an_unknown_column_raises(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run, changed(run, tmp_path, height="180"), tmp_path / "p.csv", "--ignore", "heigth") == 1
    assert "no column 'heigth' (ignore)" in (error := capsys.readouterr().err)
    assert "Did you mean 'height'?" in error


def test_categorical_columns_can_be_empty(tmp_path: Path) -> None:
    """New customers have no history; columns of text or declared categories are then empty."""
    files = write_customers(tmp_path)
    frame = pandas.read_csv(files.nodes, dtype=str, keep_default_na=False)
    frame["zip"] = [("", "10115", "20095")[row % 3] for row in range(len(frame))]
    frame.to_csv(files.nodes, index=False)
    options = ["--label", "risk", "--norm", "PN", "--depth", "4", "--scale", "30", "--categorical", "zip"]
    run = files, tmp_path / "run"
    assert cli.main(["fit", *files.options, *options, "--out", str(run[1])]) == 0
    assert predict(run, changed(run, tmp_path, job="", zip=""), tmp_path / "p.csv") == 0
    assert predict(run, changed(run, tmp_path, job="", zip=["10115", "20095"] * 200), tmp_path / "q.csv") == 0
    result, other = (pandas.read_csv(tmp_path / name) for name in ("p.csv", "q.csv"))
    before = pandas.read_csv(run[1] / "predictions.csv")
    assert (result["predicted"] == before["predicted"]).mean() > 0.8
    assert (result["p_high"] != other["p_high"]).any()


@pytest.mark.parametrize("risk", [None, "", "low"])
def test_labels_are_optional(run: tuple[Files, Path], tmp_path: Path, risk: str | None) -> None:
    out = tmp_path / "p.parquet"
    assert predict(run, changed(run, tmp_path, risk=risk), out) == 0
    result, before = pandas.read_parquet(out), pandas.read_csv(run[1] / "predictions.csv")
    assert result["predicted"].tolist() == before["predicted"].tolist()
    assert set(result["labeled"]) == {risk == "low"}


def test_column_order_and_absent_categories_do_not_matter(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pandas.read_csv(run[0].nodes, dtype=str, keep_default_na=False)
    frame["job"] = frame["job"].replace("pilot", "")
    frame[["customer", "risk", "job", "income", "age"]].to_csv(tmp_path / "new.csv", index=False)
    assert predict(run, tmp_path / "new.csv", tmp_path / "p.csv") == 0
    result, before = (pandas.read_csv(path) for path in (tmp_path / "p.csv", run[1] / "predictions.csv"))
    assert (result["predicted"] == before["predicted"]).mean() > 0.9
    assert f"Wrote {tmp_path / 'p.csv'}: 400 rows, one per node." in capsys.readouterr().out


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
def test_changed_table_is_predicted_with_notes_or_refused_if_strict(
    run: tuple[Files, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    columns: dict[str, object],
    message: str,
) -> None:
    assert predict(run, changed(run, tmp_path, **columns), tmp_path / "p.csv") == 0
    assert " ".join(capsys.readouterr().out.split()).count(message) == 1
    assert len(pandas.read_csv(tmp_path / "p.csv")) == 400
    (tmp_path / "p.csv").unlink()
    assert predict(run, tmp_path / "new.csv", tmp_path / "p.csv", "--strict") == 1
    refused = "class 'medium' is unknown to the model" if "risk" in columns else message.partition(":")[0]
    assert refused in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": None, "job": None, "income": None}, "which the model uses. Add it"),
        ({"age": "old"}, "text such as 'old' in column 'age', where the model knows numbers"),
        ({"job": "7"}, "numbers in column 'job', where the model knows categories"),
    ],
)
def test_incompatible_table_raises_and_writes_nothing(
    run: tuple[Files, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    columns: dict[str, object],
    message: str,
) -> None:
    out = tmp_path / "p.csv"
    out.write_text("old")
    assert predict(run, changed(run, tmp_path, **columns), out) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) <= 3
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "p.csv"]


def test_predictions_go_to_stdout_and_messages_to_stderr(
    run: tuple[Files, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", "--run", str(run[1]), *run[0].options, "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out == (run[1] / "predictions.csv").read_text(encoding="utf-8")
    assert "Predicted: " in printed.err


def test_explanations_go_to_stdout_and_messages_to_stderr(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run, run[0].nodes, tmp_path / "p.csv", "--explain", "-") == 0
    printed = capsys.readouterr()
    assert list(pandas.read_csv(io.StringIO(printed.out))) == ["id", "predicted", "source", "name", "value"]
    assert "Predicted: " in printed.err
    assert predict(run, run[0].nodes, tmp_path / "p.csv", "--explain", "-", "--json") == 1
    assert "write to standard output" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.parquet", "sqlite:///{}/p.db"])
def test_output_suffix_determines_format(run: tuple[Files, Path], tmp_path: Path, name: str) -> None:
    out = name.format(tmp_path) if "://" in name else str(tmp_path / name)
    assert cli.main(["predict", "--run", str(run[1]), *run[0].options, "--out", out, "--quiet"]) == 0
    if "://" in name:
        with sqlite3.connect(tmp_path / "p.db") as database:
            frame = pandas.read_sql("select * from predictions", database)
    else:
        readers = {".json": pandas.read_json, ".parquet": pandas.read_parquet}
        suffix = Path(name).suffix
        frame = readers[suffix](out) if suffix in readers else pandas.read_json(out, lines=True)
    before = pandas.read_csv(run[1] / "predictions.csv")
    assert list(frame) == list(before)
    assert frame["predicted"].tolist() == before["predicted"].tolist()


def test_duckdb_prints_nothing_at_exit(run: tuple[Files, Path], tmp_path: Path) -> None:
    pytest.importorskip("duckdb_engine", reason="needs duckdb-engine: pip install pairnorm[all]")
    words = ["predict", "--run", str(run[1]), *run[0].options, "--json"]
    words += ["--out", f"duckdb:///{tmp_path}/out.db", "--table", "my labels"]
    done = subprocess.run([sys.executable, "-m", "pairnorm", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == [words[-3]]
    assert "leaked" not in done.stderr


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_predictions_and_explanations_are_written_to_one_database(
    run: tuple[Files, Path], tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("duckdb_engine", reason="needs duckdb-engine: pip install pairnorm[all]")
    url = f"{kind}:///{tmp_path}/out.db"
    words = ["predict", "--run", str(run[1]), *run[0].options, "--quiet", "--out", url, "--explain", url]
    assert cli.main([*words, "--table", "my labels"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.db"], "complete without another file"
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        labels, reasons = (
            pandas.read_sql_query(sqlalchemy.text(f'SELECT * FROM "{name}"'), connection)
            for name in ("my labels", "explanations")
        )
    assert labels["id"].tolist() == pandas.read_csv(run[1] / "predictions.csv", dtype=str)["id"].tolist()
    assert set(reasons["id"]) <= set(labels["id"])


def test_database_tables_are_replaced_atomically(
    run: tuple[Files, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, write = f"sqlite:///{tmp_path}/out.db", pandas.DataFrame.to_sql
    words = ["predict", "--run", str(run[1]), *run[0].options, "--quiet", "--out", url, "--explain", url]
    assert cli.main(words) == 0
    before = (tmp_path / "out.db").read_bytes()

    def fail(frame: pandas.DataFrame, name: str, *more: object, **options: object) -> None:
        write(frame, name, *more, **options)
        if name == "explanations":
            raise KeyboardInterrupt

    monkeypatch.setattr(pandas.DataFrame, "to_sql", fail)
    assert cli.main(words) == 130
    assert (tmp_path / "out.db").read_bytes() == before


@pytest.mark.parametrize("table", ["Customers", "payments"])
def test_writing_to_an_input_table_raises(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    with sqlite3.connect(tmp_path / "bank.db") as database:
        for name, path in (("customers", run[0].nodes), ("payments", run[0].edges)):
            pandas.read_csv(path).to_sql(name, database, index=False)
    before = (tmp_path / "bank.db").read_bytes()
    words = ["--database", url, "--nodes", "customers", "--edges", "SELECT * FROM payments"]
    out = ["--out", url.replace("bank", "./bank"), "--table", table]
    assert cli.main(["predict", "--run", str(run[1]), *words, *out]) == 1
    assert "would be replaced, and is read" in capsys.readouterr().err
    assert (tmp_path / "bank.db").read_bytes() == before
    assert cli.main(["predict", "--run", str(run[1]), *words, *out[:2]]) == 0


@pytest.mark.parametrize(
    ("out", "explain"), [("p.csv", "./p.csv"), ("-", "-"), ("sqlite:///p.db", "sqlite:///p.db")]
)
def test_equal_outputs_raise(
    run: tuple[Files, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
    explain: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["predict", "--run", str(run[1]), *run[0].options, "--table", "explanations"]
    assert cli.main([*words, "--out", out, "--explain", explain]) == 1
    assert "--out and --explain write to the same place" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["p.csv", "p.json", "p.parquet"])
def test_prediction_sets_and_explanations_are_exported(
    run: tuple[Files, Path], tmp_path: Path, name: str
) -> None:
    why = tmp_path / f"why{Path(name).suffix}"
    more = ["--sets", "0.9", "--explain", str(why)]
    assert predict(run, run[0].nodes, tmp_path / name, *more) == 0
    readers = {".csv": pandas.read_csv, ".json": pandas.read_json, ".parquet": pandas.read_parquet}
    frame, reasons = (readers[why.suffix](path) for path in (tmp_path / name, why))
    sets = frame["set"].map(json.loads if why.suffix == ".csv" else list)
    assert all(label in labels for label, labels in zip(frame["predicted"], sets, strict=True))
    assert {len(labels) for labels in sets} <= {1, 2}
    assert list(reasons) == ["id", "predicted", "source", "name", "value"]
    assert set(reasons["source"]) == {"neighborhood", "neighbor"}, "the model is an SGC"
    assert set(reasons["id"]) <= set(frame["id"])
    assert {"age", "income"} <= set(reasons["name"])


@pytest.mark.parametrize(
    ("option", "value"), [("--sets", "1.2"), ("--table", "mine"), ("--explain", "why.xlsx")]
)
def test_invalid_prediction_options_raise(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert predict(run, run[0].nodes, tmp_path / "p.csv", option, value) == 1
    assert {value, option} & set(re.findall(r"[\w.-]+", capsys.readouterr().err))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("p.xlsx", "cannot be written as .xlsx. Use .csv, .parquet"),
        ("p", "a file without an ending"),
        ("nosuch://host/db", "databases of type 'nosuch' are not known"),
        ("sqlite://", "what is written to memory is lost"),
        ("sqlite:///no/folder/p.db", "there is no such folder"),
        ("postgresql://ann:hunter22@127.0.0.1:notaport/db", "cannot be written"),
    ],
)
def test_unwritable_output_raises(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch, out, message
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predict", "--run", str(run[1]), *run[0].options, "--out", out]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "hunter22" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reads", [True, False])
def test_silent_server_times_out(
    run: tuple[Files, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr("pairnorm.base.databases.CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://ann:MARKER77@127.0.0.1:{server.getsockname()[1]}/bank"
        tables = ["--database", url, "--nodes", "nodes", "--edges", "edges"] if reads else run[0].options
        out = [] if reads else ["--out", url]
        start = time.monotonic()
        assert cli.main(["predict", "--run", str(run[1]), *tables, *out]) == 1
    assert time.monotonic() - start < 20
    error = capsys.readouterr().err
    assert "timeout" in error
    assert "MARKER77" not in error


def test_integer_classes_stay_integers_in_parquet(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": ["a", "b"], "predicted": ["1", "20"]})
    write_table(frame, tmp_path / "p.parquet")
    assert pandas.read_parquet(tmp_path / "p.parquet")["predicted"].tolist() == [1, 20]


def test_json_prints_summary(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run, run[0].nodes, tmp_path / "p.csv", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["nodes"] == 400
    assert sum(summary["predicted"].values()) == 400
    assert summary["files"] == [str(tmp_path / "p.csv")]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_customers(tmp_path)
    text = files.nodes.read_text(encoding="utf-8")
    files.nodes.write_text(text.replace("high", "\x1b]0;high\x07[red]"), encoding="utf-8")
    run = files, tmp_path / "run"
    options = ["--label", "risk", "--norm", "PN", "--depth", "4", "--scale", "30"]
    assert cli.main(["fit", *files.options, *options, "--out", str(run[1])]) == 0
    assert predict(run, files.nodes, tmp_path / "\x1b[31mp.csv") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert r"\x1b]0;high\x07[red]" in printed
    assert r"\x1b[31mp.csv" in printed


def test_folder_without_model_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "--run", str(tmp_path), "--nodes", "nodes.csv"]) == 1
    assert (
        "there is no model.json. Name a folder that NodeClassifier.save or `pairnorm fit --out` wrote"
        in capsys.readouterr().err
    )


def test_predict_reads_input_formats_like_fit(tmp_path: Path) -> None:
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
    given = ["--nodes", "n.csv.gz", "--edges", "e-*", "--features", "words.jsonl"]
    given = [str(tmp_path / word) if not word.startswith("-") else word for word in given]
    fit = ["--label", "risk", "--delimiter", ";", "--norm", "PN", "--depth", "2", "--scale", "30"]
    assert cli.main(["fit", *given, *fit, "--out", str(tmp_path / "run")]) == 0
    out = tmp_path / "p.csv"
    assert cli.main(["predict", "--run", str(tmp_path / "run"), *given, "--out", str(out)]) == 0
    assert out.read_bytes() == (tmp_path / "run/predictions.csv").read_bytes()


def test_graph_without_features_is_predicted_from_structure(tmp_path: Path) -> None:
    files = write_customers(tmp_path, nodes=120, labeled=80)
    bare = pandas.read_csv(files.nodes)[["customer", "risk"]]
    bare.to_csv(files.nodes, index=False)
    model = ["--norm", "PN", "--depth", "2", "--scale", "30", "--label", "risk"]
    assert cli.main(["fit", *files.options, *model, "--out", str(tmp_path / "run")]) == 0
    assert predict((files, tmp_path / "run"), files.nodes, tmp_path / "p.csv") == 0
    assert (tmp_path / "p.csv").read_bytes() == (tmp_path / "run/predictions.csv").read_bytes()


def test_quiet_and_json_keep_notes(
    run: tuple[Files, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = changed(run, tmp_path, height="180")
    assert predict(run, nodes, tmp_path / "p.csv", "--quiet", "--json") == 0
    output = capsys.readouterr()
    notes = json.loads(output.out)["notes"]
    assert any("height" in note for note in notes)
    assert all(f"Note: {note}" in output.err for note in notes)
