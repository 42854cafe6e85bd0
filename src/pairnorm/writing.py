"""Files that are written whole or not at all, and a message where they cannot be."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairnorm.errors import PairNormError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a draft that takes the place of ``path`` at the end; after an error, nothing has changed.

    Args:
        path: the file; one that is there is replaced, folders that are not there are made.
    """
    if path.is_dir():
        raise PairNormError(f"{path}: there is a folder of that name. Name a file.")
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with writable(path):
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
            yield draft
            draft.replace(path)
    finally:
        if draft.exists():
            draft.unlink()


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Say which path could not be written, and why."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise PairNormError(f"{path}: cannot be written ({why}). Choose another place.") from error
