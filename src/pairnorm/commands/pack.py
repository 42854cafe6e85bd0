"""``pairnorm pack``: convert tables of any size to a folder of arrays, for ``fit --graph``."""

import time
from argparse import Namespace

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import command, shared
from pairnorm.commands.values import columns_of

OPTIONS = {
    "Files": {
        **shared("nodes edges delimiter edge-delimiter decimal"),
        "--nodes TABLE...": "Read nodes from this table (.csv, .tsv, .parquet). May be repeated, or hold a "
        "*.",
        "--edges TABLE...": "Read edges from this table. May be repeated, or hold a *.",
        "--out FOLDER": "Write the graph to this new folder.",
    },
    "Columns": shared("id label classes merge-classes split source target weight categorical ignore keep"),
    "Packing": {
        **shared("quiet"),
        "--memory SIZE=4GB": "Use at most this memory, such as 500MB.",
        "--dtype TYPE=float32": "Store features as float32 or float16.",
        "--block N=32": "Store N feature columns together.",
    },
}


@command(
    "pack --nodes TABLE --edges TABLE --out FOLDER",
    "pairnorm pack --nodes customers.parquet --edges 'payments-*.parquet' \\\n"
    "      --id customer --label risk --out graph",
    options=OPTIONS,
    required=("nodes", "edges", "out"),
)
def run(options: Namespace) -> None:
    """Convert a graph that is larger than memory, for `fit --graph`.

    Reads the tables in parts, within --memory, and writes arrays to a folder.
    """
    from pairnorm.data.packing import pack

    start = time.monotonic()
    settings = {name: getattr(options, name) for name in ("memory", "dtype", "block")}
    with console.progress() as on_progress:
        graph = pack(
            options.nodes,
            options.edges,
            options.out,
            tick=lambda stage, share: on_progress(
                console.Progress(f"Packing {stage}", round(1000 * share), 1000)
            ),
            **settings,
            **columns_of(options),
        )
    console.facts(graph.describe())
    console.show(
        f"\nWrote to {safe(options.out)}/ in {time.monotonic() - start:.0f} s.\n\n"
        f"Next: [bold]pairnorm fit --graph {safe(options.out)} --memory 8GB --out run[/]"
    )
