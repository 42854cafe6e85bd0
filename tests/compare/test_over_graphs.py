from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from depth_table import a_table, line

from pairnorm.base import plotting
from pairnorm.compare.depth import Choice, DepthTable, ranked
from pairnorm.compare.depth_report import draw, report
from pairnorm.compare.over_graphs import Contender, draw_ranking
from pairnorm.train import Spec

TWO = ["cora", "pubmed"]


def remove(table: DepthTable, applies: Callable[[Spec], bool]) -> None:
    for spec in [spec for spec in table.index._trials if applies(spec)]:
        del table.index._trials[spec]


def test_situations_are_means_over_graphs() -> None:
    text = report(a_table(datasets=TWO), "reproduce depth")
    assert line(text, "| few labels | all features ")[2:] == [
        "2", "GCN, APPNP, 16 layers", "0.855", "", "0.755 (GCN, none, 2 layers)",
        "0.655 (GCN, PN-SI, 2 layers)",
    ]  # fmt: skip
    deep = line(text, "| very deep: 16 layers or more | training nodes' features alone ")
    assert deep[2:5] == ["2", "GCN, PN-SI, 16 layers", "0.705"]
    assert "a larger graph" not in text  # there is one of them
    assert "By situation" not in report(a_table(), "reproduce depth")


def test_what_a_graph_lacks_is_not_recommended() -> None:
    """With three graphs, of which one has no APPNP."""
    table = a_table(datasets=[*TWO, "coauthor-cs"])
    remove(table, lambda spec: spec.dataset == "coauthor-cs" and spec.method == "APPNP")
    text = report(table, "reproduce depth")
    assert line(text, "| few labels | all features ")[2:4] == ["3", "GCN, none, 2 layers"]
    assert line(text, "| a larger graph | all features ")[2:4] == ["2", "GCN, none, 2 layers"]


def test_intervals_are_those_of_other_graphs() -> None:
    """Where two graphs say the opposite, another may be like either."""
    rows = a_table(datasets=TWO, missing=[100]).rows
    deep: list[dict[str, Any]] = [row for row in rows if row["depth"] == 16]
    assert [(one.low, one.rank, one.high) for one in ranked(deep)[0]] == [(n, n, n) for n in (1, 2, 3)]
    for row in deep:
        if row["dataset"] == "pubmed":
            row["scores"] = {seed: 1 - one for seed, one in row["scores"].items()}
    found = {one.method: (one.low, one.rank, one.high) for one in ranked(deep)[0]}
    assert found == {"PN-SI": (1, 2, 3), "APPNP": (2, 2, 2), "none": (1, 2, 3)}


def test_runs_are_averaged_over_graphs_before_they_are_paired() -> None:
    choices = [Choice("x", 2, {0: 0.5, 1: 0.52}), Choice("x", 4, {1: 0.72, 2: 0.9})]
    assert Contender("GCN", "x", 0.5, choices).runs == {1: pytest.approx(0.62)}


def test_the_ranking_is_drawn_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(datasets=TWO)
    rows = table.rows
    figure = draw_ranking(rows, "GCN")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        one.method for one in ranked(rows)[0]
    ]
    monkeypatch.setattr(plotting, "save", lambda figure, folder, name: [folder / f"{name}.png"])
    files = draw(table.comparison, rows, tmp_path, "depth")
    assert files["", "GCN"] == [tmp_path / "depth-ranking-gcn.png"]
    text = report(table, "x", {key: paths[0].name for key, paths in files.items()})
    assert "](depth-ranking-gcn.png)" in text
    assert draw_ranking(rows[:1], "GCN") is None


def test_where_most_methods_were_not_run_nothing_is_chosen(tmp_path: Path) -> None:
    table = a_table(datasets=TWO)
    remove(table, lambda spec: spec.dataset == "pubmed" and spec.method != "APPNP")
    text = report(table, "reproduce depth")
    assert "| Cora, GCN | all features | any |" in text
    assert "| Pubmed, GCN | all features | any |" not in text
    assert "too little to compare" in text[text.index("## Pubmed, GCN") :]
    draw(table.comparison, table.rows, tmp_path, "depth")
    assert {path.stem for path in tmp_path.glob("*")} == {"depth-cora-gcn"}
