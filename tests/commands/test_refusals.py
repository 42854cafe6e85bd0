"""Invalid command lines of all commands end in a short message and write nothing."""

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("compare --dataset cora --method Whiten", "method is 'Whiten'"),
        ("compare --dataset cora --method nowhere_at_all:Whiten", "cannot be imported"),
        ("compare --dataset coral", "dataset is 'coral'"),
        ("compare --dataset cora --depth 1", "depth is 1; expected"),
        ("compare --dataset cora --model GIN", "model is 'GIN'"),
        ("diagnose --nodes n.csv --out d.bmp", "expected one of '.png', '.pdf', '.svg', '.html'"),
        ("diagnose --nodes n.csv --out figure", "expected one of '.png', '.pdf', '.svg', '.html'"),
        ("reproduce tabel1", "what to reproduce is 'tabel1'"),
        ("reproduce table1 --missing 30", "missing is 30; "),
        ("reproduce table1 --runs 0", "runs is 0; expected"),
        ("reproduce table1 --depth a", "depth is 'a'"),
        ("reproduce table1 --workers 0", "workers is 0; expected a whole number, 1 or more"),
        ("reproduce table1 --device gpu7", "device is 'gpu7'"),
        ("reproduce table1 --device mps", "device is 'mps'"),
        ("reproduce table1 --epochs -1", "epochs is -1"),
        ("reproduce table1 --depth 0", "depth is 0"),
        ("reproduce table1 --missing 101", "missing is 101"),
        ("reproduce table1 --dataset coral", "dataset is 'coral'"),
        ("reproduce table1 --time-limit nan", "time-limit is 'nan'"),
        ("reproduce table1 --model GCN", "--model is for depth and missing"),
        ("reproduce table1 --protocol ssnc-mv", "--protocol is for depth and missing"),
        ("reproduce depth --protocol ssnc-mv", "--protocol is for missing"),
        ("reproduce depth table1", "a command of its own"),
        ("reproduce missing table1", "a command of its own"),
        ("reproduce missing --depth 2", "--depth is not for missing"),
        ("reproduce missing --missing many", "missing is 'many'"),
        ("reproduce missing --protocol pcfi", "protocol is 'pcfi'"),
        ("reproduce missing --workers 0", "workers is 0"),
        ("reproduce missing --method GCNII", "--method is for depth"),
        ("report --store no.sqlite", "there is no store at"),
    ],
)
def test_invalid_command_raises_and_writes_nothing(tmp_path, pairnorm, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", "out"]
    error = pairnorm(*words.split(), *out, code=1).err
    assert message in " ".join(error.split())
    assert error.count("\n") <= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [("compare", "--nodes or --dataset is needed"), ("reproduce", "Usage: pairnorm reproduce")],
)
def test_missing_argument_is_a_usage_error(pairnorm, name, message):
    assert message in pairnorm(name, code=2).err
