from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from depth_table import ORIGIN, a_table, line
from matplotlib.collections import LineCollection

from helpers import make_trial
from pairnorm.base import plotting
from pairnorm.compare import depth_analysis
from pairnorm.compare.depth import DepthCell, DepthComparison, DepthTable, Row
from pairnorm.compare.depth_analysis import Choice, draw, ranked
from pairnorm.data import csbm
from pairnorm.report.depth_report import advice, document, tables
from pairnorm.report.document import render_html, render_markdown
from pairnorm.train import Spec, Store
from pairnorm.train.result import Result

RESULTS = Path(__file__).parents[2] / "results"


def report(*arguments: Any) -> str:
    return render_markdown(document(*arguments))


def test_recommendation_is_selected_by_validation():
    text = report(a_table(), "reproduce depth")
    assert line(text, "| Cora, GCN | all features | any ")[3:] == [
        "APPNP, 16 layers", "0.905", "", "0.805 (none, 2 layers)", "0.705 (PN-SI, 2 layers)"
    ]  # fmt: skip
    assert line(text, "| Cora, GCN | training nodes' features alone | any ")[3:5] == [
        "PN-SI, 16 layers",
        "0.755",
    ]
    assert "## What was not run" not in text


def test_report_states_rank_of_pair_norm():
    text = report(a_table(), "reproduce depth")
    assert "No method is significantly more accurate than **PairNorm** in 2 of 4 situations" in text
    assert "Most often significantly more accurate: APPNP (2)." in text
    assert "PairNorm is significantly worse than no method: 2 layers with all features." in text


def test_ties_keep_the_order_of_the_table():
    accuracies = {"PN": 0.5, "GCNII": 0.8, "Skip": 0.8, "JK-max": 0.8, "APPNP": 0.8, "DropEdge": 0.8}
    comparison = DepthComparison(["cora"], ["GCN"], [*accuracies], depths=[4], missing=[0], runs=4)
    results = [
        Result(
            spec,
            make_trial(seed, accuracies[cell.method] + 0.01 * seed, accuracies[cell.method] + 0.01 * seed),
            ORIGIN,
        )
        for cell in comparison.cells()
        for spec in comparison.candidates(cell)
        for seed in range(4)
    ]
    text = report(DepthTable(comparison, results), "x")
    assert (
        "Most often significantly more accurate: GCNII (1), Skip (1), JK-max (1), APPNP (1), DropEdge (1)."
        in text
    )


def test_ranks_include_methods_of_all_situations_only():
    standings, situations = ranked(a_table().rows)
    assert len(situations) == 4
    assert {one.method: one.rank for one in standings} == {"none": 2.5, "PN-SI": 1.75, "APPNP": 1.75}
    fewer, situations = ranked(a_table(without=("APPNP", 16)).rows)
    assert len(situations) == 4
    assert {one.method: one.rank for one in fewer} == {"none": 1.75, "PN-SI": 1.25}


def test_pending_runs_are_listed():
    text = report(a_table(without=("APPNP", 16)), "reproduce depth")
    assert "## What was not run\n\n- Cora, GCN: APPNP (16 layers)\n\n## Provenance\n\n" in text
    nothing = report(DepthTable(DepthComparison(["cora", "pubmed"], ["SGC"]), []), "reproduce depth")
    assert nothing.endswith("- Cora, SGC: everything\n- Pubmed, SGC: everything\n")


def test_provenance_counts_only_trials_behind_rows():
    """Bug: trials of settings that no row has were counted, with their commits and devices."""
    text = report(a_table(), "compare")
    assert "84 trials of 1 commits are behind the rows, on cpu (84)" in text.replace(ORIGIN.device, "cpu")
    assert "The store has 108 others" in text


def test_advice_follows_validation_and_states_an_interval():
    table = a_table()
    with_all, without = sorted(advice(table.comparison, table.rows))
    assert with_all == (
        "Cora, GCN, all features: Use APPNP, 16 layers: 90.5% of the test nodes correct, 80.5% without a "
        "method at 2 layers; a significant difference (95% interval +8.2 to +11.8 points)."
    )
    assert "Use PN-SI, 16 layers: 75.5%" in without
    shallow = [row for row in table.rows if row["missing_percent"] == 0 and row["depth"] == 2]
    (alone,) = advice(table.comparison, shallow)
    assert alone.startswith("Use no method and 2 layers: 80.5% of the test nodes correct.")

    def preferring(method: str) -> str:
        rows = [{**row, "validation_score": 0.9} if row["method"] == method else row for row in shallow]
        (sentence,) = advice(table.comparison, rows)
        return sentence

    assert preferring("APPNP").startswith("Use APPNP, 2 layers: 79.5%")
    assert "no significant difference (95% interval -2.8 to +0.8 points)" in preferring("APPNP")
    # Test accuracy never overrides validation accuracy.
    assert preferring("PN-SI").startswith("Use PN-SI, 2 layers: 70.5%")
    assert preferring("PN-SI").endswith("although it is worse on these nodes.")


def test_terminal_tables():
    table = a_table(missing=[0])
    ((heading, (headings, lines)),) = tables(table.comparison, table.rows)
    assert heading == "Cora, GCN, all features"
    assert headings == ["Method", "2 layers", "16 layers"]
    assert lines[0] == ["none", "0.805 ± 0.006 (8.0)", "0.305 ± 0.006 (3.0)"]


@pytest.mark.parametrize("missing", [[0], [0, 100]])
def test_figures_have_accuracy_and_rank_of_all_methods(tmp_path, monkeypatch, missing):
    drawn = []
    monkeypatch.setattr(plotting, "save", lambda figure, folder, name: drawn.append((name, figure)) or [])
    table = a_table(missing=missing)
    draw(table.comparison, table.rows, tmp_path, "depth")
    ((name, figure),) = drawn
    assert name == "depth"
    assert len(figure.axes) == 2 * len(missing)
    for axis in figure.axes:
        assert len(axis.lines) == 3
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["2", "16"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == ["APPNP", "PN-SI", "none"]
    by_label = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert by_label["APPNP"] == pytest.approx([0.795, 0.905])


def test_figures_have_no_accuracy_above_one_and_no_single_points(tmp_path, monkeypatch):
    """Bug: intervals went up to 1.1; all methods at one depth and 0.25 were one point."""
    drawn = {}
    monkeypatch.setattr(plotting, "save", lambda figure, folder, name: drawn.setdefault(name, figure) and [])
    table = a_table(datasets=["cora", "pubmed"], missing=[0])
    rows: list[Row] = [{**row, "scores": {0: 1.0, 1: 1.0, 2: 0.3}} for row in table.rows]
    draw(table.comparison, rows, tmp_path, "depth")
    (ends,) = {
        (segment[:, 1].min(), segment[:, 1].max())
        for bars in drawn["depth-cora-gcn"].axes[0].collections
        if isinstance(bars, LineCollection)
        for segment in bars.get_segments()
    }
    assert ends == (0, 1)
    drawn.clear()
    draw(table.comparison, [row for row in rows if row["depth"] == 2], tmp_path, "depth")
    assert not drawn


def test_user_graph_keeps_its_name():
    graph = csbm(100, classes=2, seed=0).replace(name="my|graph")
    comparison = DepthComparison(
        ["graph@1"], ["SGC"], ["none"], depths=[2], missing=[0], graphs={"graph@1": graph}
    )
    assert "my\\|graph, SGC" in report(DepthTable(comparison, []), "compare")


def test_incomplete_depth_is_not_recommended():
    """Bug: the report left it out, and the last line of ``compare`` recommended it."""
    table = a_table(missing=[0])
    rows = [row for row in table.rows if row["depth"] == 2 or row["method"] == "APPNP"]
    assert {row["depth"] for row in rows} == {2, 16}
    (sentence,) = advice(table.comparison, rows)
    assert "2 layers" in sentence
    assert "16 layers" not in sentence


def diverge(table: DepthTable, depth: int, **changes: float) -> None:
    cell = DepthCell("cora", "GCN", "none", 0, depth)
    chosen = table.index.chosen(table.comparison, cell)
    assert chosen is not None
    for trial in chosen.best.trials:
        for name, value in {"diverged": True, **changes}.items():
            object.__setattr__(trial, name, value)


def test_diverged_runs_are_counted():
    table = a_table(missing=[0])
    diverge(table, 2)
    assert "| none | **0.805 ± 0.006 (4 diverged)** |" in report(table, "x")
    assert table.csv().splitlines()[1].endswith(",4,")


def test_fully_diverged_cell_has_no_number_and_no_point(tmp_path, monkeypatch):
    drawn: list[Any] = []
    monkeypatch.setattr(plotting, "save", lambda figure, folder, name: drawn.append(figure) or [])
    table = a_table(missing=[0])
    diverge(table, 16, test_accuracy=0.0)
    assert "| none | **0.805 ± 0.006** | diverged |" in report(table, "x")
    draw(table.comparison, table.rows, tmp_path, "depth")
    for axis in drawn[0].axes:
        (line,) = [line for line in axis.lines if line.get_label() == "none"]
        assert [isnan(value) for value in line.get_ydata()] == [False, True]


TWO = ["cora", "pubmed"]


def remove(table: DepthTable, applies: Callable[[Spec], bool]) -> None:
    for spec in [spec for spec in table.index._trials if applies(spec)]:
        del table.index._trials[spec]


def test_situations_are_means_over_graphs():
    text = report(a_table(datasets=TWO), "reproduce depth")
    assert line(text, "| few labels | all features ")[2:] == [
        "2", "GCN, APPNP, 16 layers", "0.855", "", "0.755 (GCN, none, 2 layers)",
        "0.655 (GCN, PN-SI, 2 layers)",
    ]  # fmt: skip
    deep = line(text, "| very deep: 16 layers or more | training nodes' features alone ")
    assert deep[2:5] == ["2", "GCN, PN-SI, 16 layers", "0.705"]
    assert "a larger graph" not in text  # there is one of them
    assert "By situation" not in report(a_table(), "reproduce depth")


def test_method_missing_on_a_graph_is_not_recommended():
    """With three graphs, of which one has no APPNP."""
    table = a_table(datasets=[*TWO, "coauthor-cs"])
    remove(table, lambda spec: spec.dataset == "coauthor-cs" and spec.method == "APPNP")
    text = report(table, "reproduce depth")
    assert line(text, "| few labels | all features ")[2:4] == ["3", "GCN, none, 2 layers"]
    assert line(text, "| a larger graph | all features ")[2:4] == ["2", "GCN, none, 2 layers"]


def test_rank_intervals_are_over_graphs():
    """Where two graphs say the opposite, another may be like either."""
    rows = a_table(datasets=TWO, missing=[100]).rows
    deep: list[dict[str, Any]] = [row for row in rows if row["depth"] == 16]
    assert [(one.low, one.rank, one.high) for one in ranked(deep)[0]] == [(n, n, n) for n in (1, 2, 3)]
    for row in deep:
        if row["dataset"] == "pubmed":
            row["scores"] = {seed: 1 - one for seed, one in row["scores"].items()}
    result = {one.method: (one.low, one.rank, one.high) for one in ranked(deep)[0]}
    assert result == {"PN-SI": (1, 2, 3), "APPNP": (2, 2, 2), "none": (1, 2, 3)}


def test_runs_are_averaged_over_graphs_before_they_are_paired():
    mean = Choice.mean([Choice("x", (2,), 0.5, {0: 0.5, 1: 0.52}), Choice("x", (4,), 0.7, {1: 0.72, 2: 0.9})])
    assert mean.scores == {1: pytest.approx(0.62)}
    assert str(mean) == "x, 2 to 4 layers"


def test_mostly_pending_graph_gets_no_recommendation(tmp_path):
    table = a_table(datasets=TWO)
    remove(table, lambda spec: spec.dataset == "pubmed" and spec.method != "APPNP")
    text = report(table, "reproduce depth")
    assert "| Cora, GCN | all features | any |" in text
    assert "| Pubmed, GCN | all features | any |" not in text
    assert "too little to compare" in text[text.index("## Pubmed, GCN") :]
    draw(table.comparison, table.rows, tmp_path, "depth")
    assert {path.stem for path in tmp_path.glob("*")} == {"depth-cora-gcn"}


def test_report_renders_as_html():
    page = render_html(document(a_table(datasets=TWO), "reproduce depth"))
    assert "<summary>Ranking of GCN over 2 graphs</summary>" in page
    assert "<strong>0.805 ± 0.006</strong>" in page


def test_committed_store_gives_committed_report(monkeypatch):
    monkeypatch.setattr(plotting, "save", lambda figure, folder, name: [folder / f"{name}.png"])
    monkeypatch.setattr(depth_analysis, "_depth_figure", lambda rows, name: None)  # only its name is compared
    comparison = DepthComparison()
    with Store(RESULTS / "depth.sqlite", read_only=True) as store:
        table = DepthTable(comparison, store.results())
    figures = draw(comparison, table.rows, Path("figures"), "depth")
    text = report(table, "reproduce depth", {key: str(paths[0]) for key, paths in figures.items()})
    assert text == (RESULTS / "depth.md").read_text(encoding="utf-8")
    assert table.csv() == (RESULTS / "depth.csv").read_text(encoding="utf-8")


def test_pages_recommend_selected_method_for_minesweeper():
    """Bug: a page recommended logistic regression, which has an AUC of 0.50 on Minesweeper."""
    [row] = [
        line.split(" | ")
        for line in (RESULTS / "depth.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| Minesweeper, GCN | all features | any |")
    ]
    method, score = row[3].split(",")[0], row[4]
    page = (RESULTS.parent / "docs/which-method.md").read_text(encoding="utf-8")
    [recommended] = [line for line in page.splitlines() if line.startswith("| neighbors tend to differ")]
    assert f"`{method}` has an AUC of {score}" in recommended
    assert f"`{method}`" in (RESULTS.parent / "README.md").read_text(encoding="utf-8")
