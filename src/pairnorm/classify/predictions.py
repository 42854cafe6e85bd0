"""Prediction sets by conformal prediction, and tables of predictions for files, pipes and databases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

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
SUFFIXES = (".csv", ".parquet", ".json", ".jsonl")
ALL, COMPLETE, INCOMPLETE = "all held-out nodes", "with features", "without features"
ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# A group of fewer held-out nodes shares the conformal threshold of all.
MIN_GROUP = 30
MAX_SPLITS, MAX_SPLIT_DRAWS = 100, 1_000_000

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Coverage(NamedTuple):
    """How often prediction sets hold the true class, over random halves of the held-out nodes.

    One half sets the threshold, the other is evaluated: ``mean``, and the 5th and 95th percentiles ``low``
    and ``high``. ``guaranteed`` says whether the guarantee holds for the group by itself.
    """

    nodes: int
    mean: float
    low: float
    high: float
    guaranteed: bool


class PredictionSets(NamedTuple):
    """The prediction set of every node at one error rate: its most probable classes, at least one.

    Args:
        rate: how often the true class may be left out.
        sizes: int64 [n], the number of classes in each set.
        coverage: as measured, by group of nodes.
    """

    rate: float
    sizes: Integers
    coverage: dict[str, Coverage]


class Calibration(NamedTuple):
    r"""Conformity scores of held-out nodes, for split conformal prediction.

    The score $s(y)$ of a class is 0 for the most probable one, else $1 - p(y)$. With $q$ the
    $\lceil (m + 1)(1 - \alpha) \rceil$-th smallest score of the true classes of m held-out nodes,
    $\{y : s(y) \le q\}$ holds the true class of an exchangeable node with a probability of $1 - \alpha$ or
    more (Vovk et al., 2005; Sadinle et al., 2019), and is never empty. Nodes with and without features have
    a threshold each, and so the guarantee each, where enough of both are held out.

    Args:
        scores: float64 [m], of the true classes.
        incomplete: bool [m], nodes that lack most features.
    """

    scores: Floats
    incomplete: Booleans

    @classmethod
    def of(cls, probabilities: NDArray[np.float32], labels: Integers, incomplete: Booleans) -> Self:
        """Score held-out nodes that selected nothing: [m, classes], int64 [m] and bool [m]."""
        scores = 1 - probabilities[np.arange(len(labels)), labels].astype(np.float64)
        scores[probabilities.argmax(1) == labels] = 0
        return cls(scores, incomplete)

    @property
    def by_group(self) -> bool:
        """Whether enough nodes with and without features are held out for a threshold each."""
        return bool(min(np.count_nonzero(self.incomplete), np.count_nonzero(~self.incomplete)) >= MIN_GROUP)

    def thresholds(self, rates: Sequence[float], by_group: bool) -> Floats:
        """Return q, [rates, 2]: for nodes with features, then for nodes without."""
        limits = []
        for kind in (False, True):
            scores = np.sort(self.scores[self.incomplete == kind] if by_group else self.scores)
            ranks = np.ceil((len(scores) + 1) * (1 - np.asarray(rates)) - 1e-9).astype(int)
            limits.append(np.append(scores, inf)[np.maximum(ranks, 1) - 1])
        return np.stack(limits, 1)

    def contains(self, probabilities: NDArray[np.float32], incomplete: Booleans, rate: float) -> Booleans:
        """Return the prediction set of each node at an error rate, bool [n, classes]."""
        (limits,) = self.thresholds([rate], self.by_group)
        inside = 1 - probabilities.astype(np.float64) <= limits[incomplete.astype(int)][:, None]
        inside[np.arange(len(inside)), probabilities.argmax(1)] = True
        return np.asarray(inside)

    def prediction_sets(
        self, probabilities: NDArray[np.float32], incomplete: Booleans, rates: Sequence[float] = ERROR_RATES
    ) -> list[PredictionSets]:
        """Return the sizes of the nodes' prediction sets, and the measured coverage, for each error rate."""
        random, count = np.random.default_rng(0), len(self.scores)
        groups = {ALL: np.ones(count, dtype=bool)}
        if self.incomplete.any() and not self.incomplete.all():
            groups |= {COMPLETE: ~self.incomplete, INCOMPLETE: self.incomplete}
        splits = max(2, min(MAX_SPLITS, MAX_SPLIT_DRAWS // count))
        covered = {name: np.full((splits, len(rates)), nan) for name in groups}
        for split in range(splits):
            half, others = np.split(random.permutation(count), [count // 2])
            limits = Calibration(self.scores[half], self.incomplete[half]).thresholds(rates, self.by_group)
            inside = self.scores[others] <= limits[:, self.incomplete[others].astype(int)]
            for name, group in groups.items():
                if (members := group[others]).any():
                    covered[name][split] = inside[:, members].mean(1)
        results = []
        for shares, rate in enumerate(rates):
            coverage = {}
            for name, group in groups.items():
                measured = covered[name][:, shares]
                low, high = np.nanpercentile(measured, [5, 95]).tolist()
                guaranteed = self.by_group or name == ALL
                coverage[name] = Coverage(
                    int(group.sum()), float(np.nanmean(measured)), low, high, guaranteed
                )
            sizes = self.contains(probabilities, incomplete, rate).sum(1)
            results.append(PredictionSets(rate, sizes, coverage))
        return results


def prediction_table(
    graph: Graph,
    probabilities: NDArray[np.float32],
    classifier: NodeClassifier,
    coverage: float | None = None,
) -> pandas.DataFrame:
    """Return a row for every node: id, predicted, p_<class> ..., features_missing, labeled, set."""
    missing, labeled = (mask.cpu().numpy() for mask in (graph.missing_vectors, graph.labeled))
    decided, classes = classifier.decide(probabilities), classifier.classes_.astype(str)
    frame = prediction_rows(graph.node_names, decided, classes, probabilities, missing, labeled)
    if coverage is not None:
        sets = classifier.prediction_sets(graph, probabilities, coverage)
        frame["set"] = [classes[row].tolist() for row in sets]
    return frame


def prediction_rows(
    ids: NDArray[Any],
    predicted: Integers,
    classes: NDArray[np.str_],
    probabilities: NDArray[np.float32],
    missing: Booleans,
    labeled: Booleans,
) -> pandas.DataFrame:
    """Return the rows of ``prediction_table`` for the given nodes."""
    import pandas

    columns = {f"p_{name}": probabilities[:, number] for number, name in enumerate(classes)}
    known = {"features_missing": missing, "labeled": labeled}
    return pandas.DataFrame({"id": ids, "predicted": classes[predicted], **columns, **known})


@dataclass(frozen=True)
class Destination:
    """Where a table of predictions goes: a file, a table of a database or, without both, standard output."""

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
        if path.suffix.lower() not in SUFFIXES:
            problem = f"{path}: predictions cannot be written as {path.suffix or 'a file without an ending'}"
            hint = f"Use {', '.join(SUFFIXES)}, - for standard output, or a URL such as sqlite:///out.db."
            raise PairNormError(problem, code="unknown-format", value=text, hint=hint)
        return cls(path)

    @property
    def is_stdout(self) -> bool:
        """Whether the table goes to standard output."""
        return self.path is None and self.url is None

    @contextmanager
    def opened(self, stdout: TextIO) -> Iterator[Callable[[pandas.DataFrame, bool], object]]:
        """Give a function that writes a table. Errors of the destination are raised before the work."""
        if self.path is not None:
            with atomic_file(self.path) as draft:
                yield lambda frame, safe: write_table(frame, draft, safe)
        elif self.url is not None:
            with _connect(self.url) as connection:
                yield lambda frame, safe: _lists_as_text(frame).to_sql(
                    self.table, connection, if_exists="replace", index=False, chunksize=10_000
                )
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


def write_table(frame: pandas.DataFrame, path: Path, spreadsheet_safe: bool = False) -> None:
    """Write a table in the format of its suffix, one of ``SUFFIXES``."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        write_rows(frame, path, spreadsheet_safe)
    elif suffix == ".parquet":
        if not has_parquet():
            problem, hint = f"{path.name}: writing Parquet needs pyarrow", "pip install pyarrow"
            raise PairNormError(problem, code="library-missing", value="pyarrow", hint=hint)
        frame = frame.assign(predicted=typed_classes(frame["predicted"]))
        if "set" in frame:
            frame["set"] = typed_classes(frame["set"].explode()).groupby(level=0).agg(list)
        frame.to_parquet(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=suffix == ".jsonl", double_precision=6)


def _lists_as_text(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Write prediction sets as JSON, for formats without lists."""
    if "set" not in frame:
        return frame
    return frame.assign(set=[json.dumps(names, ensure_ascii=False) for names in frame["set"]])


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
