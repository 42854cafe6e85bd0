"""``pairnorm report``: all tables and figures and the report, from the store alone."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError
from pairnorm.base.memory import without_collection
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import add_command, option
from pairnorm.commands.reproduce import SELECTION, WRITING, drawers, selection

if TYPE_CHECKING:
    from pairnorm.paper.experiments import Selection


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = "pairnorm report --store results/paper.sqlite --out results"
    parser = add_command(commands, "report --store FILE", run, example)
    parser.group(
        "Files",
        store=option("FILE", "File of the results, or its export as .csv or .csv.gz.", required=True),
        out=option("FOLDER", "Folder for the report.", "reproduction"),
        tensorboard=option("FOLDER", "Write the case study's histograms for TensorBoard here."),
    )
    parser.group("Selection", *SELECTION)


@without_collection()
def run(options: Namespace) -> None:
    """Write every table and figure, report.md and report.html, from results.

    Nothing is trained. The options choose as in pairnorm reproduce: give the same
    ones.
    """
    from pairnorm.report.paper_report import write_report

    chosen = selection(options, "all")
    if options.tensorboard is not None:
        _write_tensorboard(options.store, options.tensorboard, chosen)
    with console.progress() as tell:
        tell(WRITING, 0, None)
        outputs = write_report(options.store, options.out, chosen, workers=drawers())
    for table in outputs.tables.values():
        console.show(f"{table.name}: {table.filled} of {len(table.entries)} places filled")
    console.show(f"{len(outputs.files)} files in {safe(options.out)}")
    console.show(f"\nNext: read [bold]{safe(outputs.files[-1])}[/]")


def _write_tensorboard(store: Path, folder: Path, chosen: "Selection") -> None:
    from pairnorm.paper.case_study import file_beside, read_layers, studied, write_tensorboard
    from pairnorm.paper.experiments import CASE_STUDY

    layers, experiment = read_layers(file_beside(store)), chosen.narrow(CASE_STUDY)
    found = {model: studied(layers, experiment, model) for model in ("SGC", "GCN")} if experiment else {}
    if not any(found.values()):
        problem = f"{file_beside(store)} has no layers of the case study as these options ask for it"
        hint = f"Run pairnorm reproduce case-study{chosen.options} --store {store} first."
        raise PairNormError(problem, code="not-run", value=str(store), hint=hint)
    for model, studies in found.items():
        write_tensorboard(studies, model, folder)
    console.show(f"TensorBoard: [bold]tensorboard --logdir {safe(folder)}[/]")
