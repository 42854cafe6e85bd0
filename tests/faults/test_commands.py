"""Invalid options, names and paths end in a short message and leave no files."""

import os
import shutil
from pathlib import Path

import pytest

from helpers import contents
from pairnorm import cli


def graph_of(folder: Path) -> list[str]:
    return ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "files"))


@pytest.fixture
def predict(folder: Path) -> list[str]:
    return ["predict", "--run", str(folder / "run"), *graph_of(folder)]


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv", "run/model.json", "run/model.safetensors"])
@pytest.mark.parametrize("way", ["itself", "symlink", "hard link", "dots"])
def test_output_never_overwrites_input(fails, folder, predict, name, way):
    out = folder / name
    if way == "dots":
        out = folder / "run" / ".." / name
    elif way != "itself":
        out = folder / "other.csv"
        (out.symlink_to if way == "symlink" else out.hardlink_to)(folder / name)
    before = contents(folder)
    error = fails(*predict, "--out", out)
    assert "which is read. Choose another path: --out …" in error or out.suffix == ".safetensors"
    assert contents(folder) == before


def test_symlink_output_is_followed_and_kept(folder, predict, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "real.csv", folder / "link.csv"
    link.symlink_to(target)
    for _ in range(2):  # first a dangling link, then a link to a file
        assert cli.main([*predict, "--out", str(link)]) == 0
        assert link.is_symlink()
        assert target.read_text().startswith("id,predicted,")
        target.write_text("old")
    assert os.listdir(tmp_path / "elsewhere") == ["real.csv"]


@pytest.mark.parametrize("name", ["pipe.csv", "/dev/null", "/dev/full"])
def test_pipe_or_device_output_is_refused(fails, folder, predict, name):
    """Opening a pipe without a reader would block forever."""
    if not name.startswith("/"):
        os.mkfifo(folder / name)
    error = fails(*predict, "--out", folder / name)
    assert "a pipe or a device" in error or "without an ending" in error
    for scheme in ("sqlite", "duckdb"):
        assert "a pipe or a device" in fails(*predict, "--out", f"{scheme}:///{folder / name}")


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_symlink_loop_is_refused_as_database(fails, folder, predict, scheme):
    (folder / "loop").symlink_to(folder / "loop")
    fails(*predict, "--out", f"{scheme}:///{folder / 'loop'}")


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", str(2**64)],
        ["--seed", "-1"],
        ["--scale", "1e300"],
        ["--scale", "nan"],
        ["--scale", "0"],
        ["--depth", "1000000000"],
        ["--depth", "-1"],
        ["--device", "mps"],
        ["--device", "cuda:99"],
        ["--device", "\x1b[31m"],
        ["--time-limit", "1e400h"],
        ["--seeds", "0"],
        ["--norm", "PNSX"],
        ["--delimiter", "ab"],
    ],
    ids=" ".join,
)
def test_invalid_options_write_nothing(fails, folder, options):
    fails("fit", *graph_of(folder), "--label", "risk", "--out", folder / "new", *options)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("option", ["--seed", "--epochs", "--" + "x" * 5000])
def test_long_values_are_truncated_in_messages(fails, folder, option):
    fails("fit", *graph_of(folder), "--label", "risk", option, "9" * 5000, code=2)


def test_huge_scale_gives_finite_output_or_error(folder, capsys):
    words = ["fit", *graph_of(folder), "--label", "risk", "--depth", "2", "--norm", "PN", "--scale", "1e38"]
    code = cli.main([*words, "--out", str(folder / "new")])
    assert code in (0, 1)
    if code == 0:
        assert ",," not in (folder / "new" / "predictions.csv").read_text()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--nodes", "--edges", "--out"])
@pytest.mark.parametrize("name", ["x" * 256, "é" * 200, "a/" * 3000 + "x", "loop", "file/in"])
def test_invalid_file_names_are_refused(fails, folder, option, name):
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file").touch()
    words = ["fit", *graph_of(folder), "--label", "risk", "--out", str(folder / "new")]
    words[words.index(option) + 1] = str(folder / name)
    fails(*words)


@pytest.mark.parametrize("name", ["x" * 251 + ".csv", "日" * 83 + ".csv"])
def test_longest_valid_file_names_are_supported(folder, predict, name):
    assert cli.main([*predict, "--out", str(folder / name)]) == 0
    assert (folder / name).exists()
    assert not list(folder.glob(".*"))


def test_failed_download_leaves_no_store(fails, tmp_path, monkeypatch):
    from pairnorm.data import named

    monkeypatch.setattr(named, "SECONDS_PER_REPLY", 0.2)
    monkeypatch.setattr(named, "urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    out = tmp_path / "out"
    words = ["reproduce", "table1", "--dataset", "cora,citeseer", "--runs", "1", "--out", out]
    fails(*words, "--root", tmp_path / "data")
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("seconds", "nan"), ("seconds", "inf"), ("seconds", "-1"), ("seed", str(2**70)), ("seed", "-1")],
        *[("finished", "yesterday"), ("finished", "0001-01-01T00:00:00Z"), ("curves", "[" * 100_000)],
        *[("curves", "5"), ("curves", '{"a": 5}'), ("best_epoch", "1e9"), ("depth", "1.5"), ("scale", "nan")],
    ],
)
def test_export_with_invalid_values_is_refused(fails, corpus, tmp_path, column, value):
    import pandas

    frame = pandas.read_csv(corpus / "export.csv", dtype=str, keep_default_na=False)
    frame.loc[1, column] = value
    frame.to_csv(tmp_path / "export.csv", index=False)
    fails("report", "--store", tmp_path / "export.csv", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
