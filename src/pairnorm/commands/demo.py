"""``pairnorm demo``: the paper's experiment with missing features, small enough for a laptop."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pairnorm.commands.console import console, progress_bar

EXAMPLE = "Example: [bold]pairnorm demo[/]"

RUNS, EPOCHS, DEPTHS = 2, 300, (1, 2, 4, 7, 10, 15, 20, 30, 40, 60)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo"),
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.")] = None,
) -> None:
    """Show what PairNorm does: Cora, no network, half a minute on two cores.

    SGC labels papers from 140 known ones, with all word vectors there and with those of all other papers
    missing, once without and once with PairNorm.
    """
    from pairnorm.paper.experiments import TABLE1, Place
    from pairnorm.paper.figures import against_depth
    from pairnorm.paper.results import Results
    from pairnorm.paper.runner import reproduce
    from pairnorm.paper.tables import Table, terminal
    from pairnorm.plotting import save
    from pairnorm.train import Store

    experiment = TABLE1.narrowed(
        datasets=("cora",), runs=RUNS, epochs=EPOCHS, depths=DEPTHS, missing=(0, 100)
    )
    assert experiment is not None
    full = TABLE1.candidates(Place("cora", "SGC", 0))
    console.print(
        "Cora: 2,708 papers, of which 140 have a known field. SGC predicts the field of the others; at 100%\n"
        "missing, none of them has a word vector, and only propagation can tell them apart.\n"
        f"Reduced against the paper's protocol: {RUNS} runs instead of 5, {EPOCHS} epochs instead of "
        f"{full[0].epochs},\n{len(DEPTHS)} depths instead of {len(full)}.",
        soft_wrap=True,
    )
    began = time.monotonic()
    store = out / "demo.sqlite"
    try:
        with Store(store) as opened, progress_bar(console) as progress:
            outcome = reproduce([experiment], opened, device="cpu", workers=workers, progress=progress)
    except KeyboardInterrupt:
        console.print(
            f"\n[yellow]Stopped.[/] What had finished is kept in {escape(str(store))}; "
            f"[bold]pairnorm demo --out {escape(str(out))}[/] goes on.",
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    results = Results.read(store)
    table = Table.of(results, experiment)
    console.print(terminal(table))
    plain, normalised = (results.chosen(experiment, Place("cora", name, 100)) for name in ("SGC", "SGC-PN"))
    assert plain is not None
    assert normalised is not None
    console.print(
        f"With all other vectors missing, SGC gets {plain.accuracy:.0%} of the test papers right; with "
        f"PairNorm it is {normalised.accuracy:.0%},\nat {normalised.layers} layers: deep enough to reach the "
        "vectors that are there.",
        soft_wrap=True,
    )
    figure = against_depth(results, experiment, "cora", ("SGC",), 100, mark_best=True)
    assert figure is not None
    for file in save(figure, out, "accuracy-against-depth"):
        console.print(f"Wrote {escape(str(file))}", soft_wrap=True)
    spent = (
        f"in {time.monotonic() - began:.0f} s" if outcome.trained else "by an earlier call, now read again"
    )
    console.print(f"Results: {escape(str(store))}, trained {spent}")
    console.print(
        "\nNext: [bold]pairnorm reproduce table1 --dataset cora --missing 0,100[/] is the same with the full "
        "protocol.",
        soft_wrap=True,
    )
