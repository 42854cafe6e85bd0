"""A progress bar with rate and time left; nothing where the output is not a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pairnorm.train import Progress as Now

console = Console(highlight=False)
complaints = Console(highlight=False, stderr=True)

WRITING = "Writing tables and figures; the whole paper takes a minute"

Root = Annotated[
    Path | None,
    typer.Option(help="Folder of the raw files. Default: $PAIRNORM_DATA, else your cache folder."),
]


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, Now], None]]:
    """Give a function to be told a stage and how far it is; every stage gets a bar of its own."""
    if not console.is_terminal:
        yield lambda stage, now: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, now: Now) -> None:
            if not now.trials:
                return
            if stage not in tasks:
                shown = stage if len(stage) <= 28 else f"{stage[:27]}…"
                tasks[stage] = bars.add_task(shown, total=now.total, rate="")
            task = bars.tasks[bars.task_ids.index(tasks[stage])]
            rate = f"{task.speed:,.0f} layer-epochs/s" if task.speed else f"{now.trials:,} trials"
            bars.update(tasks[stage], completed=now.done, total=now.total, rate=rate)

        yield tell
