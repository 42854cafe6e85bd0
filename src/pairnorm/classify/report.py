"""The report of a run, in Markdown, with its figures beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from pairnorm.classify.figures import draw_confusion, draw_depths, draw_rivals, draw_smoothing
from pairnorm.classify.findings import Findings
from pairnorm.classify.scores import Scores
from pairnorm.classify.smoothing import HEADINGS, measured
from pairnorm.data.describe import homophily

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.md"
FIGURES = ("smoothing.png", "confusion.png", "comparison.png", "depth.png")


def write_report(findings: Findings, folder: Path, notes: Sequence[str] = ()) -> None:
    """Write ``report.md`` and its figures.

    Args:
        findings: what there is to say.
        folder: where to.
        notes: what else the user should know, a sentence each.
    """
    figures: dict[str, Figure] = {}
    if findings.smoothing:
        figures["smoothing.png"] = draw_smoothing(findings.smoothing, findings.classifier.best_.depth)
    if findings.test.any():
        scores = findings.scores(findings.predicted, findings.test)
        figures["confusion.png"] = draw_confusion(scores, findings.graph.class_names)
        figures["comparison.png"] = draw_rivals(findings.rivals())
    if _chosen(findings):
        figures["depth.png"] = draw_depths(findings.classifier.search_, findings.classifier.best_)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=150)
    text = "\n\n".join(_sections(findings, notes)) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")


def _chosen(findings: Findings) -> bool:
    return not isnan(findings.classifier.best_.validation_accuracy)


def _sections(findings: Findings, notes: Sequence[str]) -> Iterator[str]:
    yield f"# Labels for {findings.graph.name}"
    yield findings.verdict()
    yield _about(findings)
    if notes:
        yield "\n".join(f"- {note}" for note in notes)
    if findings.test.any():
        yield from _accuracy(findings)
        yield "## Against simpler methods"
        yield _table(
            ["", "accuracy", "95% interval", "balanced accuracy", "macro F1"],
            [[name, *_numbers(scores)] for name, scores in findings.rivals().items()],
        )
        yield "All were fitted on the same training nodes, and tuned by the same validation nodes."
        yield "![Accuracy of the model and of simpler methods](comparison.png)"
    if _chosen(findings):
        yield from _depth(findings)
    if findings.smoothing:
        yield from _smoothing(findings)


def _about(findings: Findings) -> str:
    graph, classifier, suggestion = findings.graph, findings.classifier, findings.suggestion
    sizes = [f"{int(mask.sum()):,} {part}" for part, mask in graph.split._asdict().items()]
    missing = int(graph.missing_vectors.sum())
    rows = [
        ["nodes", f"{graph.num_nodes:,}, {graph.num_edges:,} edges"],
        ["classes", f"{graph.num_classes}: {', '.join(graph.class_names[:12])}"],
        ["labelled", f"{int(graph.labelled.sum()):,} nodes: {', '.join(sizes)}"],
        ["homophily", homophily(graph)],
        ["without features", f"{missing:,} nodes ({_percent(missing / graph.num_nodes)})"],
    ]
    if suggestion.unreachable:
        what = "of those have no path to a node with features: all of them get the same guess"
        rows.append(["out of reach", f"{suggestion.unreachable:,} {what}"])
    rows += [
        ["features", f"{graph.num_features:,}; {classifier.scaling_.sentence}"],
        ["model", f"{classifier.best_.name}, adjacency {classifier.adjacency}"],
    ]
    return _table(["", ""], rows)


def _accuracy(findings: Findings) -> Iterator[str]:
    yield "## How often it is right"
    yield (
        "On held-out nodes, whose labels took no part in training or in choosing the model. Balanced "
        "accuracy (the mean over classes) and macro F1 count small classes as much as large ones."
    )
    groups = findings.groups()
    yield _table(
        ["", "nodes", "accuracy", "95% interval", "balanced accuracy", "macro F1"],
        [[name, f"{scores.count:,}", *_numbers(scores)] for name, scores in groups.items()],
    )
    scores = groups["all held-out nodes"]
    yield "By class:"
    columns = zip(scores.confusion.sum(1), scores.recall, scores.precision, scores.f1, strict=True)
    yield _table(
        ["class", "nodes", "found (recall)", "right when said (precision)", "F1"],
        [
            [name, f"{count:,}", *map(_percent, numbers)]
            for name, (count, *numbers) in zip(findings.graph.class_names, columns, strict=True)
        ],
    )
    yield "![Confusion matrix](confusion.png)"
    sure, right = findings.sureness()
    yield (
        f"It is at least 90% sure of {sure:,} held-out nodes, and right on {_percent(right)} of them. (How "
        f"sure to be was learnt from validation nodes: temperature {findings.classifier.temperature_:.2g}.)"
    )


def _depth(findings: Findings) -> Iterator[str]:
    best, tried = findings.classifier.best_, findings.classifier.search_
    yield "## How deep"
    yield (
        f"Of {len(tried):,} models tried, {best.name} was right most often on the validation nodes "
        f"({_percent(best.validation_accuracy)}). Of each depth the best scale is drawn."
    )
    depths = {candidate.depth for candidate in tried if candidate.model == best.model}
    if len(depths) > 1 and best.depth == max(depths):
        yield f"No {best.model} was tried with more layers; --depth tries others."
    if {("SGC", "none"), ("SGC", "PN")} <= {(candidate.model, candidate.norm) for candidate in tried}:
        yield (
            "For SGC, PairNorm centres and rescales what propagation has shrunk. A plain SGC could "
            "make up for that with a regularisation of its own at every depth; with these scales it cannot."
        )
    yield "![Validation accuracy against depth](depth.png)"


def _smoothing(findings: Findings) -> Iterator[str]:
    yield "## What depth does to the features"
    yield (
        "Repeated averaging makes nodes alike (row-diff falls) and features alike (col-diff falls). PairNorm "
        "keeps the total squared distance between nodes where it was. Measured on the scaled features, "
        "propagated without any training; row-diff and col-diff as a share of depth 0."
    )
    yield "![Oversmoothing measures against depth](smoothing.png)"
    yield _table(HEADINGS, measured(findings.smoothing))


def _numbers(scores: Scores) -> list[str]:
    low, high = scores.interval
    return [
        _percent(scores.accuracy),
        f"{100 * low:.1f} to {100 * high:.1f}%",
        _percent(scores.balanced_accuracy),
        _percent(scores.macro_f1),
    ]


def _percent(value: float) -> str:
    return "–" if isnan(value) else f"{100 * value:.1f}%"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; numbers to the right."""
    rule = [":--", *["--:" if len(header) > 2 else ":--"] * (len(header) - 1)]
    lines = [header, rule, *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
