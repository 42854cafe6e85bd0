"""``pairnorm datasets``: list the graphs of the paper, and where their files are."""

from argparse import Namespace
from typing import Any

from pairnorm.commands import console
from pairnorm.commands.options import add_command

HEADINGS = ("Name", "Nodes", "Edges", "Distinct", "Features", "Classes", "Label rate", "Files")


def add(commands: Any) -> None:
    """Add the command and its options."""
    add_command(commands, "datasets", run, "pairnorm datasets --root ~/graphs").group("Options", "root")


def run(options: Namespace) -> None:
    """List the graphs of the paper, and where their files are."""
    from pairnorm.data import datasets
    from pairnorm.data.named import data_folder

    rows, absent = [], []
    for dataset in datasets():
        if dataset.absent(options.root):
            absent.append(dataset.name)
        where = "absent" if dataset.name in absent else "found" if dataset.files else "bundled"
        counts = (dataset.nodes, dataset.listed_edges, dataset.edges, dataset.features, dataset.classes)
        rows.append((dataset.name, *(f"{count:,}" for count in counts), f"{dataset.label_rate:.3f}", where))
    console.table(HEADINGS, rows, left=(0, 7))
    console.show("Edges: all listed pairs, as in the paper. Distinct: undirected, counted once.")
    console.show("Cora's 5,429 citations, for instance, are 5,278 distinct undirected edges.")
    if absent:
        console.show(
            f"\n[yellow]Absent from {console.safe(data_folder(options.root))}: {', '.join(absent)}.\n"
            "They are downloaded when first used. Without a network, copy their files there,\n"
            "or name the folder that has them: --root FOLDER, or PAIRNORM_DATA.[/]"
        )
    console.show("\nNext: [bold]python -c \"import pairnorm; print(pairnorm.load('cora'))\"[/]")
