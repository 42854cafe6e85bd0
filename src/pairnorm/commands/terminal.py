"""What every command prints through, and the options that several of them share."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console(highlight=False)
complaints = Console(highlight=False, stderr=True)

WRITING = "Writing tables and figures; the whole paper takes a minute"

Root = Annotated[
    Path | None,
    typer.Option(help="Folder of the raw files. Default: $PAIRNORM_DATA, else your cache folder."),
]
