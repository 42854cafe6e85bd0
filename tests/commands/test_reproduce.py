from pathlib import Path

import pytest

from pairnorm import cli
from pairnorm.paper import runner as module
from pairnorm.paper.runner import Outcome

TINY = ["--dataset", "cora", "--runs", "1", "--epochs", "2", "--depths", "1", "--workers", "1"]


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "pairnorm reproduce table2 --dataset cora --runs 1 --depths 2,4,8,12" in printed
    assert "case-study" in printed


def test_it_ends_with_the_table_against_the_paper_files_and_what_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "table1", *TINY, "--missing", "100", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "Training 6 trials" in printed
    assert "0.745" in printed  # the paper's
    assert "Difference" in printed
    table = tmp_path / "out" / "table1.csv"
    assert f"Wrote {table}" in printed
    assert table.is_file()
    assert f"Next: pairnorm report --store {tmp_path}/out/results.sqlite" in printed
    assert cli.main(words) == 0
    assert "Training" not in capsys.readouterr().out  # nothing is left to train


def test_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "s.sqlite"
    words = ["table1", *TINY, "--minutes", "0", "--out", str(tmp_path), "--store", str(store)]
    assert cli.main(["reproduce", *words]) == 0
    assert "Time is up: 36 trials are left. Go on with: pairnorm reproduce table1" in capsys.readouterr().out


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "reproduce", stop)
    folder, words = str(tmp_path / "two words"), ["--missing", "0", "--workers", "1", "--device", "cpu"]
    assert cli.main(["reproduce", "table1", *TINY, *words, "--out", folder]) == 130
    printed = capsys.readouterr().out
    assert "0 of 6 trials are kept" in printed
    wanted = "pairnorm reproduce table1 --dataset cora --runs 1 --epochs 2 --depths 1 --missing 0"
    assert f"Go on with: {wanted} --out '{folder}' --workers 1 --device cpu" in printed


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["reproduce", "table1", *TINY, "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "what to reproduce is 'tabel1'"),
        (["table1", "--missing", "30"], "missing is 30; table1 has 0, 20, 40, 60, 80, 100%"),
        (["table1", "--runs", "0"], "runs is 0; expected 1 or more"),
        (["table1", "--depths", "a"], "depths is 'a'"),
    ],
)
def test_errors_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") <= 3
    assert not (tmp_path / "out").exists()


def test_nothing_named_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce"]) == 2
    assert "Usage: pairnorm reproduce" in capsys.readouterr().err
