"""``pairnorm diagnose``: measure how quickly propagation smooths a graph's features, without training."""

from argparse import Namespace

from pairnorm.base.errors import one_of
from pairnorm.base.files import atomic_file
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import COLUMNS, FILES, command, shared
from pairnorm.commands.values import command_line, files_of, read_graph, refuse_inputs

FIGURE_SUFFIXES = (".png", ".pdf", ".svg", ".html")
OPTIONS = {
    "Files": {
        **FILES,
        "--out FILE=diagnosis.png": "Write the figure to this file: .png, .pdf, .svg, or .html for a page.",
    },
    "Columns": {name: help for name, help in COLUMNS.items() if name != "--split COLUMN"},
    "Running": shared("feature-scaling quiet"),
}


@command(
    "diagnose --nodes TABLE --edges TABLE",
    "pairnorm diagnose --nodes customers.csv --edges payments.csv --label risk",
    options=OPTIONS,
    essential="nodes edges features id label feature-scaling out",
    required=("nodes",),
)
def run(options: Namespace) -> None:
    """Measure how quickly a graph oversmooths, and suggest a depth.

    Propagates the features with and without PairNorm; nothing is trained. Row-diff
    is the mean distance between nodes, col-diff that between features; the
    effective rank counts the directions that remain.
    """
    from pairnorm.classify import Scaling, smoothing, suggest_depth
    from pairnorm.classify.explanation import DEPTHS, HEADINGS, smoothing_table
    from pairnorm.classify.scaling import KINDS, check_features, check_size
    from pairnorm.report import Chart, render_html
    from pairnorm.report.charts import save_charts
    from pairnorm.report.fit_report import diagnosis_page

    out = options.out
    form = one_of("ending of --out", out.suffix.lower(), FIGURE_SUFFIXES).removeprefix(".")
    one_of("scaling", options.feature_scaling, ("auto", *KINDS))
    refuse_inputs(out, *files_of(options))
    with atomic_file(out) as file:
        graph = read_graph(options).with_structure()
        check_features(graph)
        check_size(graph)
        scaled = Scaling.of(graph, options.feature_scaling)
        with console.stage("Propagating", len(DEPTHS)) as advance:
            rows = smoothing(graph, scaled(graph), tick=advance)
        suggestion = suggest_depth(graph)
        document = diagnosis_page(graph, rows, suggestion)
        if form == "html":
            file.write_text(render_html(document), encoding="utf-8")
        else:
            charts = [block for block in document.sections[0].blocks if isinstance(block, Chart)]
            save_charts(charts, file, format=form)
    console.table(HEADINGS, smoothing_table(rows))
    console.show(f"Row-diff and col-diff: share of depth 0. Features: {safe(scaled.sentence)}.")
    if suggestion.unreachable:
        console.show(
            f"[yellow]Note:[/] {suggestion.unreachable:,} of {suggestion.missing:,} nodes without features "
            "have no path to one that has some; no depth reaches them."
        )
    console.show(f"\n[bold]Suggested depth: {suggestion.depth}.[/] {safe(suggestion.reason)}")
    console.show(f"Wrote {safe(out)}")
    console.show(
        f"\nNext: [bold]{safe(_fit_command(options))}[/]\ntries all depths and selects one on validation "
        "nodes; it may differ from this one, which is computed without labels."
    )


def _fit_command(options: Namespace) -> str:
    shared = {name: value for name, value in vars(options).items() if name not in ("out", "quiet")}
    label = "" if options.label else " --label COLUMN"
    return f"{command_line('fit', Namespace(**shared))}{label} --out run"
