import csv
import shlex
from functools import partialmethod
from pathlib import Path

import pytest

from pairnorm import cli
from pairnorm.sweep.runner import Outcome, Sweep
from pairnorm.train import Spec, Store

TINY = ["--dataset", "cora", "--runs", "1", "--epochs", "2", "--depth", "1", "--workers", "1"]


def test_help_has_an_example(pairnorm) -> None:
    printed = pairnorm("reproduce", "--help").out
    assert "pairnorm reproduce table2 --dataset cora --runs 1 --depth 2,4,8,12" in printed
    assert "case-study" in printed


def test_reproduce_prints_table_files_and_next_command(tmp_path: Path, pairnorm) -> None:
    words = ["reproduce", "table1", *TINY, "--missing", "100", "--out", str(tmp_path / "out")]
    printed = pairnorm(*words).out
    assert "Training 6 trials" in printed
    assert "0.745" in printed  # the paper's
    assert "difference" in printed
    table = tmp_path / "out" / "table1.csv"
    assert f"Wrote {table}" in printed
    assert table.is_file()
    assert f"Next: pairnorm report --store {tmp_path}/out/results.sqlite" in printed
    assert "Training" not in pairnorm(*words).out  # nothing is left to train


def test_time_limit_prints_resume_command(tmp_path: Path, pairnorm) -> None:
    store = tmp_path / "s.sqlite"
    words = ["table1", *TINY, "--time-limit", "0", "--out", str(tmp_path), "--store", str(store)]
    assert (
        "Time limit reached: 36 trials remain. Resume with: pairnorm reproduce table1"
        in pairnorm("reproduce", *words).out
    )


def test_interrupt_prints_finished_trials_and_resume_command(
    tmp_path: Path, pairnorm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "reproduce", stop)
    folder, words = str(tmp_path / "two words"), ["--missing", "0", "--workers", "1", "--device", "cpu"]
    printed = pairnorm("reproduce", "table1", *TINY, *words, "--out", folder, code=130).out
    assert "0 of 6 trials are kept" in printed
    typed = shlex.join(["pairnorm", "reproduce", "table1", *TINY, *words, "--out", folder])
    assert f"Resume with: {typed}\n" in printed


def test_unwritable_output_folder_raises(tmp_path: Path, pairnorm) -> None:
    (tmp_path / "file").touch()
    assert (
        "cannot be written"
        in pairnorm("reproduce", "table1", *TINY, "--out", str(tmp_path / "file"), code=1).err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "what to reproduce is 'tabel1'"),
        (["table1", "--missing", "30"], "missing is 30; "),
        (["table1", "--runs", "0"], "runs is 0; expected"),
        (["table1", "--depth", "a"], "depth is 'a'"),
        (["table1", "--workers", "0"], "workers is 0; expected a whole number, 1 or more"),
        (["table1", "--device", "gpu7"], "device is 'gpu7'"),
        (["table1", "--device", "mps"], "device is 'mps'"),
        (["table1", "--epochs", "-1"], "epochs is -1"),
        (["table1", "--depth", "0"], "depth is 0"),
        (["table1", "--missing", "101"], "missing is 101"),
        (["table1", "--dataset", "coral"], "dataset is 'coral'"),
        (["table1", "--time-limit", "nan"], "time-limit is 'nan'"),
        (["table1", "--model", "GCN"], "--model is for depth and missing"),
    ],
)
def test_invalid_options_write_nothing(tmp_path: Path, pairnorm, words: list[str], message: str) -> None:
    printed = pairnorm("reproduce", *words, "--out", str(tmp_path / "out"), code=1).err
    assert message in printed
    assert printed.count("\n") <= 3
    assert not (tmp_path / "out").exists()


def test_read_only_store_raises_before_training(
    tmp_path: Path, pairnorm, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add(Spec("cora", "SGC", 1), [], seconds=0.0)
    monkeypatch.setattr(Store, "__init__", partialmethod(Store.__init__, read_only=True))
    assert (
        "and name it: --store …"
        in pairnorm(
            "reproduce", "table1", *TINY, "--store", str(path), "--out", str(tmp_path / "o"), code=1
        ).err
    )


def test_options_between_arguments_are_accepted(tmp_path: Path, pairnorm) -> None:
    words = ["table1", *TINY, "table2", "--time-limit", "0", "--missing", "0", "--out", str(tmp_path)]
    printed = pairnorm("reproduce", *words).out
    assert "Training 7 trials" in printed
    assert f"Resume with: {shlex.join(['pairnorm', 'reproduce', *words])}\n" in printed


def test_missing_argument_is_a_usage_error(pairnorm) -> None:
    assert "Usage: pairnorm reproduce" in pairnorm("reproduce", code=2).err


def test_depth_supports_long_range_graphs(tmp_path: Path, pairnorm) -> None:
    words = [
        "reproduce",
        "depth",
        "--dataset",
        "chains-2",
        "--model",
        "GCN",
        "--method",
        "none",
        "--depth",
        "2",
    ]
    assert (
        "Time limit reached: 8 trials remain"
        in pairnorm(*words, "--time-limit", "0", "--device", "cpu", "--out", str(tmp_path)).out
    )


def test_depth_has_its_own_store_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pairnorm
) -> None:
    words = ["reproduce", "depth", *TINY[:-4], "--depth", "4", "--missing", "100", "--workers", "1"]
    words += ["--model", "GCN", "--method", "none,Skip", "--out", str(tmp_path)]
    assert cli.main([*words, "--time-limit", "0"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Time limit reached: 8 trials remain. Resume with: pairnorm reproduce depth --dataset cora" in printed
    )
    assert "--model GCN --method none,Skip" in printed
    assert f"Wrote {tmp_path / 'depth.csv'}" in pairnorm(*words).out
    rows = (tmp_path / "depth.csv").read_text().splitlines()
    assert [row.split(",")[:5] for row in rows[1:]] == [
        ["cora", "GCN", name, "100", "4"] for name in ("none", "Skip")
    ]
    with Store(tmp_path / "depth.sqlite") as store:
        assert len(store) == 8
    assert "a command of its own" in " ".join(
        pairnorm("reproduce", "depth", "table1", *TINY, "--out", str(tmp_path), code=1).err.split()
    )


MISSING = ["reproduce", "missing", "--protocol", "ssnc-mv", "--dataset", "cora", "--runs", "1"]
MISSING += ["--epochs", "1", "--missing", "0", "--workers", "1", "--device", "cpu"]
MISSING += ["--model", "SGC,label propagation"]


def test_missing_writes_the_comparison_and_resumes(tmp_path: Path, pairnorm) -> None:
    words = [*MISSING, "--out", str(tmp_path)]
    assert (
        "Time limit reached: 13 trials remain. Resume with: pairnorm reproduce missing"
        in pairnorm(*words, "--time-limit", "0").out
    )
    printed = pairnorm(*words).out
    assert f"Wrote {tmp_path / 'missing.md'}" in printed
    with (tmp_path / "missing.csv").open() as file:
        rows = [(row["dataset"], row["model"]) for row in csv.DictReader(file)]
    assert rows[:2] == [("cora", "SGC"), ("cora", "label propagation")]
    assert [model for _, model in rows[2:]] == ["label propagation"]  # on the nodes that labels reach
    assert (tmp_path / "missing.md").read_text().startswith("# Missing features")
    assert "remain" not in pairnorm(*words).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reproduce", "missing", "table1"], "a command of its own"),
        (["reproduce", "missing", "--depth", "2"], "--depth is not for missing"),
        (["reproduce", "missing", "--missing", "many"], "missing is 'many'"),
        (["reproduce", "missing", "--protocol", "pcfi"], "protocol is 'pcfi'"),
        (["reproduce", "missing", "--workers", "0"], "workers is 0"),
        (["reproduce", "missing", "--method", "GCNII"], "--method is for depth"),
        (["reproduce", "depth", "--protocol", "ssnc-mv"], "--protocol is for missing"),
        (["reproduce", "table1", "--protocol", "ssnc-mv"], "--protocol is for depth and missing"),
    ],
)
def test_invalid_comparison_options_raise(words: list[str], says: str, pairnorm) -> None:
    assert says in pairnorm(*words, code=1).err
