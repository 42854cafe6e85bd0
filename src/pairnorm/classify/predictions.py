"""Prediction sets, what unreachable nodes get, and tables of predictions for files, pipes and databases."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.databases import open_engine
from pairnorm.base.errors import PairNormError, load_library, quoted, redact, spreadsheet
from pairnorm.base.files import atomic_file, check_path
from pairnorm.data import Graph
from pairnorm.data.adjacency import components, reachable
from pairnorm.data.files import check_is_file

if TYPE_CHECKING:
    import pandas

    from pairnorm.classify.classifier import NodeClassifier

PREDICTION_FILES = ("predictions.csv", "predictions.parquet")
SUFFIXES = (".csv", ".parquet", ".json", ".jsonl")
ALL, GROUP_NAMES = "all held-out nodes", ("with features", "without features")
ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# A group of fewer held-out nodes shares the conformal threshold of all.
MIN_GROUP = 30
MAX_SPLITS, MAX_SPLIT_DRAWS = 100, 1_000_000

# The number of unreachable nodes of a class is shrunk to the expected one by as many nodes.
SHRINKAGE_NODES = 2

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Coverage(NamedTuple):
    """How often prediction sets hold the true class, over random halves of the held-out nodes.

    One half sets the threshold, the other is evaluated: ``mean``, and the 5th and 95th percentiles ``low``
    and ``high``. ``guaranteed`` says whether the guarantee holds for the group alone.
    """

    nodes: int
    mean: float
    low: float
    high: float
    guaranteed: bool


class PredictionSets(NamedTuple):
    """The sizes of the nodes' prediction sets at an error rate, and the measured coverage by group of nodes.

    A set holds the most probable classes of a node, at least one.
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
        self,
        probabilities: NDArray[np.float32],
        incomplete: Booleans,
        rates: Sequence[float] = ERROR_RATES,
        names: tuple[str, str] = GROUP_NAMES,
    ) -> list[PredictionSets]:
        """Return the sizes of the nodes' prediction sets, and the measured coverage, for each error rate.

        ``names`` are those of the groups of held-out nodes that are complete and incomplete.
        """
        random, count = np.random.default_rng(0), len(self.scores)
        groups = {ALL: np.ones(count, dtype=bool)}
        if self.incomplete.any() and not self.incomplete.all():
            groups |= zip(names, (~self.incomplete, self.incomplete), strict=True)
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


def expected_shares(probabilities: Tensor, nodes: Tensor, default: Tensor) -> Tensor:
    """Return the mean predicted probabilities of some nodes, [..., classes]; the default if there are none.

    They estimate the class shares of the nodes to label from predictions alone. Shares of training labels do
    not where classes are sampled equally often.
    """
    if not nodes.any():
        return default
    shares = probabilities[nodes.to(probabilities.device)].mean(0).clamp(min=1e-6)
    return shares / shares.sum(-1, keepdim=True)


def fallback_shares(
    adjacency: Tensor, sources: Tensor, probabilities: Tensor, labels: Tensor, default: Tensor
) -> Tensor:
    r"""Return the expected class shares of nodes that no source reaches, [..., classes].

    The mean prediction for the other nodes to label is weighted by the odds of each class to be unreachable,
    since isolated nodes are often of one class:

    $$p_c \propto \bar p_c \, \frac{u_c + k}{n_c r + k} \Big/ \frac{n_c - u_c + k}{n_c (1 - r) + k}$$

    Without their own label and features, $u_c$ of the $n_c$ labeled nodes of a class would be unreachable,
    and a share $r$ of all labeled nodes. With k nodes, few observations leave the odds near one. ``sources``
    are the nodes that predictions depend on, labeled nodes included. The default replaces the mean prediction
    where there are no other nodes to label.
    """
    labeled, members = labels >= 0, components(adjacency)
    sources_around = torch.bincount(members[sources], minlength=len(members))[members]
    shares = expected_shares(probabilities, ~labeled & (sources_around > 0), default)
    counts, alone = (
        torch.bincount(labels[nodes], minlength=shares.shape[-1]).double()
        for nodes in (labeled, labeled & (sources_around == 1))
    )
    expected = counts * alone.sum() / counts.sum().clamp(min=1)
    odds = (alone + SHRINKAGE_NODES) / (expected + SHRINKAGE_NODES)
    odds /= (counts - alone + SHRINKAGE_NODES) / (counts - expected + SHRINKAGE_NODES)
    shares = shares * odds.to(shares)
    return shares / shares.sum(-1, keepdim=True)


def unreachable(graph: Graph, labeled: Tensor) -> Tensor:
    """Return bool [n], on the CPU: nodes that no path connects with a known feature or a known label.

    All of them get the same fallback probabilities.
    """
    if not graph.missing.any():
        return torch.zeros(graph.num_nodes, dtype=torch.bool)
    return ~reachable(graph.adjacency, ~graph.missing_vectors | labeled)


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
            _parse_url(text)
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

    def replaces(self, database: str, queries: Iterable[str]) -> bool:
        """Return whether this is a table that one of the queries of a database names."""
        if self.url is None or _identity(_parse_url(self.url)) != _identity(_parse_url(database)):
            return False
        name = re.compile(rf"(?<!\w){re.escape(self.table)}(?!\w)", re.IGNORECASE)
        return any(name.search(query) for query in queries)


@contextmanager
def open_destinations(
    destinations: Sequence[Destination], stdout: TextIO
) -> Iterator[Callable[[Sequence[pandas.DataFrame], bool], None]]:
    """Give a function that writes a table to each destination, as CSV optionally safe for spreadsheets.

    Errors of a destination are raised before the work. The tables of a database are written in one
    transaction.
    """
    for place in destinations:
        if place.url is not None:
            _check_database(place.url)
    with ExitStack() as stack:
        files = [
            stdout if place.path is None else stack.enter_context(atomic_file(place.path))
            for place in destinations
        ]
        connections: dict[str, Any] = {}

        def write(frames: Sequence[pandas.DataFrame], spreadsheet_safe: bool) -> None:
            for place, file, frame in zip(destinations, files, frames, strict=True):
                if place.url is None:
                    write_table(frame, file, spreadsheet_safe)
                    continue
                if place.url not in connections:
                    connections[place.url] = stack.enter_context(_connect(place.url))
                _lists_as_text(frame).to_sql(
                    place.table, connections[place.url], if_exists="replace", index=False, chunksize=10_000
                )

        yield write


def _parse_url(url: str) -> Any:
    """Return SQLAlchemy's URL of a database that keeps what is written."""
    sqlalchemy = load_library("sqlalchemy", "writing to a database")
    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect()
        if _is_local(parsed) and (parsed.host or parsed.username or parsed.port):
            raise ValueError(f"{parsed.get_backend_name()} is a file, without host and user")
        if not _is_local(parsed) or parsed.database not in (None, "", ":memory:"):
            return parsed
        problem = "names no file, and what is written to memory is lost"
    except sqlalchemy.exc.NoSuchModuleError:
        problem = f"cannot be written: databases of type {quoted(parsed.drivername)} are not known"
    except (ImportError, ValueError, sqlalchemy.exc.SQLAlchemyError) as error:
        problem = f"cannot be written ({error})"
    expected = "a URL such as sqlite:///out.db, duckdb:///out.duckdb or postgresql://user@host/database"
    raise PairNormError(f"{url} {problem}", code="database-error", value=redact(url), expected=expected)


def _is_local(url: Any) -> bool:
    return url.get_backend_name() in ("sqlite", "duckdb")


def _identity(url: Any) -> tuple[Any, ...]:
    """Return what two URLs of one database have in common."""
    if _is_local(url):
        return (url.get_backend_name(), os.path.realpath(url.database))  # also of a loop of links
    return (url.get_backend_name(), url.host, url.port, url.database)


def _check_database(url: str) -> None:
    """Raise an error if a database cannot be written; make no file."""
    parsed = _parse_url(url)
    path = check_path(Path(parsed.database)) if _is_local(parsed) else None
    if path is None or path.exists():
        if path is not None and not path.is_dir():
            check_is_file(path)  # DuckDB would wait for ever for what comes from a pipe
        with _connect(url):
            pass
    elif not os.access(path.resolve().parent, os.W_OK):
        problem, hint = f"{path}: there is no such folder, or it is read-only", "Choose another: {out}"
        raise PairNormError(problem, code="not-writable", value=str(path), hint=hint, out=...)


@contextmanager
def _connect(url: str) -> Iterator[Any]:
    """Give a connection to a database within a transaction."""
    import sqlalchemy

    parsed = _parse_url(url)
    # Python's SQLite would commit when a table is dropped, before there is another.
    arguments = {"isolation_level": None} if parsed.get_backend_name() == "sqlite" else {}
    engine = None
    try:
        engine = open_engine(parsed, connect_args=arguments)
        with engine.begin() as connection:
            if arguments:
                connection.exec_driver_sql("BEGIN")
            yield connection
    except (sqlalchemy.exc.SQLAlchemyError, TypeError, ValueError, ImportError) as error:
        problem = f"{url}: cannot be written ({getattr(error, 'orig', None) or error})"
        raise PairNormError(problem, code="database-error", hint="Check the URL and your rights.") from error
    finally:
        if engine is not None:
            engine.dispose()


def write_table(frame: pandas.DataFrame, path: Path | TextIO, spreadsheet_safe: bool = False) -> None:
    """Write a table in the format of its suffix, one of ``SUFFIXES``, or as CSV to an open file."""
    suffix = path.suffix.lower() if isinstance(path, Path) else ".csv"
    if not isinstance(path, Path) or suffix == ".csv":
        write_rows(frame, path, spreadsheet_safe)
    elif suffix == ".parquet":
        if not has_parquet():
            problem, hint = f"{path.name}: writing Parquet needs pyarrow", "pip install pyarrow"
            raise PairNormError(problem, code="library-missing", value="pyarrow", hint=hint)
        frame = frame.assign(predicted=typed_classes(frame["predicted"]))
        if "set" in frame:
            frame["set"] = typed_classes(frame["set"].explode()).groupby(level=0).agg(list)
        with path.open("wb") as file:  # pyarrow opens no file whose name is not UTF-8
            frame.to_parquet(file, index=False)
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
