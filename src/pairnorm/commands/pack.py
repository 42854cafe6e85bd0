"""``pairnorm pack``: tables of any size become a folder of arrays, for ``fit --graph``."""

import time
from argparse import Namespace
from typing import Any

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import SHARED, add_command, columns_of, option

FILES = {"metavar": "FILE", "action": "append", "required": True}


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm pack --nodes customers.parquet --edges 'payments-*.parquet' \\\n"
        "      --id customer --label risk --out graph"
    )
    parser = add_command(commands, "pack --nodes FILE --edges FILE --out FOLDER", run, example)
    parser.group(
        "Files",
        nodes=FILES | {"help": "Table of nodes (.csv, .tsv, .parquet). May be repeated, or hold a *."},
        edges=FILES | {"help": "Table of edges. May be repeated, or hold a *."},
        delimiter=SHARED["delimiter"],
        out=option("FOLDER", "Folder to make.", required=True),
    )
    parser.group(
        "Columns", "id", "label", "split", "source", "target", "weight", "categorical", "ignore", "keep"
    )
    parser.group(
        "Packing",
        memory=option("SIZE", "What it may take: 4GB, 500MB.", "4GB"),
        dtype=option("TYPE", "Of features on disk: float32 or float16.", "float32"),
        block=option("N", "Columns of features that lie together.", 32),
    )


def run(options: Namespace) -> None:
    """Pack a graph that is larger than memory.

    Its tables are read piece by piece, within --memory, and become arrays in a folder,
    for `pairnorm fit --graph`.
    """
    from pairnorm.data.packing import pack

    began = time.monotonic()
    with console.progress() as tell:

        def tick(stage: str, share: float) -> None:
            tell(f"Packing {stage}", round(1000 * share), 1000)

        settings = columns_of(options) | {
            name: getattr(options, name) for name in ("memory", "dtype", "block")
        }
        graph = pack(options.nodes, options.edges, options.out, tick=tick, **settings)
    console.facts(graph.describe())
    console.show(
        f"\nWrote to {safe(options.out)}/ in {time.monotonic() - began:.0f} s.\n\n"
        f"Next: [bold]pairnorm fit --graph {safe(options.out)} --memory 8GB --out run[/]"
    )
