"""Train trials for a command: progress, interruption, and what was written."""

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pairnorm.base.errors import PairNormError
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import minutes_in

if TYPE_CHECKING:
    from pairnorm.sweep.runner import Outcome
    from pairnorm.train import Progress
    from pairnorm.train.schedule import Running

Value = TypeVar("Value")


def running(options: Namespace) -> "Running":
    """Return where to train, and for how long."""
    from pairnorm.train.schedule import Running

    return Running(
        options.device,
        options.root,
        options.workers,
        getattr(options, "backend", "here"),
        minutes_in(options.time_limit),
    )


def train(
    path: Path, runner: Any, requested: Any, graphs: Collection[str], command: str, running: "Running"
) -> "Outcome | None":
    """Train pending trials with a progress bar; None after Ctrl-C, with the command that resumes.

    ``runner`` is the module whose ``reproduce`` and ``count_pending`` are called with ``requested``.
    """
    from pairnorm.data import datasets, load
    from pairnorm.train import Store

    for dataset in datasets() if not path.exists() else ():
        if dataset.name in graphs and dataset.absent(running.root):
            load(dataset.name, running.root)

    def progress(stage: str, now: "Progress") -> None:
        if now.trials:
            latest = now.label if now.done else f"{now.trials:,} trials to train"
            on_progress(stage, now.done, now.total, latest, "layer-epochs")

    with Store(path) as store:
        pending = runner.count_pending(requested, store)
        if pending and store.read_only:
            problem = f"{path} cannot be written, and {pending:,} trials are to be trained"
            hint = "Copy it to where you may write, and name it: {store}"
            raise PairNormError(problem, code="not-writable", value=str(path), hint=hint, store=...)
        if pending:
            console.show(f"Training {pending:,} trials; results in {safe(path)} are not computed again.")
        try:
            with console.progress() as on_progress:
                outcome: Outcome = runner.reproduce(requested, store, running, progress)
                return outcome
        except KeyboardInterrupt:
            left = runner.count_pending(requested, store)
            console.show(
                f"\n[yellow]Stopped.[/] {max(0, pending - left):,} of {pending:,} trials are kept in "
                f"{safe(path)}; {left:,} are left.\nResume with: [bold]{safe(command)}[/]"
            )
            return None


def show_remaining(left: int, command: str, what: str = "trials") -> None:
    """Print how much remains after the time limit, and the command that resumes it."""
    if left:
        console.show(f"Time limit reached: {left:,} {what} remain. Resume with: [bold]{safe(command)}[/]")


def show_written(files: Iterable[Path]) -> None:
    """Print the names of files that were written."""
    for file in files:
        console.show(f"Wrote {safe(file)}")


def draw_figures(draw: Callable[[], Value]) -> Value | None:
    """Draw figures; without matplotlib, print a note instead."""
    try:
        return draw()
    except ImportError as error:
        console.note(f"no figure was drawn: it needs {error.name}.")
        return None
