"""``pairnorm diagnose``, ``pack`` and ``datasets``: look at graphs and convert them; nothing is trained."""

import shlex
import time

from pairnorm.base.errors import one_of
from pairnorm.base.files import atomic_file
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import COLUMNS, FILES, NOT_GIVEN, Options, command, refuse_inputs, shared

FIGURE_SUFFIXES = (".png", ".pdf", ".svg", ".html")
DATASET_HEADINGS = ("Name", "Nodes", "Edges", "Distinct", "Features", "Classes", "Label rate", "Files")
DIAGNOSE_OPTIONS = {
    "Files": {
        **FILES,
        "--out FILE=diagnosis.png": "Write the figure to this file: .png, .pdf, .svg, or .html for a page.",
    },
    "Columns": {name: help for name, help in COLUMNS.items() if name != "--split COLUMN"},
    "Running": shared("feature-scaling quiet"),
}
PACK_OPTIONS = {
    "Files": {
        **shared("nodes edges delimiter edge-delimiter encoding decimal"),
        "--nodes TABLE...": "Read nodes from this table (.csv, .tsv, .parquet). May be repeated, or hold a "
        "*.",
        "--edges TABLE...": "Read edges from this table. May be repeated, or hold a *.",
        "--out FOLDER": "Write the graph to this new folder.",
    },
    "Columns": shared(
        "id label classes merge-classes unknown-label split source target weight categorical ignore keep"
    ),
    "Packing": {
        **shared("quiet"),
        "--memory SIZE=4GB": "Use at most this memory, such as 500MB.",
        "--dtype TYPE=float32": "Store features as float32 or float16.",
        "--block N=32": "Store N feature columns together.",
    },
}


@command(
    "diagnose --nodes TABLE --edges TABLE",
    "pairnorm diagnose --nodes customers.csv --edges payments.csv --label risk",
    options=DIAGNOSE_OPTIONS,
    essential="nodes edges features id label feature-scaling out",
    required=("nodes",),
)
def diagnose(options: Options) -> None:
    """Measure how quickly a graph oversmooths, and suggest a depth.

    Propagates the features with and without PairNorm; nothing is trained. Row-diff
    is the mean distance between nodes, col-diff that between features; the
    effective rank counts the directions that remain.
    """
    from pairnorm.classify import Scaling, smoothing, suggest_depth
    from pairnorm.classify.explanation import DEPTHS, HEADINGS, smoothing_table
    from pairnorm.classify.scaling import KINDS, check_features, check_size
    from pairnorm.report.charts import Chart, save_charts
    from pairnorm.report.document import render_html
    from pairnorm.report.fit_report import diagnosis_page

    out = options.out
    form = one_of("ending of --out", out.suffix.lower(), FIGURE_SUFFIXES).removeprefix(".")
    one_of("scaling", options.feature_scaling, ("auto", *KINDS))
    refuse_inputs(out, *options.files)
    with atomic_file(out) as file:
        graph = options.read_graph().with_structure()
        check_features(graph)
        check_size(graph)
        scaled = Scaling.of(graph, options.feature_scaling)
        with console.stage("Propagating", len(DEPTHS), is_even=False) as advance:
            rows = smoothing(graph, scaled(graph), tick=advance)
        suggestion = suggest_depth(graph)
        document = diagnosis_page(graph, rows, suggestion)
        if form == "html":
            file.write_text(render_html(document), encoding="utf-8")
        else:
            charts = [block for block in document.sections[0].blocks if isinstance(block, Chart)]
            save_charts(charts, file)
    console.table(HEADINGS, smoothing_table(rows))
    console.show(f"Row-diff and col-diff: share of depth 0. Features: {safe(scaled.sentence)}.")
    if suggestion.unreachable:
        console.show(
            f"[yellow]Note:[/] {suggestion.unreachable:,} of {suggestion.missing:,} nodes without features "
            "have no path to a node with features; no depth reaches them."
        )
    console.show(f"\n[bold]Suggested depth: {suggestion.depth}.[/] {safe(suggestion.reason)}")
    console.show(f"Wrote {safe(out)}")
    console.show(
        f"\nNext: [bold]{safe(_fit_command(options))}[/]\ntries all depths and selects one on validation "
        "nodes; it may differ from this one, which is computed without labels."
    )


def _fit_command(options: Options) -> str:
    """Return the ``fit`` command for the same tables, to show after a diagnosis."""
    words = ["pairnorm", "fit"]
    for name, value in vars(options).items():
        if name not in ("out", "quiet", "command_line", "started") and value not in NOT_GIVEN:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    return shlex.join([*words, *([] if options.label else ["--label", "COLUMN"]), "--out", "run"])


@command(
    "pack --nodes TABLE --edges TABLE --out FOLDER",
    "pairnorm pack --nodes customers.parquet --edges 'payments-*.parquet' \\\n"
    "      --id customer --label risk --out graph",
    options=PACK_OPTIONS,
    required=("nodes", "edges", "out"),
)
def pack(options: Options) -> None:
    """Convert a graph that is larger than memory, for `fit --graph`.

    Reads the tables in parts, within --memory, and writes arrays to a folder.
    """
    from pairnorm.data import packing

    settings = {name: getattr(options, name) for name in ("memory", "dtype", "block")}
    with console.progress() as on_progress:
        graph = packing.pack(
            options.nodes,
            options.edges,
            options.out,
            tick=lambda stage, share: on_progress(
                console.Progress(f"Packing {stage}", round(1000 * share), 1000)
            ),
            **settings,
            **options.columns,
        )
    console.facts(graph.describe())
    console.show(
        f"\nWrote to {safe(options.out)}/ in {time.monotonic() - options.started:.0f} s.\n\n"
        f"Next: [bold]pairnorm fit --graph {safe(options.out)} --memory 8GB --out run[/]"
    )


@command("datasets", "pairnorm datasets --root ~/graphs", options={"Options": shared("root")})
def datasets(options: Options) -> None:
    """List the graphs of the paper, and where their files are."""
    from pairnorm import data
    from pairnorm.data.named import data_folder

    rows, absent = [], []
    for dataset in data.datasets():
        if dataset.absent(options.root):
            absent.append(dataset.name)
        where = "absent" if dataset.name in absent else "found" if dataset.files else "bundled"
        counts = (dataset.nodes, dataset.listed_edges, dataset.edges, dataset.features, dataset.classes)
        rows.append((dataset.name, *(f"{count:,}" for count in counts), f"{dataset.label_rate:.3f}", where))
    console.table(DATASET_HEADINGS, rows, left=(0, 7))
    console.show("Edges: all listed pairs, as in the paper. Distinct: undirected, counted once.")
    console.show("Cora's 5,429 citations, for instance, are 5,278 distinct undirected edges.")
    if absent:
        console.show(
            f"\n[yellow]Absent from {console.safe(data_folder(options.root))}: {', '.join(absent)}.\n"
            "They are downloaded when first used. Without a network, copy their files there,\n"
            "or name the folder that has them: --root FOLDER, or PAIRNORM_DATA.[/]"
        )
    console.show("\nNext: [bold]python -c \"import pairnorm; print(pairnorm.load('cora'))\"[/]")
