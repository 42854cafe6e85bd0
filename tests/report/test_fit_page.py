import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from pairnorm.classify import Candidate, suggest_depth
from pairnorm.classify.explanation import Explanation, SmoothingMeasures
from pairnorm.classify.findings import Baseline, Findings
from pairnorm.classify.holdout import incomplete_nodes
from pairnorm.classify.predictions import Calibration
from pairnorm.data import csbm
from pairnorm.report import node_table as module
from pairnorm.report.document import Document, Nodes, Threshold, render_html, render_markdown
from pairnorm.report.fit_report import diagnosis_page, fit_page

NODES = 600
NAMES = ("<script>alert(1)</script>", "=cmd|'/c calc'!A1", "**bold** [x](javascript:alert(1))", "<img src=x>")
CLASSES = ("<b>bold</b>", "$x_1$ & <script>alert(2)</script>", "**stars**")


@pytest.fixture(scope="module")
def findings() -> Findings:
    """Synthetic findings without training, with names that are harmful unless escaped."""
    random = np.random.default_rng(0)
    graph = csbm(NODES, classes=3, seed=0)
    truth, part = graph.labels.clone(), torch.from_numpy(random.integers(0, 5, NODES))
    probabilities = np.exp(random.normal(size=(NODES, 3)) + 2 * np.eye(3)[truth.numpy()])
    probabilities /= probabilities.sum(1, keepdims=True)
    graph = graph.replace(
        labels=torch.where(part < 3, truth, -1),
        train=part == 0,
        validation=part == 1,
        test=part == 2,
        missing=torch.from_numpy(random.random(NODES) < 0.4),
        node_names=np.array([*NAMES, *(f"node {number}" for number in range(len(NAMES), NODES))]),
        class_names=CLASSES,
        name="<i>mine</i>",
    )
    candidates = [
        Candidate("SGC", norm, depth, 1.0, 0.6 - 0.01 * depth, 1.0)
        for norm in ("none", "PN")
        for depth in (1, 2, 4)
    ]
    smoothing = [
        SmoothingMeasures(norm, depth, 4 / (depth + 1), 2.0, 5.0)
        for norm in ("none", "PN")
        for depth in (0, 2)
    ]
    scaling = SimpleNamespace(sentence="as they are")
    classifier: Any = SimpleNamespace(
        best_=candidates[3], search_=candidates, adjacency="rw", scaling_=scaling
    )
    classifier.decide = lambda probabilities: probabilities.argmax(1)
    classifier.threshold = lambda number: 0.5
    classifier.refit, classifier.probabilities_ = False, probabilities
    classifier.task_ = SimpleNamespace(fold_masks=(), graph=graph)
    classifier.target_, classifier.held_out_, classifier.metric, classifier.time = None, None, "loss", None
    classifier.cross_fitted_ = None
    classifier.parts_ = [(1, candidates[3])]
    held, truth_ = graph.test.numpy(), graph.labels.numpy()
    classifier.calibration_ = Calibration.of(probabilities[held], truth_[held], incomplete_nodes(graph)[held])
    reasons = [np.array(["node", "neighbor"]), np.array(["<u>age</u>", NAMES[0]]), np.array([0.5, -0.25])]
    classifier.explain_nodes = lambda graph, predicted, nodes, top: Explanation(
        nodes.repeat(2), *(np.tile(column, len(nodes)) for column in reasons), 1.0
    )
    constant = np.full(probabilities.shape, 1 / probabilities.shape[1], dtype=np.float32)
    baseline = Baseline("most frequent class", candidates[0], 1, np.zeros(NODES, dtype=np.int64), constant)
    result = probabilities.astype(np.float32)
    return Findings(classifier, graph, result, [baseline], {}, smoothing)


def block(document: Document, kind: type) -> Any:
    [result] = [one for section in document.sections for one in section.blocks if isinstance(one, kind)]
    return result


def test_hops_and_neighbors_equal_networkx(findings):
    graph = findings.graph
    known: networkx.Graph = networkx.Graph(graph.edge_index.T.tolist())
    known.add_nodes_from(range(NODES))
    columns = block(fit_page(findings), Nodes).columns
    for name, sources in (("featureHops", ~graph.missing_vectors), ("labelHops", graph.train)):
        hops = networkx.multi_source_dijkstra_path_length(known, set(sources.nonzero()[:, 0].tolist()))
        assert columns[name] == [hops.get(node, -1) for node in range(NODES)]
    labels = graph.labels.tolist()
    for node in range(NODES):
        pairs = np.reshape(columns["neighbors"][node], (-1, 2)).tolist()
        around = [labels[other] for other in known[node] if labels[other] >= 0]
        assert dict(map(tuple, pairs)) == {label: around.count(label) for label in set(around)}
        assert columns["degree"][node] == len(known[node])


def test_reasons_are_encoded_as_names_and_hundredths(findings, monkeypatch):
    monkeypatch.setattr(module, "MAX_EXPLAINED", 10)
    columns = block(fit_page(findings), Nodes).columns
    assert columns["reasonNames"] == [("node", "<u>age</u>"), ("neighbor", NAMES[0])]
    explained = [node for node, reasons in enumerate(columns["reasons"]) if reasons == [0, 50, 1, -25]]
    assert len(explained) == 10
    assert max(columns["confidence"][node] for node in explained) <= sorted(columns["confidence"])[10]


def test_probabilities_are_sorted_thousandths(findings):
    columns = block(fit_page(findings), Nodes).columns
    for node in range(0, NODES, 37):
        pairs = np.reshape(columns["top"][node], (-1, 2))
        np.testing.assert_allclose(pairs[:, 1] / 1000, findings.probabilities[node, pairs[:, 0]], atol=1.1e-3)
        assert pairs[0, 0] == columns["predicted"][node] == findings.predicted[node]
        assert (np.diff(pairs[:, 1]) <= 0).all()


def test_large_graph_shows_most_uncertain_nodes(findings, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 50)
    nodes = block(fit_page(findings), Nodes)
    least = np.sort(findings.probabilities.max(1))[:50]
    assert max(nodes.columns["confidence"]) / 1000 <= least[-1]
    assert (len(nodes.columns["id"]), nodes.total) == (50, NODES)


def test_threshold_counts_equal_probabilities(findings):
    slider = block(fit_page(findings), Threshold)
    confidence, unknown = findings.probabilities.max(1), ~findings.graph.labeled.numpy()
    sure, test = confidence >= 0.8, findings.test
    right = findings.predicted == findings.graph.labels.numpy()
    trusted = int((unknown & sure).sum())
    text = slider.sentences[80]
    assert f"{trusted} to trust and {int(unknown.sum()) - trusted} to review" in text
    assert f"Of {int((test & sure).sum())} held-out nodes" in text
    assert f"{100 * right[test & sure].mean():.1f}% are right" in text


def test_no_held_out_nodes_give_no_guarantee(findings):
    graph = findings.graph
    document = fit_page(replace(findings, graph=graph.replace(test=torch.zeros_like(graph.test))))
    titles = [section.title for section in document.sections]
    assert "Prediction sets" not in titles
    assert "Accuracy" not in titles
    assert document.cards[0][1] == "Not known"
    assert len(render_html(document)) > 1000


def test_diagnosis_page_marks_the_suggested_depth(findings):
    suggestion = suggest_depth(findings.graph)
    document = diagnosis_page(findings.graph, findings.smoothing, suggestion)
    assert document.cards[0][1] == f"{suggestion.depth}"
    charts = [one for one in document.sections[0].blocks if one.kind == "chart"]
    assert [chart.layout["shapes"][0]["x0"] for chart in charts] == [suggestion.depth] * 3
    assert charts[0].traces[0]["y"] == pytest.approx([100, 100 / 3])


@pytest.fixture
def view(findings: Findings, open_page: Callable[..., Any], tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(render_html(fit_page(findings, [f"no node is of class {CLASSES[1]}"])), encoding="utf-8")
    return open_page(path)


def rows(view: Any) -> list[list[str]]:
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    cells: list[list[str]] = view.eval_on_selector_all(".view tbody tr:not(.spacer)", script)
    return cells


def test_node_table_searches_sorts_and_explains(findings, view):
    assert view.text_content(".nodes .note") == f"{NODES} of {NODES} nodes"
    shown = rows(view)
    assert len(shown) < 60, "only what is in view is drawn"
    confidence = [float(row[2].rstrip("%")) for row in shown]
    assert confidence == sorted(confidence)
    view.click(".view th button >> text=Node")
    assert rows(view)[0][0] in NAMES
    view.fill(".filters input", "<script>")
    assert [row[0] for row in rows(view)] == [NAMES[0]]
    view.click(".view tbody tr:not(.spacer)")
    likeliest = CLASSES[findings.predicted[0]]
    assert view.text_content(".why h3") == f"{NAMES[0]}: {likeliest}"
    assert view.locator(".bar").count() == 3
    assert "<u>age</u> (+0.50)" in view.text_content(".why p:last-child")
    assert f"through the neighbors {NAMES[0]} (-25%)" in view.text_content(".why p:last-child")
    view.fill(".filters input", "node 7")
    view.focus(".view")
    view.keyboard.press("Enter")
    assert view.text_content(".why h3").startswith(rows(view)[0][0])
    view.keyboard.press("ArrowDown")
    assert view.text_content(".why h3").startswith(rows(view)[1][0])


def test_cards_have_three_numbers_with_intervals(findings):
    titles = [title for title, _, _ in fit_page(findings).cards]
    assert titles == ["Accuracy", "Gain over the best baseline", "Labels to review"]
    for _, _, meaning in fit_page(findings).cards[:2]:
        assert meaning.startswith("95% interval ")
        assert len(meaning.split()) < 20
    share = findings.graph.labels[findings.graph.test].bincount().max() / findings.graph.test.sum()
    assert f"{100 * share:.1f}% have the most frequent class" in fit_page(findings).cards[0][2]


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_page_prints_on_at_most_three_sheets(view, tmp_path, width):
    view.set_viewport_size({"width": width, "height": 900})
    view.pdf(path=tmp_path / "page.pdf", format="A4")
    assert len(re.findall(rb"/Type\s*/Page[^s]", (tmp_path / "page.pdf").read_bytes())) <= 3


def test_threshold_and_error_rate_filter_the_table(findings, view):
    unknown = ~findings.graph.labeled.numpy()
    view.select_option(".filters select >> nth=0", label="to review (no known label, below the threshold)")
    for percent in (90, 60):
        view.evaluate(
            "value => { const slider = document.querySelector('input[type=range]');"
            "slider.value = value; slider.dispatchEvent(new Event('input')); }",
            percent,
        )
        expected = int((unknown & (findings.probabilities.max(1) < percent / 100)).sum())
        assert view.text_content(".nodes .note") == f"{expected} of {NODES} nodes"
        assert f"{expected} to review" in view.text_content(".answer")
    view.select_option(".filters select >> nth=0", label="prediction set: one label")
    counts = []
    for rate in ("1%", "30%"):
        view.select_option(".control select", label=rate)
        counts.append(int(view.text_content(".nodes .note").split(" ")[0]))
        assert all(" or " not in row[3] for row in rows(view))
    assert counts[0] < counts[1]


def test_scrolling_loads_other_rows(view):
    first = rows(view)[0]
    view.evaluate("document.querySelector('.view').scrollTop = 10000")
    view.wait_for_function(
        "first => !document.querySelector('.view').textContent.includes(first)", arg=first[0]
    )
    assert 20 < len(rows(view)) < 60


def test_all_columns_and_selected_row_are_visible(view):
    for width in (1100, 1400):
        view.set_viewport_size({"width": width, "height": 900})
        seen, wide = view.eval_on_selector(".view", "view => [view.clientWidth, view.scrollWidth]")
        assert wide == seen
        cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
        assert view.eval_on_selector_all(".view thead th", cut) == []
    view.focus(".view")
    for _ in range(3):
        view.keyboard.press("PageDown")
    end, bottom = view.evaluate(
        "['.view tr.chosen', '.view'].map(one => document.querySelector(one).getBoundingClientRect().bottom)"
    )
    assert end <= bottom


def test_page_shows_labels_of_the_delivered_model(findings):
    """Labels are those of the delivered model, accuracies those of the evaluation model."""
    probabilities = findings.probabilities.copy()
    changed = np.flatnonzero(findings.nodes_to_label)[:7]
    probabilities[changed] = np.eye(3)[(findings.predicted[changed] + 1) % 3]
    again = SimpleNamespace(**vars(findings.classifier) | {"refit": True, "probabilities_": probabilities})
    page = fit_page(replace(findings, classifier=again))
    columns = block(page, Nodes).columns
    assert columns["predicted"] == probabilities.argmax(1).tolist()
    assert columns["evaluated"] == findings.predicted.tolist()
    assert "Accuracies are those of the evaluation model" in render_html(page)
    assert page.cards[0] == fit_page(findings).cards[0]


def test_markdown_has_the_sections_of_the_page(findings, tmp_path):
    page = fit_page(findings, ["a | note"])
    text = render_markdown(page, tmp_path)
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == [section.title for section in page.sections]
    assert page.cards[0][1] in text
    assert "A \\| note" in text
    assert "<script>" not in text
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"smoothing.png", "confusion.png", "comparison.png", "depth.png"}
    assert all(f"({name})" in text for name in names)


def test_download_has_the_nodes_to_review(findings, view):
    with view.expect_download() as started:
        view.click("#download")
    lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    unknown = ~findings.graph.labeled.numpy()
    review = unknown & (findings.probabilities.max(1) < 0.9)
    assert lines[0] == "id,predicted,confidence"
    assert len(lines) == 1 + int(review.sum())


def test_few_held_out_nodes_are_marked_too_few(findings):
    test = findings.graph.test & (findings.graph.test.cumsum(0) <= 1)
    calibration = Calibration(*(part[:1] for part in findings.classifier.calibration_))
    classifier = SimpleNamespace(**vars(findings.classifier) | {"calibration_": calibration})
    one = replace(findings, classifier=classifier, graph=findings.graph.replace(test=test))
    page = fit_page(one)
    right = int(one.predicted[test.numpy()][0] == int(one.graph.labels[test][0]))
    assert page.cards[0][1] == f"{right} of 1"
    text = render_html(page)
    assert "1 held-out nodes" not in text
    expected = f"Of 1 held-out node with at least this confidence, {right} {'is' if right else 'are'} right."
    assert block(page, Threshold).sentences[0].endswith(expected)
    assert "too few" in text
    assert "too few" not in render_html(fit_page(findings))
