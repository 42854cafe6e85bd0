"""What a run writes: a folder that changes as a whole or not at all, and a row for every node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pairnorm.classify.report import FIGURES, REPORT
from pairnorm.classify.saved import FACTS, TENSORS, holds_model
from pairnorm.data import Graph
from pairnorm.errors import PairNormError
from pairnorm.writing import writable

if TYPE_CHECKING:
    import pandas

PREDICTIONS = ("predictions.csv", "predictions.parquet")
# All that a run may write.
OUTCOME = {*PREDICTIONS, FACTS, TENSORS, REPORT, *FIGURES}


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing changed.

    What an earlier run wrote is replaced or, where this one has no such file, removed. Other files stay.

    Args:
        folder: absent, empty, or with the outcome of an earlier run.
    """
    check_folder(folder)
    place = folder.resolve()
    # In the folder itself or, while there is none, in the nearest one above: moving a file is then renaming.
    nearest = next(above for above in (place, *place.parents) if above.exists())
    drafts = nearest / f".{place.name}.{os.getpid()}.partial"
    with writable(folder):
        drafts.mkdir()
    try:
        yield drafts
        with writable(folder):
            place.mkdir(parents=True, exist_ok=True)
            for name in OUTCOME - {draft.name for draft in drafts.iterdir()}:
                (place / name).unlink(missing_ok=True)
            for draft in drafts.iterdir():
                draft.replace(place / draft.name)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Refuse a folder that is in use for something else.

    Args:
        folder: where results are to go.
    """
    if folder.is_file():
        raise PairNormError(f"{folder}: there is a file of that name. Choose another folder.")
    if folder.is_dir() and any(folder.iterdir()) and not holds_model(folder):
        raise PairNormError(
            f"{folder}: the folder holds files that no run wrote. Choose another, such as a new one in it."
        )


def predictions(
    graph: Graph, probabilities: NDArray[np.float32], classes: NDArray[np.str_]
) -> pandas.DataFrame:
    """Return a row for every node: id, predicted, p_<class> ..., features_missing, labelled.

    Args:
        graph: the nodes.
        probabilities: [n, classes].
        classes: their names.
    """
    import pandas

    columns = {f"p_{name}": probabilities[:, place] for place, name in enumerate(classes)}
    return pandas.DataFrame(
        {
            "id": graph.node_names,
            "predicted": classes[probabilities.argmax(1)],
            **columns,
            "features_missing": graph.missing_vectors.cpu().numpy(),
            "labelled": graph.labelled.cpu().numpy(),
        }
    )


def write_table(frame: pandas.DataFrame, path: Path) -> None:
    """Write a table as CSV or, by its ending, Parquet.

    Args:
        frame: the table.
        path: the file.
    """
    if path.suffix.lower() == ".parquet":
        if not has_parquet():
            raise PairNormError(f"{path.name}: writing Parquet needs pyarrow. pip install pyarrow")
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, float_format="%.6g")


def has_parquet() -> bool:
    """Say whether Parquet files can be written."""
    return find_spec("pyarrow") is not None
