"""``pairnorm report``: all tables and figures and the report, from the store alone."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pairnorm.commands.console import WRITING, console
from pairnorm.commands.reproduce import Dataset, Depths, Epochs, Missing, Runs
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    from pairnorm.paper.experiments import Selection

EXAMPLE = "Example: [bold]pairnorm report --store results/paper.sqlite --out results[/]"


def report(
    store: Annotated[Path, typer.Option(help="File of the results, or its export as .csv or .csv.gz.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("reproduction"),
    dataset: Dataset = None,
    runs: Runs = None,
    epochs: Epochs = None,
    depths: Depths = None,
    missing: Missing = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write the case study's histograms for TensorBoard here.")
    ] = None,
) -> None:
    """Write every table and figure, and report.md, from results alone: nothing is trained.

    The options choose as in [bold]pairnorm reproduce[/]: give the same ones.
    """
    from pairnorm.paper.experiments import Selection, split_names, split_numbers
    from pairnorm.paper.report import write_report

    selection = Selection(
        ("all",),
        split_names(dataset),
        runs,
        epochs,
        split_numbers("depths", depths),
        split_numbers("missing", missing),
    )
    if tensorboard is not None:
        _write_tensorboard(store, tensorboard, selection)
    with console.status(WRITING):
        outputs = write_report(store, out, selection)
    for table in outputs.tables.values():
        console.print(f"{table.name}: {table.filled} of {len(table.entries)} places filled")
    console.print(f"{len(outputs.files)} files in {escape(str(out))}", soft_wrap=True)
    console.print(f"\nNext: read [bold]{escape(str(outputs.files[-1]))}[/]", soft_wrap=True)


def _write_tensorboard(store: Path, folder: Path, selection: "Selection") -> None:
    from pairnorm.paper.case_study import file_beside, read_layers, studied, write_tensorboard
    from pairnorm.paper.experiments import CASE_STUDY

    layers, experiment = read_layers(file_beside(store)), selection.narrow(CASE_STUDY)
    found = {model: studied(layers, experiment, model) for model in ("SGC", "GCN")} if experiment else {}
    if not any(found.values()):
        raise PairNormError(
            f"{file_beside(store)} has no layers of the case study as these options ask for it. "
            f"Run pairnorm reproduce case-study{selection.options} --store {store} first."
        )
    if find_spec("tensorboard") is None:
        raise PairNormError("--tensorboard needs TensorBoard. pip install tensorboard")
    for model, studies in found.items():
        write_tensorboard(studies, model, folder)
    console.print(f"TensorBoard: [bold]tensorboard --logdir {escape(str(folder))}[/]", soft_wrap=True)
