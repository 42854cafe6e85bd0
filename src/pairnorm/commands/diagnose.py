"""``pairnorm diagnose``: how quickly propagation washes out a graph's features, without any training."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pairnorm.commands.console import console
from pairnorm.commands.options import (
    Categorical,
    Delimiter,
    Edges,
    Id,
    Ignore,
    Nodes,
    Source,
    Target,
    Weight,
    read_graph,
    show_graph,
    small_table,
    steps,
)
from pairnorm.errors import one_of
from pairnorm.writing import whole_file

FORMS = (".png", ".pdf", ".svg")
EXAMPLE = "Example: [bold]pairnorm diagnose --nodes customers.csv --edges payments.csv --label risk[/]"


def diagnose(
    nodes: Nodes,
    edges: Edges = None,
    label: Annotated[
        str | None, typer.Option(help="Column of nodes with classes, if any.", rich_help_panel="Columns")
    ] = None,
    out: Annotated[Path, typer.Option(help="File for the figure: .png, .pdf or .svg.")] = Path(
        "diagnosis.png"
    ),
    id: Id = None,
    source: Source = None,
    target: Target = None,
    weight: Weight = None,
    categorical: Categorical = None,
    ignore: Ignore = None,
    delimiter: Delimiter = None,
    scaling: Annotated[
        str, typer.Option(help="Of features: rows (words, counts), columns (ages, incomes), none or auto.")
    ] = "auto",
) -> None:
    """Show how quickly propagation makes nodes alike, with and without PairNorm, and suggest a depth.

    Nothing is trained. Row-diff is the mean distance between nodes, col-diff that
    between features; the effective rank counts the directions that are left.
    """
    from pairnorm.classify import Scaling, smoothing, suggest_depth
    from pairnorm.classify.candidates import check_size
    from pairnorm.classify.diagnosis import DEPTHS, HEADINGS, measured
    from pairnorm.classify.scaling import check_features
    from pairnorm.classify.summary import draw_smoothing

    form = one_of("ending of --out", out.suffix.lower(), FORMS).removeprefix(".")
    columns = {
        "id": id, "label": label, "source": source, "target": target, "weight": weight,
        "categorical": categorical, "ignore": ignore, "delimiter": delimiter,
    }  # fmt: skip
    with whole_file(out) as file:
        graph = read_graph(nodes, edges, columns)
        show_graph(graph)
        check_features(graph)
        check_size(graph)
        scaled = Scaling.of(graph, scaling)
        with steps("Propagating", len(DEPTHS)) as tick:
            rows = smoothing(graph, scaled(graph), tick=tick)
        suggestion = suggest_depth(graph)
        draw_smoothing(rows, suggestion.depth).savefig(file, format=form, dpi=150)
    table = small_table(*HEADINGS)
    for line in measured(rows):
        table.add_row(*line)
    console.print(table)
    console.print(f"Row-diff and col-diff: share of depth 0. Features: {scaled.sentence}.", soft_wrap=True)
    if suggestion.unreachable:
        console.print(
            f"[yellow]Note:[/] {suggestion.unreachable:,} of {suggestion.lacking:,} nodes without features "
            "have no path to one that has some; no depth reaches them.",
            soft_wrap=True,
        )
    console.print(f"\n[bold]Suggested depth: {suggestion.depth}.[/] {suggestion.reason}", soft_wrap=True)
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    console.print(
        f"\nNext: [bold]pairnorm fit --nodes {escape(str(nodes))} --edges … --label … --out run[/] tries all "
        "depths and chooses by validation.",
        soft_wrap=True,
    )
