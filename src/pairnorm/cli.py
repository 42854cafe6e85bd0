"""The command line: parse, call, print. Each command is a function, its example the epilog.

Commands of more than a few lines live in ``pairnorm.commands`` and are registered at the end of this module.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from pairnorm import __version__
from pairnorm.commands import demo, diagnose, fit, predict, report, reproduce
from pairnorm.commands.console import Root, complaints, console
from pairnorm.errors import PairNormError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 input that cannot be used, 2 a wrong command line.

    Args:
        arguments: the command line without the program's name. Default: that of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app([word for word in words if word != "--debug"], prog_name="pairnorm")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except PairNormError as error:
        if debug:
            raise
        complaints.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        return 1
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if category.__module__.startswith("pairnorm."):
        complaints.print(f"[yellow]Note:[/] {escape(str(message))}", soft_wrap=True)
    else:
        complaints.print(
            escape(warnings.formatwarning(message, category, *place[:2])), soft_wrap=True, end=""
        )


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"pairnorm {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: [bold]pairnorm datasets[/]")
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Deep graph neural networks that do not oversmooth, and labels for nodes that have no features."""


@app.command(epilog="Example: [bold]pairnorm datasets --root ~/graphs[/]")
def datasets(root: Root = None) -> None:
    """Show the statistics of the graphs of the paper, and where their files are."""
    from pairnorm.data import datasets as known
    from pairnorm.data.named import data_folder

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("Name")
    for heading in ("Nodes", "Edges", "Distinct", "Features", "Classes", "Label rate"):
        table.add_column(heading, justify="right")
    table.add_column("Files")
    absent = []
    for dataset in known():
        if dataset.absent(root):
            absent.append(dataset.name)
        where = "absent" if dataset.name in absent else "found" if dataset.files else "bundled"
        counts = (dataset.nodes, dataset.listed_edges, dataset.edges, dataset.features, dataset.classes)
        table.add_row(dataset.name, *(f"{count:,}" for count in counts), f"{dataset.label_rate:.3f}", where)
    console.print(table)
    console.print("Edges: all listed pairs, as in the paper. Distinct: undirected, counted once.")
    console.print("Cora's 5,429 citations, for instance, are 5,278 distinct undirected edges.")
    if absent:
        console.print(
            f"\nAbsent from {escape(str(data_folder(root)))}: {', '.join(absent)}.\n"
            "They are downloaded when first used. Without a network, copy their files there,\n"
            "or name the folder that has them: --root FOLDER, or PAIRNORM_DATA.",
            style="yellow",
            soft_wrap=True,
        )
    console.print("\nNext: [bold]python -c \"import pairnorm; print(pairnorm.load('cora'))\"[/]")


app.command(epilog=demo.EXAMPLE)(demo.demo)
app.command(epilog=reproduce.EXAMPLE)(reproduce.reproduce)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=fit.EXAMPLE)(fit.fit)
app.command(epilog=predict.EXAMPLE)(predict.predict)
app.command(epilog=diagnose.EXAMPLE)(diagnose.diagnose)
