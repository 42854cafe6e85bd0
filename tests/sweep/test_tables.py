import csv
import io

import pytest

from helpers import make_trial
from pairnorm.paper.experiments import TABLE1, TABLE3, TUNED, Selection, reported
from pairnorm.sweep.grid import Experiment, TableCell
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.tables import COLUMNS, Table, as_csv, by_missing_rate, latex, legend, terminal
from pairnorm.train import Spec

EXPERIMENT = Selection(datasets=["cora"], runs=2, depths=[4, 7], missing=[0, 100]).narrow(TABLE1)
assert EXPERIMENT is not None


def results() -> ResultIndex:
    """Return SGC at 0% with all candidates, SGC-PN at 0% with one of them, and nothing at 100%."""
    assert EXPERIMENT is not None
    plain = EXPERIMENT.candidates(TableCell("cora", "SGC", 0))
    normalized = EXPERIMENT.candidates(TableCell("cora", "SGC-PN", 0))
    return ResultIndex(
        {
            plain[0]: [make_trial(0, 0.8, 0.79), make_trial(1, 0.8, 0.81)],
            plain[1]: [make_trial(0, 0.7, 0.99), make_trial(1, 0.7, 0.99)],
            normalized[-1]: [make_trial(0, 0.8, 0.82), make_trial(1, 0.8, 0.82)],
        }
    )


@pytest.fixture
def table() -> Table:
    assert EXPERIMENT is not None
    return Table.of(results(), EXPERIMENT, reported=reported())


def test_csv_has_paper_columns_and_empty_pending_cells(table):
    assert COLUMNS[:5] == ("dataset", "method", "missing_percent", "accuracy", "layers")
    assert as_csv(table) == (
        "dataset,method,missing_percent,accuracy,layers,accuracy_std,paper_accuracy,paper_layers\n"
        "cora,SGC,0,0.8000,4,0.0141,0.815,4\n"
        "cora,SGC,100,,,,0.423,15\n"
        "cora,SGC-PN,0,0.8200,7,0.0000,0.811,7\n"
        "cora,SGC-PN,100,,,,0.745,40\n"
    )


def test_csv_with_selected_settings(table):
    rows = list(csv.DictReader(io.StringIO(as_csv(table, ["scale", "dropout"]))))
    assert [(row["scale"], row["dropout"]) for row in rows] == [
        ("1.0", "0.6"),
        ("", ""),
        ("100.0", "0.6"),
        ("", ""),
    ]


def test_paper_rows_follow_our_rows(table):
    headings, rows = by_missing_rate(table)
    assert headings == ["Graph", "Method", "0% missing", "100% missing"]
    assert rows == [
        ["Cora", "SGC", "0.800 ± 0.014 @ 4", "not run"],
        ["", "paper", "0.815 @ 4, -0.015", "0.423 @ 15"],
        ["", "SGC-PN", "**0.820 ± 0.000*** @ 7", "not run"],
        ["", "paper", "0.811 @ 7, +0.009", "0.745 @ 40"],
    ]
    assert "* not all candidates" in legend(table)


def test_latex_is_balanced_and_has_all_columns(table):
    text = latex(table)
    assert text.count("{") == text.count("}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [row.count(" & ") for row in rows] == [3] * 5
    assert r"100\% missing" in text
    assert r"\textbf{0.820 $\pm$ 0.000*} @ 7" in text
    assert "0.811 @ 7, $+0.009$" in text


def test_terminal_fits_eighty_columns(table):
    lines = terminal(table).splitlines()
    assert lines == [
        "SGC with and without PairNorm, by the share of missing vectors",
        "",
        "                           Ours @ layers         Paper, difference",
        "Cora         SGC       0%  0.800 ± 0.014 @ 4     0.815 @ 4, -0.015",
        "Cora         SGC     100%  not run               0.423 @ 15",
        "Cora         SGC-PN    0%  0.820 ± 0.000* @ 7    0.811 @ 7, +0.009",
        "Cora         SGC-PN  100%  not run               0.745 @ 40",
        "* not all candidates of this cell have been trained yet",
    ]


def test_widest_table_fits_eighty_columns():
    wide = Table.of(ResultIndex({}), TUNED, TABLE3, reported=reported())
    assert max(map(len, terminal(wide).splitlines())) <= 80


def test_single_run_has_no_deviation():
    one = Selection(datasets=["cora"], runs=1, depths=[4], missing=[0]).narrow(TABLE1)
    assert one is not None
    result = ResultIndex({Spec("cora", "SGC", 4, epochs=500, scaling="none"): [make_trial(0, 0.5, 0.75)]})
    table = Table.of(result, one, reported=reported())
    assert by_missing_rate(table)[1][0] == ["Cora", "SGC", "**0.750** @ 4"]
    assert "cora,SGC,0,0.7500,4,,0.815,4\n" in as_csv(table)


def test_cells_outside_the_paper_have_no_reported_number():
    figure = Experiment("x", "x", TABLE1.methods, {0: 1}, ("cora",), in_tables=False)
    entries = Table.of(ResultIndex({}), figure, reported=reported()).entries
    assert all(entry.paper is None for entry in entries)


def test_several_experiments_share_one_table():
    assert EXPERIMENT is not None
    other = Experiment("b", "B", {"mine": {"model": "GCN", "depth": 2}}, {0: 1}, ("cora",))
    table = Table.of(results(), EXPERIMENT, other)
    assert [row[1:] for row in by_missing_rate(table)[1]][2] == ["mine", "not run", ""]
    assert (table.name, table.title, table.filled) == ("b", "B", 2)


def test_ineffective_skip_is_marked():
    """Bug: models of two layers "with skips" were listed as if they differed from those without."""
    skip = Experiment("x", "X", {"GCN-t1": {"model": "GCN", "depth": (2, 4), "skip": 1}}, {0: 1}, ("cora",))
    shallow, deep = skip.candidates(TableCell("cora", "GCN-t1", 0))
    for better, mark in ((shallow, " @ 2†"), (deep, " @ 4")):
        trials = {spec: [make_trial(0, 0.9 if spec == better else 0.1, 0.5)] for spec in (shallow, deep)}
        table = Table.of(ResultIndex(trials), skip)
        assert by_missing_rate(table)[1][0][2].endswith(mark)
        assert ("same model as without it" in legend(table)) == (better == shallow)
