"""A packed graph is the one that ``Graph.from_files`` reads of the same tables."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, pack
from pairnorm.data.packed import FACTS

duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")
pytestmark = pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
NODES, EDGES = 3000, 9000


def tables(seed=0, ids=str, nodes=NODES, edges=EDGES):
    draw = np.random.default_rng(seed)
    names = draw.permutation(nodes * 3)[:nodes]
    names = [f"c{name:05d}" if ids is str else int(name) for name in names]
    numbers = draw.normal(size=(nodes, 3)) * [1, 100, 0.01] + [0, 1000, 5]
    frame = pandas.DataFrame({"who": names, "kind": draw.choice(["b", "10", "9", "a "], nodes)})
    frame["kind"] = frame["kind"].where(draw.random(nodes) < 0.7, None)
    for place, name in enumerate(("x", 'y"z', "ünï'code")):
        frame[name] = numbers[:, place]
    frame["job"] = draw.choice(["nurse", "NA", "cook, chef"], nodes)
    frame["active"] = draw.random(nodes) < 0.5
    lost = draw.random(nodes) < 0.4
    features = list(frame.columns[2:])
    frame[features] = frame[features].astype(object)
    frame.loc[lost, features] = None
    ends = draw.integers(0, nodes - 5, (2, edges))
    ends = np.concatenate([ends, ends[::-1, :50], ends[:, 50:80], np.array([[1], [1]])], 1)
    weights = np.round(draw.random(ends.shape[1]) + 0.1, 3)
    links = pandas.DataFrame({"from": np.array(names)[ends[0]], "to": np.array(names)[ends[1]], "w": weights})
    return frame, links


def write(folder: Path, frame, links, ending: str = "csv") -> tuple[Path, Path]:
    if ending == "parquet":
        for name in frame.columns[2:5]:
            frame[name] = frame[name].astype(float)
        frame["active"] = frame["active"].astype("boolean")
    paths = folder / f"nodes.{ending}", folder / f"edges.{ending}"
    for table, path in zip((frame, links), paths, strict=True):
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path, index=False)
    return paths


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("ids", [str, int])
@pytest.mark.parametrize("weight", [None, "w"])
def test_a_packed_graph_is_that_of_from_files(tmp_path, readers, ending, ids, weight, assert_same_graph):
    files = write(tmp_path, *tables(ids=ids), ending)
    options = {"id": "who", "label": "kind", "weight": weight}
    packed = readers.pack(*files, **options, block=3)
    assert_same_graph(Graph.from_packed(packed), Graph.from_files(*files, **options))
    assert packed.facts.missing[0] > 1000
    assert (packed.weight is not None) == (weight is not None)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_endpoints_with_a_point_are_the_whole_numbers_of_nodes(tmp_path, readers, ending):
    """Bug: pack refused what pandas makes of whole numbers beside empty cells, and from_files did not."""
    frame, links = tables(ids=int)
    readers.read(*write(tmp_path, frame, links.astype({"from": float}), ending), id="who", label="kind")


def test_several_files_and_ranges(tmp_path, readers, monkeypatch, assert_same_graph):
    frame, links = tables(nodes=5000)
    whole = write(tmp_path, frame, links)
    for number in range(3):
        frame[number * 1700 : (number + 1) * 1700].to_csv(tmp_path / f"n-{number}.csv", index=False)
        links[number::3].to_csv(tmp_path / f"e-{number}.csv", index=False)
    monkeypatch.setattr("pairnorm.data.packing.MIN_ENTRIES_PER_RANGE", 2**12)
    monkeypatch.setattr("pairnorm.data.packing.MAX_ENTRIES_PER_RANGE", 2**12)
    edges = [tmp_path / f"e-{number}.csv" for number in range(3)]
    packed = readers.pack(tmp_path / "n-*.csv", edges, label="kind")
    assert_same_graph(Graph.from_packed(packed), Graph.from_files(*whole, label="kind"))


def test_single_entries_missing_and_split(tmp_path, readers):
    frame, links = tables()
    draw = np.random.default_rng(1)
    frame["x"] = frame["x"].where(draw.random(NODES) < 0.8, None)
    frame["part"] = np.where(frame["kind"].notna(), draw.choice(["Train", "val", "test", ""], NODES), "")
    expected = readers.read(*write(tmp_path, frame, links), label="kind", split="part")
    facts, known = Graph.open(readers.packed).facts, ~expected.missing
    column = expected.features.to_dense()[:, 1].double()[known[:, 1]]
    assert facts.mean[1] == pytest.approx(float(column.mean()))
    assert facts.deviation[1] == pytest.approx(float(column.std(correction=0)))
    assert facts.known[1] == int(known[:, 1].sum())


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_kind_of_a_column_follows_one_rule(tmp_path, readers, ending):
    frame, links = tables(ids=int)
    numbers = np.arange(NODES)
    days = pandas.Timestamp("2020-01-30") + pandas.to_timedelta(numbers % 999, "D")
    frame["street"] = [f"street {number}" for number in numbers]
    frame["external_id"], frame["group_id"] = numbers + 7, numbers % 5
    frame["born"], frame["seen"] = days.strftime("%Y-%m-%d"), days.strftime("%d/%m/%Y")
    frame["left"] = days.strftime("%Y-%m-%d %H:%M") + [" +01:00", "Z"] * (NODES // 2)
    frame["paid"] = days
    frame["code"] = np.where(
        numbers % 3, "c" + pandas.Series(numbers % 7).astype(str), (numbers % 9).astype(str)
    )
    frame["postcode"], frame["account"] = (
        [f"{number:05d}" for number in some] for some in (numbers % 4 * 3000, numbers)
    )
    frame["blank"] = None
    frame["since"] = days.strftime("%Y/%m/%d")
    frame["offset"] = [f"{number - 5:+04d}" for number in numbers % 9]
    files = write(tmp_path, frame, links, ending)
    graph = readers.read(*files, label="kind", memory="1GB")
    kinds = {column.name: column.kind for column in graph.encoder.columns}
    assert [name for name, kind in kinds.items() if kind == "ignored"] == ["street", "external_id", "account"]
    assert (kinds["postcode"], kinds["offset"]) == ("category", "number")
    dates = [name for name, kind in kinds.items() if kind == "date"]
    assert dates == ["born", "seen", "left", "paid", "since"]
    kept = readers.pack(*files, label="kind", keep=["external_id"], ignore=["street"], memory="1GB")
    assert "external_id" in kept.facts.encoder.feature_names


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", [int, bool, str, float])
def test_classes_keep_their_type(tmp_path, readers, ending, kind):
    frame, links = tables()
    frame["kind"] = np.arange(NODES) % 2
    frame["kind"] = frame["kind"].astype(kind)
    if kind is float:  # as they are beside nodes without a class
        frame["kind"] = frame["kind"].where(np.arange(NODES) > 0)
    graph = readers.read(*write(tmp_path, frame, links, ending), label="kind")
    texts = kind is str and ending == "parquet"
    expected = ["0", "1"] if texts else [False, True] if kind is bool else [0, 1]
    assert repr(graph.classes.tolist()) == repr(expected)
    facts = json.loads((readers.packed / FACTS).read_text(encoding="utf-8"))
    del facts["numbered"]  # as an earlier version wrote them
    (readers.packed / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    assert Graph.from_packed(Graph.open(readers.packed)).classes.tolist() == list(graph.class_names)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_days(tmp_path, readers, raises, unit):
    frame, links = tables()
    hours = pandas.Series(np.arange(NODES) - 3.0).where(np.arange(NODES) % 4 > 0)
    frame["stay"] = pandas.to_timedelta(hours, "h").astype(f"timedelta64[{unit}]")
    nodes, edges = write(tmp_path, frame, links, "parquet")
    graph = readers.read(nodes, edges, label="kind")
    place = graph.feature_names.index("stay")
    days = Graph.open(readers.packed).features(slice(None), range(place, place + 1))[:, 0]
    np.testing.assert_allclose(days, hours / 24, rtol=1e-6)
    assert any("durations are read as days" in note for note in graph.notes)
    other = frame.assign(stay=frame["stay"].dt.total_seconds(), who="other " + frame["who"].astype(str))
    other.to_parquet(tmp_path / "other.parquet", index=False)
    with raises("unlike-columns", "other.parquet: column 'stay'"):
        pack([nodes, tmp_path / "other.parquet"], edges, tmp_path / "both", label="kind", memory="256MB")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Rome"])
def test_moments_are_days(tmp_path, readers, unit, zone):
    import pyarrow
    from pyarrow import parquet

    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    moments = pyarrow.array([0, 1_234_567_890 * per_second, None], pyarrow.timestamp(unit, zone))
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "t": moments}), tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    graph = readers.read(tmp_path / "n.parquet", tmp_path / "e.csv")
    assert graph.features[:, 0].tolist() == pytest.approx([0, 1_234_567_890 / 86400, 0])


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_moments_beyond_the_year_9999_are_missing(tmp_path, readers, unit):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    moments = np.array([0, 9 * 10**12 * per_second], f"datetime64[{unit}]")
    pandas.DataFrame({"id": [1, 2], "t": moments}).to_parquet(tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    graph = readers.read(tmp_path / "n.parquet", tmp_path / "e.csv")
    assert graph.missing.tolist() == [False, True]


def test_infinite_dates_are_missing(tmp_path, readers):
    nodes = tmp_path / "n.parquet"
    duckdb.sql(
        "SELECT i AS id, CASE WHEN i = 3 THEN 'infinity'::DATE ELSE '2020-01-01' END AS d, "
        "CASE WHEN i = 2 THEN '-infinity'::TIMESTAMP ELSE '2020-01-02' END AS t FROM range(1, 4) r(i)"
    ).write_parquet(str(nodes))
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    graph = readers.read(nodes, tmp_path / "e.csv")
    assert graph.missing.tolist() == [[False, False], [False, True], [True, False]]


def test_edges_that_cannot_be_packed_are_refused_before_nodes_are(tmp_path, raises):
    frame, links = tables()
    nodes, edges = write(tmp_path, frame, links)
    links.to_json(tmp_path / "edges.jsonl", orient="records", lines=True)
    stages = []
    options = {"label": "kind", "memory": "256MB", "tick": lambda stage, share: stages.append(stage)}
    with raises("unknown-file-type", "edges.jsonl", value=".jsonl"):
        pack(nodes, tmp_path / "edges.jsonl", tmp_path / "graph", **options)
    with raises("unknown-column", "edges.csv", value="wieght"):
        pack(nodes, edges, tmp_path / "graph", weight="wieght", **options)
    with raises("file-missing"):
        pack(nodes, tmp_path / "nowhere.csv", tmp_path / "graph", **options)
    assert not stages
    assert not (tmp_path / "graph").exists()


def test_half_precision(tmp_path, raises):
    frame, links = tables()
    files = write(tmp_path, frame[["who", "kind", "x"]], links)
    packed = pack(*files, tmp_path / "graph", label="kind", memory="256MB", dtype="float16")
    result = packed.features(slice(0, 50), range(1))[:, 0]
    np.testing.assert_allclose(result, frame["x"][:50].astype(float), rtol=1e-3)
    frame.loc[3, "x"] = 1e6
    files = write(tmp_path, frame[["who", "kind", "x"]], links)
    with raises("not-finite", value=1e6):
        pack(*files, tmp_path / "other", memory="256MB", dtype="float16", ignore=["kind"])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda n, e: n.loc.__setitem__((5, "who"), n.loc[6, "who"]), "duplicate-id"),
        (lambda n, e: n.loc.__setitem__((5, "who"), None), "empty-cell"),
        (lambda n, e: e.loc.__setitem__((5, "from"), "nobody"), "unknown-node"),
        (lambda n, e: e.loc.__setitem__((5, "to"), "7.5"), "unknown-node"),
        (lambda n, e: e.loc.__setitem__((5, "to"), None), "empty-cell"),
        (lambda n, e: e.loc.__setitem__((5, "w"), -1.0), "bad-weight"),
        (lambda n, e: n.loc.__setitem__((5, "x"), "tall"), "not-a-number"),
        (lambda n, e: n.loc.__setitem__((5, "x"), "inf"), "not-finite"),
        (lambda n, e: n.__setitem__("kind", "a"), "too-few-classes"),
        (lambda n, e: n.__setitem__("job", [row // 2 for row in range(NODES)])
         or n.__setitem__("job", "j" + n["job"].astype(str)), "too-many-categories"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(tmp_path, readers, change, code):
    frame, links = tables(ids=int)
    frame, links = frame.astype(object), links.astype(object)
    change(frame, links)
    readers.check_refused(*write(tmp_path, frame, links), code=code, id="who", label="kind", weight="w")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "nodes.csv"]


def test_columns_and_paths_are_checked(tmp_path, raises):
    files = write(tmp_path, *tables())
    with raises("unknown-column", value="agee"):
        pack(*files, tmp_path / "graph", ignore=["agee"])
    with raises("exists-already"):
        pack(*files, tmp_path)
    with raises("file-missing"):
        pack(tmp_path / "none.csv", files[1], tmp_path / "graph")
    with raises("unlike-columns"):
        pack(list(files), files[1], tmp_path / "graph")
    with raises("not-a-size"):
        pack(*files, tmp_path / "graph", memory="much")
    files[1].write_text(files[1].read_text() + '"broken\n')
    with raises("file-damaged"):
        pack(*files, tmp_path / "graph", label="kind")


def test_a_killed_call_leaves_no_graph(tmp_path):
    files = write(tmp_path, *tables())
    script = (
        "import sys, time; from pairnorm.data import pack\n"
        "def tick(stage, share):\n"
        "    if stage == 'sorting': print('now', flush=True); time.sleep(60)\n"
        "pack(sys.argv[1], sys.argv[2], sys.argv[3], label='kind', memory='256MB', tick=tick)"
    )
    out = tmp_path / "graph"
    command = [sys.executable, "-c", script, *map(str, files), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        os.kill(process.pid, signal.SIGKILL)
    assert not out.exists()
    pack(*files, out, label="kind", memory="256MB")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["edges.csv", "graph", "nodes.csv"]
    assert Graph.open(out).facts.nodes == NODES


def test_hostile_folder_is_refused(tmp_path, raises):
    files = write(tmp_path, *tables())
    out = tmp_path / "graph"
    packed = pack(*files, out, label="kind", memory="256MB")
    assert repr(packed) == repr(Graph.open(out))
    facts = (out / FACTS).read_text()
    changes = (
        *[
            ("nodes", "1e99"),
            ("format", "2"),
            ("block", "0"),
            ("dtype", '"object"'),
            ("missing", "[1, 2, 3]"),
        ],
        *[
            ("missing", '["1", 2]'),
            ("mean", "[NaN]"),
            ("known", "[-1]"),
            ("classes", "null"),
            ("encoder", "{}"),
        ],
    )
    wrong_facts = [json.dumps(json.loads(facts) | {name: json.loads(value)}) for name, value in changes]
    for wrong in ("{}", "[]", "not json", "[" * 100_000, *wrong_facts):
        (out / FACTS).write_text(wrong)
        with raises("file-damaged"):
            Graph.open(out)
    (out / FACTS).write_text(facts.replace('"nodes": 3000', '"nodes": 300000000'))
    with raises("file-damaged"):
        Graph.open(out)
    (out / FACTS).write_text(facts)
    column = np.fromfile(out / "column", "<i4")
    column[7] = 2**30
    column.tofile(out / "column")
    with raises("file-damaged"):
        Graph.open(out).check()
    with raises("file-damaged"):
        Graph.open(tmp_path)
    (out / FACTS).unlink()
    os.mkfifo(out / FACTS)  # would be waited for
    with raises("file-damaged"):
        Graph.open(out)


@pytest.mark.parametrize(
    "ids",
    [list(range(NODES - 1)), [None, *range(1, NODES)], [[1]] * NODES, [b"\xff"] * NODES, [{"a": 1}] * NODES],
    ids=["too few", "empty", "lists", "bytes", "records"],
)
def test_ids_are_checked(tmp_path, raises, ids):
    packed = pack(*write(tmp_path, *tables()), tmp_path / "graph", label="kind", memory="256MB")
    pandas.DataFrame({"id": pandas.Series(ids, dtype=object)}).to_parquet(packed.folder / "ids.parquet")
    with raises("file-damaged"):
        list(packed.ids())
    (packed.folder / "ids.parquet").write_bytes(b"PAR1" * 50)
    with raises("file-damaged"):
        Graph.from_packed(packed)


def test_a_column_may_have_the_name_of_an_alias_in_a_query(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,c,job,kind\na,1,x,low\nb,2,y,high\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    packed = pack(tmp_path / "nodes.csv", tmp_path / "edges.csv", tmp_path / "graph", label="kind")
    assert packed.facts.nodes == 2


def test_no_ids_beyond_the_nodes_are_yielded(tmp_path, raises):
    packed = pack(*write(tmp_path, *tables()), tmp_path / "graph", label="kind", memory="256MB")
    pandas.DataFrame({"id": range(NODES + 1)}).to_parquet(packed.folder / "ids.parquet")
    with raises("file-damaged"):
        next(packed.ids())


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_weights_are_checked(tmp_path, raises, value):
    files = write(tmp_path, *tables())
    packed = pack(*files, tmp_path / "graph", label="kind", weight="w", memory="256MB")
    weights = np.fromfile(packed.folder / "weight", "<f4")
    weights[7] = value
    weights.tofile(packed.folder / "weight")
    with raises("file-damaged"):
        Graph.open(packed.folder).check()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("names", [("", "b"), ("b", "B"), ("c0", "row_")])
def test_columns_whose_names_are_equal_in_sql(readers, ending, names):
    frame = pandas.DataFrame({"id": [1, 2, 3], names[0]: [1, 2, 5], names[1]: [3, 4, 5]})
    readers.read(*readers.write(frame, pandas.DataFrame({"source": [1], "target": [2]}), ending))


PLAIN_NODES, PLAIN_EDGES = "id,v,job,kind\n1,1.5,père,x\n2,,clerk,y\n3,2,clerk,\n", "a,b,w\n1,2,1\n2,3,2\n"
# Nodes, edges, and the ending of the nodes; DuckDB's own reader takes few of these.
ODD_TEXTS = {
    **{code: (PLAIN_NODES.encode(code), PLAIN_EDGES, ".csv") for code in ("utf-8-sig", "utf-16", "latin-1")},
    **{
        ending: (compress(PLAIN_NODES.encode()), PLAIN_EDGES, f".csv{ending}")
        for ending, compress in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress))
    },
    "short row": ("id,v,kind\n1,1,x\n2\n3,3,y\n", PLAIN_EDGES, ".csv"),
    "delimiter at the end": ("id,v,kind,\n1,1,x,\n2,2,y,\n3,3,,\n", PLAIN_EDGES, ".csv"),
    "index of pandas": (",v,kind\n1,1,x\n2,2,y\n3,3,\n", PLAIN_EDGES, ".csv"),
    "underscores": ("id,v,kind\n1,1_000,x\n2,2_000,y\n3,3,\n", PLAIN_EDGES, ".csv"),
    "NULL of databases": ("id,v,t,kind\n1,\\N,\\N,x\n2,2,a,y\n3,3,b,\\N\n", PLAIN_EDGES, ".csv"),
    "spaces around": ("id,v,kind\n 1 ,\t3,\u00a0x\n2 , 4,y \n3,5,\n", PLAIN_EDGES, ".csv"),
    "quotes after spaces": ('id, v, kind\n1, "2", "x, z"\n2, 3, y\n3, 4,\n', PLAIN_EDGES, ".csv"),
    "leading zeros in edges": (PLAIN_NODES, "a,b,w\n01,02,1\n2,3,2\n", ".csv"),
    "exponents in edges": (PLAIN_NODES, "a,b,w\n1e0,2.0,1\n2,3,2\n", ".csv"),
    "header that is an edge": (PLAIN_NODES, "1 2 5\n2 3 4\n", ".csv"),
    "weights of money": (PLAIN_NODES, 'a,b,w\n1,2,"$1,200.50"\n2,3,7\n', ".csv"),
    "weights with commas": (PLAIN_NODES, "a;b;w\n1;2;1,5\n2;3;2,25\n", ".csv"),
    "weights in percent": (PLAIN_NODES, "a,b,w\n1,2,50%\n2,3,25%\n", ".csv"),
    "weights of booleans": (PLAIN_NODES, "a,b,w\n1,2,True\n2,3,True\n", ".csv"),
}


@pytest.mark.parametrize("title", ODD_TEXTS)
def test_odd_texts(tmp_path, readers, title):
    nodes, edges, ending = ODD_TEXTS[title]
    files = tmp_path / f"nodes{ending}", tmp_path / ("edges.txt" if "," not in edges else "edges.csv")
    for file, text in zip(files, (nodes, edges), strict=True):
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    options = {"label": "kind", "weight": "5" if "," not in edges else "w"}
    options |= {"weight": None} if title == "header that is an edge" else {}
    readers.read(*files, **options)


@pytest.mark.parametrize("text", ["id,v\n1,2\n2,3,4\n", 'id,v\n1,"2\n2,3\n'])
def test_broken_texts_are_refused_with_one_message(readers, text):
    (readers.folder / "nodes.csv").write_text(text)
    (readers.folder / "edges.csv").write_text(PLAIN_EDGES)
    files = readers.folder / "nodes.csv", readers.folder / "edges.csv"
    first, second = readers.check_refused(*files, code="file-damaged")
    assert str(first) == str(second)


def test_an_endless_cell_takes_little_memory(tmp_path, raises):
    with gzip.open(tmp_path / "nodes.csv.gz", "wb", compresslevel=1) as file:
        file.write(b'id,v\n1,"')
        for _ in range(200):
            file.write(2**13 * (127 * b"x" + b"\n"))
    (tmp_path / "edges.csv").write_text(PLAIN_EDGES)
    with raises("file-damaged", "nodes.csv.gz"):
        pack(tmp_path / "nodes.csv.gz", tmp_path / "edges.csv", tmp_path / "graph", memory="500MB")


def test_progress(tmp_path):
    files = write(tmp_path, *tables())
    stages = []
    pack(*files, tmp_path / "graph", label="kind", memory="256MB", tick=lambda *s: stages.append(s))
    assert {stage for stage, _ in stages} == {"names", "features", "edges", "sorting"}
    assert all(0 <= share <= 1 for _, share in stages)


def test_many_columns_of_text_fit_little_memory(readers):
    draw = np.random.default_rng(0)
    frame = pandas.DataFrame(draw.normal(size=(2500, 300)).round(4))
    frame.columns = [f"x{place}" for place in frame.columns]
    frame["x7"], frame["x130"] = frame["x7"] > 0, frame["x130"].where(frame["x130"] > 0, "NA")
    frame = frame.astype(object)
    frame.iloc[:40] = ""
    frame.insert(0, "who", range(len(frame)))
    frame["kind"] = draw.choice(["a", "b"], len(frame))
    links = pandas.DataFrame(draw.integers(0, len(frame), (5000, 2)), columns=["source", "target"])
    readers.read(*readers.write(frame, links), label="kind")
    facts = Graph.open(readers.packed).facts
    assert facts.missing == (40, int((frame["x130"][40:] == "NA").sum()))


def test_categories_of_floats(readers):
    nodes = pandas.DataFrame({"id": range(6), "x": [1.0, np.nan, 2.5, np.inf, 1e30, 2.0]})
    files = readers.write(nodes, pandas.DataFrame({"source": [0, 1], "target": [1, 0]}), "parquet")
    graph = readers.read(*files, categorical=["x"])
    assert graph.feature_names == ("x=1", "x=1e+30", "x=2", "x=2.5", "x=inf")
    assert graph.missing_vectors.tolist() == [row == 1 for row in range(6)]


def test_a_wide_table(readers) -> None:
    """More columns than one file of the copy has, of every kind, across the bounds of files and blocks."""
    random, rows = np.random.default_rng(0), 40
    columns: dict[str, Any] = {"id": [f"n{row}" for row in range(rows)]}
    for number in range(700):
        columns[f"x{number}"] = random.integers(0, 9, rows)
        if number % 100 == 50:
            columns[f"job{number}"] = random.choice(["cook", "nurse", "clerk", ""], rows)
            columns[f"born{number}"] = [f"2001-02-{1 + row % 28:02}" for row in range(rows)]
    edges = pandas.DataFrame({"source": ["n0", "n1"], "target": ["n1", "n2"]})
    files = readers.write(pandas.DataFrame(columns), edges)
    graph = readers.read(*files, memory="300MB")
    assert Graph.open(readers.packed).facts.encoder == graph.encoder


def test_features_that_do_not_fit_on_the_disk_are_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**5))
    rows = "".join(f"{row},text {row},{row}\n" for row in range(300))
    (tmp_path / "nodes.csv").write_text("id,name,x\n" + rows)
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    with pytest.raises(PairNormError, match=r"take 361KB, but the disk has 100KB left; column 'name' alone"):
        pack(tmp_path / "nodes.csv", tmp_path / "edges.csv", tmp_path / "packed", keep=["name"])
    assert not (tmp_path / "packed").exists()
