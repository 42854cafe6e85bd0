"""``pairnorm diagnose``: how quickly propagation washes out a graph's features, without any training."""

from argparse import Namespace
from itertools import count
from typing import Any

from pairnorm.base.errors import one_of
from pairnorm.base.files import whole_file
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import ENDS, FILES, add_command, files_of, option, read_graph, refuse_inputs

FORMS = (".png", ".pdf", ".svg", ".html")


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = "pairnorm diagnose --nodes customers.csv --edges payments.csv --label risk"
    parser = add_command(commands, "diagnose --nodes FILE --edges FILE", run, example)
    out = option("FILE", "File for the figure: .png, .pdf, .svg, or .html for a page.", "diagnosis.png")
    parser.group("Files", *FILES, out=out)
    parser.group("Columns", "id", "label", "classes", *ENDS, "categorical", "ignore", "keep")
    parser.group("Model", "scaling")


def run(options: Namespace) -> None:
    """Show how quickly nodes become alike, and suggest a depth.

    By propagation, with and without PairNorm; nothing is trained. Row-diff is the
    mean distance between nodes, col-diff that between features; the effective rank
    counts the directions that are left.
    """
    from pairnorm.classify import Scaling, smoothing, suggest_depth
    from pairnorm.classify.candidates.base import check_size
    from pairnorm.classify.diagnosis import DEPTHS, HEADINGS, measured
    from pairnorm.classify.scaling import check_features
    from pairnorm.report import render
    from pairnorm.report.fit_figures import draw_smoothing
    from pairnorm.report.fit_page import diagnosis_page

    out, step = options.out, count(1)
    form = one_of("ending of --out", out.suffix.lower(), FORMS).removeprefix(".")
    refuse_inputs(out, *files_of(options))
    with whole_file(out) as file:
        graph = read_graph(options).with_structure()
        check_features(graph)
        check_size(graph)
        scaled = Scaling.of(graph, options.scaling)
        with console.progress() as tell:
            tell("Propagating", 0, len(DEPTHS))
            rows = smoothing(
                graph, scaled(graph), tick=lambda what: tell("Propagating", next(step), len(DEPTHS), what)
            )
        suggestion = suggest_depth(graph)
        if form == "html":
            page = render(diagnosis_page(graph, rows, suggestion))
            file.write_text(page, encoding="utf-8")
        else:
            draw_smoothing(rows, suggestion.depth).savefig(file, format=form, dpi=150)
    console.table(HEADINGS, measured(rows))
    console.show(f"Row-diff and col-diff: share of depth 0. Features: {safe(scaled.sentence)}.")
    if suggestion.unreachable:
        console.show(
            f"[yellow]Note:[/] {suggestion.unreachable:,} of {suggestion.lacking:,} nodes without features "
            "have no path to one that has some; no depth reaches them."
        )
    console.show(f"\n[bold]Suggested depth: {suggestion.depth}.[/] {safe(suggestion.reason)}")
    console.show(f"Wrote {safe(out)}")
    console.show(
        f"\nNext: [bold]pairnorm fit --nodes {safe(options.nodes[0])} --edges … --label … --out run[/] tries "
        "all depths and chooses by validation."
    )
