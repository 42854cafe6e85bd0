"""Write predictions, one row per node, to files, standard output or databases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, redact, spreadsheet
from pairnorm.base.files import atomic_file
from pairnorm.data import Graph
from pairnorm.data.readers import connect_arguments

if TYPE_CHECKING:
    import pandas

    from pairnorm.classify.classifier import NodeClassifier

PREDICTION_FILES = ("predictions.csv", "predictions.parquet")


def prediction_table(
    graph: Graph,
    probabilities: NDArray[np.float32],
    classifier: NodeClassifier,
    coverage: float | None = None,
) -> pandas.DataFrame:
    """Return a row for every node: id, predicted, p_<class> ..., features_missing, labeled."""
    missing, labeled = (mask.cpu().numpy() for mask in (graph.missing_vectors, graph.labeled))
    decided = classifier.decide(probabilities)
    classes = classifier.classes_.astype(str)  # a file has names
    frame = prediction_rows(graph.node_names, decided, classes, probabilities, missing, labeled)
    if coverage is not None:
        sets = classifier.prediction_sets(graph, probabilities, coverage)
        frame["set"] = [classes[row].tolist() for row in sets]
    return frame


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

    columns = {f"p_{name}": probabilities[:, number] for number, name in enumerate(classes)}
    known = {"features_missing": missing, "labeled": labeled}
    return pandas.DataFrame({"id": ids, "predicted": classes[predicted], **columns, **known})


@dataclass(frozen=True)
class Destination:
    """Where a table of predictions is written: a file, standard output or a table of a database.

    Args:
        path: the file, if it is one.
        url: of a database, if it is one.
        table: the name of the table in the database.
    """

    path: Path | None = None
    url: str | None = None
    table: str = "predictions"

    @classmethod
    def parse(cls, text: str, table: str = "predictions") -> Destination:
        """Return the destination that a text names, or raise an error that lists the possible ones."""
        if text in ("-", "/dev/stdout"):
            return cls()
        if "://" in text:
            return cls(url=text, table=table)
        path = Path(text)
        if path.suffix.lower() not in WRITERS:
            problem = f"{path}: predictions cannot be written as {path.suffix or 'a file without an ending'}"
            hint = f"Use {', '.join(WRITERS)}, - for standard output, or a URL such as sqlite:///out.db."
            raise PairNormError(problem, code="unknown-format", value=text, hint=hint)
        return cls(path)

    @property
    def is_stdout(self) -> bool:
        """Whether the table goes to standard output."""
        return self.path is None and self.url is None

    @contextmanager
    def opened(self, stdout: TextIO) -> Iterator[Callable[[pandas.DataFrame, bool], None]]:
        """Give a function that writes a table. Errors of the destination are raised before the work."""
        if self.path is not None:
            with atomic_file(self.path) as draft:
                yield lambda frame, safe: write_table(frame, draft, safe)
        elif self.url is not None:
            with _connect(self.url) as connection:
                yield lambda frame, safe: _insert(frame, connection, self.table)
        else:
            yield lambda frame, safe: write_rows(frame, stdout, safe)


@contextmanager
def _connect(url: str) -> Iterator[Any]:
    """Give a connection to a database within a transaction."""
    try:
        import sqlalchemy
    except ImportError as error:
        problem, hint = "writing to a database needs sqlalchemy", "pip install 'pairnorm[all]'"
        raise PairNormError(problem, code="library-missing", value="sqlalchemy", hint=hint) from error
    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        engine = sqlalchemy.create_engine(parsed, connect_args=connect_arguments(parsed))
        with engine.begin() as connection:
            yield connection
    except PairNormError:
        raise
    except (sqlalchemy.exc.SQLAlchemyError, ValueError, ImportError) as error:
        problem = f"{redact(url)}: cannot be written ({getattr(error, 'orig', None) or error})"
        raise PairNormError(problem, code="database-error", hint="Check the URL and your rights.") from error


def _insert(frame: pandas.DataFrame, connection: Any, table: str) -> None:
    _lists_as_text(frame).to_sql(table, connection, if_exists="replace", index=False, chunksize=10_000)


def write_table(frame: pandas.DataFrame, path: Path, spreadsheet_safe: bool = False) -> None:
    """Write a table in the format of its suffix, one of ``WRITERS``."""
    if path.suffix.lower() == ".csv":
        write_rows(frame, path, spreadsheet_safe)
    else:
        WRITERS[path.suffix.lower()](frame, path)


def _write_parquet(frame: pandas.DataFrame, path: Path) -> None:
    if not has_parquet():
        problem, hint = f"{path.name}: writing Parquet needs pyarrow", "pip install pyarrow"
        raise PairNormError(problem, code="library-missing", value="pyarrow", hint=hint)
    frame = frame.assign(predicted=typed_classes(frame["predicted"]))
    if "set" in frame:
        names = frame["set"].explode()
        frame["set"] = typed_classes(names).groupby(level=0).agg(list)
    frame.to_parquet(path, index=False)


def _write_json(frame: pandas.DataFrame, path: Path) -> None:
    frame.to_json(path, orient="records", lines=path.suffix.lower() == ".jsonl", double_precision=6)


WRITERS: dict[str, Callable[[pandas.DataFrame, Path], None]] = {
    ".csv": lambda frame, path: write_rows(frame, path),
    ".parquet": _write_parquet,
    ".json": _write_json,
    ".jsonl": _write_json,
}


def _lists_as_text(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Write prediction sets as JSON, for formats without lists."""
    if "set" not in frame:
        return frame
    return frame.assign(set=[json.dumps(one, ensure_ascii=False) for one in frame["set"]])


def typed_classes(names: pandas.Series[Any]) -> pandas.Series[Any]:
    """Return class names as integers or booleans where all of them are written so.

    >>> import pandas
    >>> [typed_classes(pandas.Series(names)).tolist() for names in (["2", "10"], ["02", "10"])]
    [[2, 10], ['02', '10']]
    """
    distinct = [str(name) for name in names.unique()]
    if distinct and set(distinct) <= {"True", "False"}:
        return names == "True"
    if distinct and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", name) for name in distinct):
        return names.astype("int64")
    return names


def write_rows(
    frame: pandas.DataFrame, file: Path | TextIO, spreadsheet_safe: bool = False, header: bool = True
) -> None:
    """Write rows as CSV."""
    frame = _lists_as_text(frame)
    if spreadsheet_safe:
        frame = frame.rename(columns=spreadsheet)
        texts = frame.select_dtypes(exclude=["number", "bool"]).columns
        frame[texts] = frame[texts].map(lambda cell: spreadsheet(str(cell)))
    frame.to_csv(file, index=False, header=header, float_format="%.6g")


def has_parquet() -> bool:
    """Return whether Parquet files can be written."""
    return find_spec("pyarrow") is not None
