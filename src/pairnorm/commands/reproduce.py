"""``pairnorm reproduce``: train what a table or figure lacks, then show it against the paper."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pairnorm.commands.console import WRITING, Root, console, progress_bar

EXAMPLE = "Example: [bold]pairnorm reproduce table2 --dataset cora --runs 1 --depths 2,4,8,12[/]"

Dataset = Annotated[str | None, typer.Option(help="Only these graphs, such as cora,citeseer.")]
Runs = Annotated[int | None, typer.Option(help="Runs of everything. Default: the paper's (5).")]
Epochs = Annotated[int | None, typer.Option(help="Epochs. Default: the paper's (500 for SGC, 1000 else).")]
Depths = Annotated[str | None, typer.Option(help="Depths, such as 2,4. Default: the paper's.")]
Missing = Annotated[str | None, typer.Option(help="Only these percentages of missing vectors, as 0,100.")]


def reproduce(
    what: Annotated[
        list[str],
        typer.Argument(
            help="table1, table2, table3, figure1, figure2, figure3, figure4, bars, case-study, tuned, "
            "ablation, scaling, or all; several may be named.",
            show_default=False,
        ),
    ],
    dataset: Dataset = None,
    runs: Runs = None,
    epochs: Epochs = None,
    depths: Depths = None,
    missing: Missing = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("reproduction"),
    store: Annotated[
        Path | None, typer.Option(help="File of the results. Default: results.sqlite in the folder.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Start nothing more after this time.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes on a CPU. Default: one per core.")] = None,
    root: Root = None,
) -> None:
    """Run experiments of the paper and show our numbers beside the paper's.

    What the store already has is not trained again, so an interrupted run goes on where it stopped.
    """
    from pairnorm.paper.case_study import file_beside, read_layers
    from pairnorm.paper.experiments import Selection, split_names, split_numbers
    from pairnorm.paper.report import write_outputs, write_report
    from pairnorm.paper.results import Results
    from pairnorm.paper.runner import count_lacking
    from pairnorm.paper.runner import reproduce as train
    from pairnorm.paper.tables import terminal
    from pairnorm.train import Store

    selection = Selection(
        tuple(what),
        split_names(dataset),
        runs,
        epochs,
        split_numbers("depths", depths),
        split_numbers("missing", missing),
    )
    experiments = selection.experiments()
    path = store or out / "results.sqlite"
    given: dict[str, object] = {"out": out, "store": store, "workers": workers, "root": root}
    given |= {"minutes": minutes, "device": None if device == "auto" else device}
    words = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    command = f"pairnorm reproduce {' '.join(what)}{selection.options} {shlex.join(words)}"
    with Store(path) as opened:
        lacking = count_lacking(experiments, opened)
        if lacking:
            console.print(
                f"Training {lacking:,} trials; what is in {escape(str(path))} is not trained again."
            )
        try:
            with progress_bar(console) as progress:
                outcome = train(
                    experiments,
                    opened,
                    device=device,
                    root=root,
                    workers=workers,
                    minutes=minutes,
                    progress=progress,
                )
        except KeyboardInterrupt:
            left = count_lacking(experiments, opened)
            console.print(
                f"\n[yellow]Stopped.[/] {max(0, lacking - left):,} of {lacking:,} trials are kept in "
                f"{escape(str(path))}; {left:,} are left.\nGo on with: [bold]{escape(command)}[/]",
                soft_wrap=True,
            )
            raise typer.Exit(130) from None
    with console.status(WRITING):
        if "all" in what:
            outputs = write_report(path, out, selection)
            following = f"read [bold]{escape(str(outputs.files[-1]))}[/]"
        else:
            results, layers = Results.read(path), read_layers(file_beside(path))
            outputs = write_outputs(selection.names(), results, layers, selection, out)
            following = (
                f"[bold]pairnorm report --store {escape(str(path))} --out {escape(str(out))}"
                f"{escape(selection.options)}[/] writes all of it as a report, claim by claim."
            )
    for table in outputs.tables.values():
        console.print(terminal(table))
    if outcome.left:
        console.print(
            f"Time is up: {outcome.left:,} trials are left. Go on with: [bold]{escape(command)}[/]",
            soft_wrap=True,
        )
    console.print(f"Results: {escape(str(path))}", soft_wrap=True)
    for file in outputs.files:
        console.print(f"Wrote {escape(str(file))}", soft_wrap=True)
    console.print(f"\nNext: {following}", soft_wrap=True)
