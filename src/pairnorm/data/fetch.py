"""Raw files fetched over the network once, checked, and kept; without a network, an error within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

from pairnorm.data.checksums import SHA256
from pairnorm.errors import PairNormError
from pairnorm.writing import whole_file

SECONDS = 5.0


def fetch(folder: Path, names: Sequence[str], address: str) -> None:
    """Fetch the files that are not there yet. A file appears only when it is whole and its checksum right.

    Args:
        folder: the root of the data.
        names: of the files, relative to it.
        address: the folder on the network that holds them.
    """
    absent = [name for name in names if not (folder / name).is_file()]
    for name in absent:
        try:
            contents = _download(f"{address}/{Path(name).name}")
            if sha256(contents).hexdigest() != SHA256[name]:
                raise OSError("what came is not the file that was checked for this package")
            with whole_file(folder / name) as draft:
                draft.write_bytes(contents)
        except (OSError, PairNormError) as error:
            still = [Path(name).name for name in absent if not (folder / name).is_file()]
            raise PairNormError(
                f"{(folder / name).parent}: wanted here, and not there: {', '.join(still)}.\n"
                f"Fetching from {address} failed: {error}.\n"
                "Copy the files there, or name the folder that has them (root=..., or PAIRNORM_DATA)."
            ) from error


def _download(url: str) -> bytes:
    """Return what is at an address. Looking up a host cannot be interrupted, so a thread does it."""
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append(urlopen(url, timeout=SECONDS))
        except Exception as error:
            outcome.append(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(2 * SECONDS)
    if not outcome:
        raise TimeoutError(f"no answer within {2 * SECONDS:g} seconds")
    if isinstance(outcome[0], Exception):
        raise OSError(str(outcome[0])) from outcome[0]
    with outcome[0] as response:
        contents: bytes = response.read()
    return contents
