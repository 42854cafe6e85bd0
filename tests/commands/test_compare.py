import re
import sys

import pytest
from written import write_customers

from pairnorm.commands.compare import METHODS
from pairnorm.train import Store

SMALL = ["--depth", "2,3", "--runs", "2", "--epochs", "3", "--workers", "1", "--device", "cpu"]
OWN = """
from torch import nn

class Halved(nn.Module):
    version, grid = "4", (0.5, 0.25)

    def __init__(self, features, strength):
        super().__init__()
        self.strength = strength

    def forward(self, x):
        return x * self.strength

class Perceptron(nn.Linear):
    kind = "model"

    def __init__(self, in_channels, out_channels, *, num_layers, hidden_channels, dropout):
        super().__init__(in_channels, out_channels)

    def forward(self, x, edge_index):
        return super().forward(x)
"""


@pytest.mark.filterwarnings(
    "ignore::pairnorm.data.GraphWarning", "ignore::pairnorm.classify.ClassifierWarning"
)
def test_compare_files_writes_table_figure_and_advice(tmp_path, pairnorm):
    files, out = write_customers(tmp_path), tmp_path / "out"
    words = ["compare", *files.options, "--label", "risk", "--method", "none,PN-SI,GCNII", *SMALL]
    printed = pairnorm(*words, "--out", out).out
    assert "Training 30 trials" in printed
    assert re.search(r"your graph, GCN \(0 of 30 trials done\): \d+ trials to train", printed)
    assert "graph@" not in printed
    assert "customers, GCN, all features: test accuracy, and effective rank in brackets" in printed
    rows = {cells[0] for line in printed.splitlines() if (cells := line.split()) and "(" in line}
    assert {"none", "PN-SI", "GCNII"} <= rows
    assert "of the test nodes correct" in printed
    assert (out / "figures" / "compare.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "compare.md").read_text(encoding="utf-8")
    assert "Written by `pairnorm compare`" in text
    assert "Minesweeper" not in text  # only for the graphs of the package
    assert "reproduce depth" not in text
    assert "## customers, GCN" in text
    assert len((out / "compare.csv").read_text().splitlines()) == 1 + 3 * 2
    assert "Training" not in pairnorm(*words, "--out", out).out  # all of it is in the store
    again = [*words, "--feature-scaling", "none", "--time-limit", "0", "--out", out]  # another graph
    assert "Time limit reached: 30 trials remain" in pairnorm(*again).out


def test_custom_method_and_model_are_compared(tmp_path, pairnorm, monkeypatch):
    (tmp_path / "halved_for_a_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = ["--method", "halved_for_a_test:Halved,halved_for_a_test:Perceptron"]
    words = ["compare", "--dataset", "cora", *own, "--depth", "2"]
    printed = pairnorm(*words, "--runs", "1", "--epochs", "1", "--workers", "1", "--device", "cpu").out
    named = [line.split()[0] for line in printed.splitlines() if "(" in line and line.split()]
    assert [*METHODS, "Halved@4", "Perceptron@1"] == named
    assert (tmp_path / "comparison" / "figures" / "compare.png").is_file()
    with Store(tmp_path / "comparison" / "compare.sqlite") as store:
        candidates = {result.spec.strength for result in store.results(remedy="halved_for_a_test:Halved@4")}
    assert candidates == {0.5, 0.25}


@pytest.mark.filterwarnings(
    "ignore::pairnorm.data.GraphWarning", "ignore::pairnorm.classify.ClassifierWarning"
)
def test_too_few_labels_raise(tmp_path, pairnorm):
    (tmp_path / "n.csv").write_text("id,age,risk\na,1,low\nb,2,high\nc,3,\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    files = ["--nodes", tmp_path / "n.csv", "--edges", tmp_path / "e.csv"]
    words = ["compare", *files, "--label", "risk", "--out", tmp_path / "out"]
    assert "too few labeled nodes" in pairnorm(*words, code=1).err
