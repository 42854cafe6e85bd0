import csv
import shlex
from functools import partialmethod

from pairnorm import cli
from pairnorm.sweep.runner import Outcome, Sweep
from pairnorm.train import Spec, Store

TINY = ["--dataset", "cora", "--runs", "1", "--epochs", "2", "--depth", "1", "--workers", "1"]


def test_help_has_an_example(pairnorm):
    printed = pairnorm("reproduce", "--help").out
    assert "pairnorm reproduce table2 --dataset cora --runs 1 --depth 2,4,8,12" in printed
    assert "case-study" in printed


def test_reproduce_prints_table_files_and_next_command(tmp_path, pairnorm):
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


def test_time_limit_prints_resume_command(tmp_path, pairnorm):
    store = tmp_path / "s.sqlite"
    words = ["table1", *TINY, "--time-limit", "0", "--out", str(tmp_path), "--store", str(store)]
    assert (
        "Time limit reached: 36 trials remain. Resume with: pairnorm reproduce table1"
        in pairnorm("reproduce", *words).out
    )


def test_interrupt_prints_finished_trials_and_resume_command(tmp_path, pairnorm, monkeypatch):
    def stop(*_: object, **__: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "reproduce", stop)
    folder, words = str(tmp_path / "two words"), ["--missing", "0", "--workers", "1", "--device", "cpu"]
    printed = pairnorm("reproduce", "table1", *TINY, *words, "--out", folder, code=130).out
    assert "0 of 6 trials are kept" in printed
    typed = shlex.join(["pairnorm", "reproduce", "table1", *TINY, *words, "--out", folder])
    assert f"Resume with: {typed}\n" in printed


def test_unwritable_output_folder_raises(tmp_path, pairnorm):
    (tmp_path / "file").touch()
    words = ["table1", *TINY, "--out", tmp_path / "file"]
    assert "cannot be written" in pairnorm("reproduce", *words, code=1).err


def test_read_only_store_raises_before_training(tmp_path, pairnorm, monkeypatch):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        store.add(Spec("cora", "SGC", 1), [], seconds=0.0)
    monkeypatch.setattr(Store, "__init__", partialmethod(Store.__init__, read_only=True))
    words = ["table1", *TINY, "--store", path, "--out", tmp_path / "o"]
    assert "and name it: --store …" in pairnorm("reproduce", *words, code=1).err


def test_options_between_arguments_are_accepted(tmp_path, pairnorm):
    words = ["table1", *TINY, "table2", "--time-limit", "0", "--missing", "0", "--out", str(tmp_path)]
    printed = pairnorm("reproduce", *words).out
    assert "Training 7 trials" in printed
    assert f"Resume with: {shlex.join(['pairnorm', 'reproduce', *words])}\n" in printed


def test_depth_supports_long_range_graphs(tmp_path, pairnorm):
    words = ["reproduce", "depth", "--dataset", "chains-2", "--model", "GCN", "--method", "none"]
    words += ["--depth", "2", "--time-limit", "0", "--device", "cpu", "--out", tmp_path]
    assert "Time limit reached: 8 trials remain" in pairnorm(*words).out


def test_depth_has_its_own_store_and_table(tmp_path, capsys, pairnorm):
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


MISSING = ["reproduce", "missing", "--protocol", "ssnc-mv", "--dataset", "cora", "--runs", "1"]
MISSING += ["--epochs", "1", "--missing", "0", "--workers", "1", "--device", "cpu"]
MISSING += ["--model", "SGC,label propagation"]


def test_missing_writes_the_comparison_and_resumes(tmp_path, pairnorm):
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
