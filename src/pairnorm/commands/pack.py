"""``pairnorm pack``: convert tables of any size to a folder of arrays, for ``fit --graph``."""

import time
from argparse import Namespace
from typing import Any

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import NODE_COLUMNS, SHARED, add_command, columns_of, option

TABLES = {"metavar": "FILE", "action": "extend", "nargs": 1, "required": True}


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm pack --nodes customers.parquet --edges 'payments-*.parquet' \\\n"
        "      --id customer --label risk --out graph"
    )
    parser = add_command(commands, "pack --nodes FILE --edges FILE --out FOLDER", run, example)
    parser.group(
        "Files",
        nodes=TABLES
        | {"help": "Read nodes from this table (.csv, .tsv, .parquet). May be repeated, or hold a *."},
        edges=TABLES | {"help": "Read edges from this table. May be repeated, or hold a *."},
        delimiter=SHARED["delimiter"],
        decimal=SHARED["decimal"],
        **{"edge-delimiter": SHARED["edge-delimiter"]},
        out=option("FOLDER", "Write the graph to this new folder.", required=True),
    )
    in_memory = ("on-unknown-node", "edge-columns")
    parser.group("Columns", *(name for name in NODE_COLUMNS if name not in in_memory))
    parser.group(
        "Packing",
        memory=option("SIZE", "Use at most this memory, such as 500MB.", "4GB"),
        dtype=option("TYPE", "Store features as float32 or float16.", "float32"),
        block=option("N", "Store N feature columns together.", 32),
        quiet=SHARED["quiet"],
    )


def run(options: Namespace) -> None:
    """Convert a graph that is larger than memory, for `fit --graph`.

    Reads the tables in parts, within --memory, and writes arrays to a folder.
    """
    from pairnorm.data.packing import pack

    start = time.monotonic()
    with console.progress() as on_progress:

        def tick(stage: str, share: float) -> None:
            on_progress(f"Packing {stage}", round(1000 * share), 1000)

        settings = columns_of(options) | {
            name: getattr(options, name) for name in ("memory", "dtype", "block")
        }
        graph = pack(options.nodes, options.edges, options.out, tick=tick, **settings)
    console.facts(graph.describe())
    console.show(
        f"\nWrote to {safe(options.out)}/ in {time.monotonic() - start:.0f} s.\n\n"
        f"Next: [bold]pairnorm fit --graph {safe(options.out)} --memory 8GB --out run[/]"
    )
