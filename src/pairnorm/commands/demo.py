"""``pairnorm demo``: run the paper's experiment with missing features, reduced to a minute or two."""

import shlex
import time
from argparse import Namespace
from importlib.util import find_spec
from typing import Any

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import add_command, option
from pairnorm.commands.reproduce import train

RUNS, EPOCHS, DEPTHS = 2, 300, (1, 2, 4, 7, 10, 15, 20, 30, 40, 60)


def add(commands: Any) -> None:
    """Add the command and its options."""
    parser = add_command(commands, "demo", run, "pairnorm demo")
    parser.group(
        "Options", "workers", "quiet", out=option("FOLDER", "Write the results to this folder.", "demo")
    )


def run(options: Namespace) -> int | None:
    """Show what PairNorm does, without a network connection.

    SGC labels the papers of Cora from 140 labeled ones: with all features, and with
    the features of all other papers missing; each without and with PairNorm.
    """
    from pairnorm.base.plotting import save
    from pairnorm.paper import runner
    from pairnorm.paper.experiments import TABLE1, Selection, reported
    from pairnorm.paper.figures import against_depth
    from pairnorm.sweep.grid import TableCell
    from pairnorm.sweep.index import ResultIndex
    from pairnorm.sweep.tables import Table, terminal
    from pairnorm.train.schedule import Running

    part = Selection(datasets=("cora",), runs=RUNS, epochs=EPOCHS, depths=DEPTHS, missing=(0, 100))
    experiment = part.narrow(TABLE1)
    assert experiment is not None
    full = TABLE1.candidates(TableCell("cora", "SGC", 0))
    console.show(
        "Cora: 2,708 papers, 140 of them labeled. SGC predicts the labels of the others; at 100% missing,\n"
        "none of them has features, and only propagation distinguishes them.\n"
        f"Reduced from the paper's protocol: {RUNS} runs instead of 5, {EPOCHS} epochs instead of "
        f"{full[0].epochs},\n{len(DEPTHS)} depths instead of {len(full)}."
    )
    start, store = time.monotonic(), options.out / "demo.sqlite"
    command = f"pairnorm demo --out {shlex.quote(str(options.out))}"
    running = Running("cpu", workers=options.workers)
    outcome = train(store, runner, [experiment], {"cora"}, command, running)
    if outcome is None:
        return 130
    results = ResultIndex.read(store)
    console.show(terminal(Table.of(results, experiment, reported=reported())))
    plain, normalized = (
        results.chosen(experiment, TableCell("cora", name, 100)) for name in ("SGC", "SGC-PN")
    )
    assert plain is not None
    assert normalized is not None
    console.show(
        f"With all other vectors missing, SGC gets {plain.accuracy:.0%} of the test papers right; with "
        f"PairNorm it is {normalized.accuracy:.0%},\nat {normalized.layers} layers: deep enough to reach the "
        "features that are known."
    )
    if find_spec("matplotlib") is None:
        console.note("no figure was drawn: matplotlib is not installed. pip install 'pairnorm[all]'")
    elif figure := against_depth(results, experiment, "cora", ("SGC",), 100, mark_best=True):
        for file in save(figure, options.out, "accuracy-against-depth"):
            console.show(f"Wrote {safe(file)}")
    spent = f"in {time.monotonic() - start:.0f} s" if outcome.trained else "by an earlier run"
    console.show(f"Results: {safe(store)}, trained {spent}")
    console.show(
        "\nNext: [bold]pairnorm reproduce table1 --dataset cora --missing 0,100[/] is the same with the full "
        "protocol."
    )
    return None
