"""``pairnorm demo``: the paper's experiment with missing features, small enough for a laptop."""

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
    parser.group("Options", "workers", out=option("FOLDER", "Folder for the results.", "demo"))


def run(options: Namespace) -> int | None:
    """Show what PairNorm does, in half a minute, with no network.

    SGC labels papers of Cora from 140 known ones, with all word vectors there
    and with those of all other papers missing, once without and once with PairNorm.
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
        "Cora: 2,708 papers, of which 140 have a known field. SGC predicts the field of the others; at 100%\n"
        "missing, none of them has a word vector, and only propagation can tell them apart.\n"
        f"Reduced against the paper's protocol: {RUNS} runs instead of 5, {EPOCHS} epochs instead of "
        f"{full[0].epochs},\n{len(DEPTHS)} depths instead of {len(full)}."
    )
    began, store = time.monotonic(), options.out / "demo.sqlite"
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
        "vectors that are there."
    )
    if find_spec("matplotlib") is None:
        console.note("there is no figure: matplotlib is not installed. pip install 'pairnorm[all]'")
    elif figure := against_depth(results, experiment, "cora", ("SGC",), 100, mark_best=True):
        for file in save(figure, options.out, "accuracy-against-depth"):
            console.show(f"Wrote {safe(file)}")
    spent = (
        f"in {time.monotonic() - began:.0f} s" if outcome.trained else "by an earlier call, now read again"
    )
    console.show(f"Results: {safe(store)}, trained {spent}")
    console.show(
        "\nNext: [bold]pairnorm reproduce table1 --dataset cora --missing 0,100[/] is the same with the full "
        "protocol."
    )
    return None
