import csv
import re
from pathlib import Path

import pytest
from synthetic import fill, narrowed

from pairnorm.paper.experiments import Selection
from pairnorm.report.paper_report import write_report

SELECTION = Selection(datasets=("cora",), runs=2, epochs=3, depths=(2, 4), missing=(0, 100))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    store = fill(folder / "paper.sqlite", narrowed(SELECTION))
    (folder / "out").mkdir()
    (folder / "out" / "notes.md").write_text("## Explained\n\nSee [scaling](#how-features-are-scaled).\n")
    write_report(store, folder / "out", SELECTION)
    return folder / "out"


def test_paper_page_in_a_browser(written, open_page):
    view = open_page(written / "report.html")
    titles = view.eval_on_selector_all("main > section > h2", "found => found.map(one => one.textContent)")
    for title in ("Where we differ from the paper", "Claim by claim", "Explained", "How features are scaled"):
        assert title in titles
    assert view.locator("a[href='#how-features-are-scaled']").count() == 2
    assert view.locator("#how-features-are-scaled").count() == 1

    assert view.locator("main > .lead li").count() == 5
    assert titles[0] == "Does PairNorm help?"
    table = view.locator("main > section").nth(1)
    with (written / "table1.csv").open() as file:
        expected = {(row["method"], row["missing_percent"]): row for row in csv.DictReader(file)}
    cells = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert [row[1] for row in cells] == ["SGC", "paper", "SGC-PN", "paper"]
    for ours, theirs in zip(cells[::2], cells[1::2], strict=True):
        for percent, number, reported in zip(("0", "100"), ours[2:], theirs[2:], strict=True):
            row = expected[ours[1], percent]
            [(accuracy, layers)] = re.findall(r"^([\d.]+) .* @ (\d+)$", number)
            assert float(accuracy) == pytest.approx(float(row["accuracy"]), abs=6e-4)
            paper, difference = (float(part) for part in reported.replace(" @ ", ", ").split(", ")[::2])
            assert (layers, paper) == (row["layers"], float(row["paper_accuracy"]))
            assert difference == pytest.approx(float(row["accuracy"]) - paper, abs=6e-4)

    claims = view.locator("#claim-by-claim")
    claims.locator("input").fill("only")
    assert all("only" in text for text in claims.locator("tbody tr:visible").all_text_contents())
    details = claims.locator("details").first
    details.locator("summary").click()
    assert details.locator("table").is_visible()

    figures = view.locator("#figures img")
    assert figures.count() == len([*(written / "figures").glob("*.png")]) - 1  # the gains are a chart
    assert figures.first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 600
