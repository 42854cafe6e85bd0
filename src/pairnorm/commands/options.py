"""How ``fit``, ``predict`` and ``diagnose`` read a user's own files and show what they found."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pairnorm.commands.console import console
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    from pairnorm.data import Graph


FILES, COLUMNS = "Files", "Columns"

Nodes = Annotated[
    Path,
    typer.Option(
        help="Table of nodes (.csv, .tsv, .parquet), or a file of the whole graph.", rich_help_panel=FILES
    ),
]
Edges = Annotated[
    Path | None,
    typer.Option(help="Table of edges: a row for each, with its two ends.", rich_help_panel=FILES),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        help="What separates cells, or tab. Default: a comma, in .tsv a tab.", rich_help_panel=FILES
    ),
]
Id = Annotated[
    str | None,
    typer.Option("--id", help="Column of nodes with their ids. Default: the first.", rich_help_panel=COLUMNS),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Column that says train, validation or test. Default: drawn at random.", rich_help_panel=COLUMNS
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        help="Column of edges with one end. Default: source, else the first.", rich_help_panel=COLUMNS
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        help="Column with the other end. Default: target, else the second.", rich_help_panel=COLUMNS
    ),
]
Weight = Annotated[str | None, typer.Option(help="Column of edges with weights.", rich_help_panel=COLUMNS)]
Categorical = Annotated[
    list[str] | None,
    typer.Option(help="Column of numbers that are categories. May be repeated.", rich_help_panel=COLUMNS),
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="Column to leave out. May be repeated.", rich_help_panel=COLUMNS)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def read_graph(nodes: Path, edges: Path | None, columns: dict[str, Any]) -> "Graph":
    """Read a user's graph; errors name options as they are typed on a command line.

    Args:
        nodes: the table of nodes, or the file of the whole graph.
        edges: the table of edges.
        columns: what ``Graph.from_files`` takes besides.
    """
    from pairnorm.data import Graph, GraphWarning

    with typed(), warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # shown with the rest of what was found
        return Graph.from_files(nodes, edges, **{name: value for name, value in columns.items() if value})


@contextmanager
def typed() -> Iterator[None]:
    """Say ``--ignore age`` where an error says ``ignore=['age']``."""
    try:
        yield
    except PairNormError as error:
        text = re.sub(
            r"\b(model|edges|delimiter|id|label|split|source|target|weight|categorical|ignore)="
            r"(?:\['([^']*)'\]|'([^']*)'|\.\.\.)",
            lambda found: f"--{found[1]} {quote(found[2] or found[3] or 'FILE')}",
            str(error),
        )
        raise PairNormError(text) from error


def show_graph(graph: "Graph") -> None:
    """Print what was found in the files.

    Args:
        graph: as it was read.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for what, found in graph.describe():
        if what == "split" and not any(mask.any() for mask in graph.split):
            continue
        table.add_row(f"[dim]{what}[/]", escape(found))
    console.print(f"[bold]Graph {escape(repr(graph.name))}[/]")
    console.print(table)


@contextmanager
def steps(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Give a function to be told of every step done, and of how many there are; shows a bar in a terminal.

    Args:
        what: is being done.
        total: how many steps there are, if that is known.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        TextColumn("[dim]{task.fields[latest]}"),
    )
    if not console.is_terminal:
        console.print(f"{what} …")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, latest="")

        def tick(latest: str, total: int | None = total) -> None:
            bar.update(task, advance=1, latest=latest, total=total)

        yield tick


def small_table(*headings: str) -> Table:
    """Return an empty table with its numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table
