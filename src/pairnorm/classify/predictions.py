"""Write predictions: one row per node, as CSV or Parquet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError
from pairnorm.base.escaping import spreadsheet
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.data import Graph

if TYPE_CHECKING:
    import pandas

PREDICTION_FILES = ("predictions.csv", "predictions.parquet")


def prediction_table(
    graph: Graph, probabilities: NDArray[np.float32], classifier: NodeClassifier
) -> pandas.DataFrame:
    """Return a row for every node: id, predicted, p_<class> ..., features_missing, labeled.

    Args:
        graph: the nodes.
        probabilities: [n, classes].
        classifier: names classes, and decides among them.
    """
    missing, labeled = (mask.cpu().numpy() for mask in (graph.missing_vectors, graph.labeled))
    decided = classifier.decide(probabilities)
    classes = classifier.classes_.astype(str)  # a file has names
    return prediction_rows(graph.node_names, decided, classes, probabilities, missing, labeled)


def prediction_rows(
    ids: NDArray[Any],
    predicted: NDArray[np.int64],
    classes: NDArray[np.str_],
    probabilities: NDArray[np.float32],
    missing: NDArray[np.bool_],
    labeled: NDArray[np.bool_],
) -> pandas.DataFrame:
    """Return the rows of ``prediction_table`` for some nodes."""
    import pandas

    columns = {f"p_{name}": probabilities[:, place] for place, name in enumerate(classes)}
    known = {"features_missing": missing, "labeled": labeled}
    return pandas.DataFrame({"id": ids, "predicted": classes[predicted], **columns, **known})


def write_table(frame: pandas.DataFrame, path: Path, spreadsheet_safe: bool = False) -> None:
    """Write a table as CSV or, by its ending, Parquet.

    Args:
        frame: the table.
        path: the file.
        spreadsheet_safe: put ``'`` before text in a CSV that a spreadsheet would take for a formula.
    """
    if path.suffix.lower() == ".parquet":
        if not has_parquet():
            problem = f"{path.name}: writing Parquet needs pyarrow"
            hint = "pip install pyarrow"
            raise PairNormError(problem, code="library-missing", value="pyarrow", hint=hint)
        frame.to_parquet(path, index=False)
    else:
        write_rows(frame, path, spreadsheet_safe)


def write_rows(
    frame: pandas.DataFrame, file: Path | TextIO, spreadsheet_safe: bool = False, header: bool = True
) -> None:
    """Write rows as CSV.

    Args:
        frame: the rows.
        file: its path, or one that is open.
        spreadsheet_safe: as for ``write_table``.
        header: write the names of the columns first.
    """
    if spreadsheet_safe:
        frame = frame.rename(columns=spreadsheet)
        texts = frame.select_dtypes(exclude=["number", "bool"]).columns
        frame[texts] = frame[texts].map(lambda cell: spreadsheet(str(cell)))
    frame.to_csv(file, index=False, header=header, float_format="%.6g")


def has_parquet() -> bool:
    """Say whether Parquet files can be written."""
    return find_spec("pyarrow") is not None
