import bz2
import gzip
import io
import json
import lzma
import os
import sqlite3
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from pairnorm.base.errors import PairNormError
from pairnorm.base.memory import MemoryLimit
from pairnorm.data import Graph, GraphWarning
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import find_files
from pairnorm.data.formats import open_table, open_tables
from pairnorm.data.tables import read_blocks

Write = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("name", "text", "code", "where", "value"),
    [
        ("t.csv", "", "file-empty", "t.csv", None),
        ("t.csv", "\n  \n\n", "file-empty", "t.csv", None),
        ("t.csv", "id,x,x\na,1,2\n", "duplicate-column", "t.csv", "x"),
    ],
)
def test_empty_files_and_repeated_columns_are_refused(
    write: Write, name: str, text: str, code: str, where: str, value: object, raises: Callable
) -> None:
    with raises(code, where, value=value):
        open_table(write(name, text))


@pytest.mark.parametrize(("name", "sign"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", ","), ("t.csv", "|")])
def test_another_delimiter_is_detected_and_noted(
    write: Write, name: str, sign: str, raises: Callable
) -> None:
    path = write(name, f"id{sign}x{sign}y\na{sign}1{sign}2\n")
    table = open_table(path)
    assert table.columns == ("id", "x", "y")
    assert table.notes == [f"{name} is separated by {sign!r}; --delimiter (delimiter=) names another sign"]
    with raises("wrong-delimiter", name, value=":"):
        open_table(path, options=ColumnOptions(delimiter=":"))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("id;revenue, USD;y\na;1;u\nb;2;v\n", ("id", "revenue, USD", "y")),
        ("id;revenue, USD;y\na;1,5;u\nb;2;v\n", ("id", "revenue, USD", "y")),
        ("id\tsize, cm\na\t3,4\nb\t5\n", ("id", "size, cm")),
        ('id|town\na|"Ames, IA"\n', ("id", "town")),
        ('id,"a;b"\n1,x;y\n2,z\n', ("id", "a;b")),
        ("id,x,y\na,1\nb,2,3\n", ("id", "x", "y")),
        ("id\na\nb\n", ("id",)),
    ],
)
def test_the_delimiter_splits_every_row_alike(write: Write, text: str, columns: tuple[str, ...]) -> None:
    assert open_table(write("t.csv", text)).columns == columns


def test_long_features_given_as_nodes_suggest_their_option(write: Write, raises: Callable) -> None:
    with raises("unknown-contents", "words.json", options={"features": "words.json"}):
        open_table(write("words.json", '{"a": ["x", "y"], "b": ["z"]}'))


@pytest.mark.parametrize("text", [100_000 * "[", 100_000 * '{"a":', '{"a": 1}\n' + 100_000 * "["])
def test_nested_brackets_on_the_standard_input_are_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, raises: Callable
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    with raises("file-damaged", "the standard input"):
        open_tables("nodes", "-")


def test_parquet_whose_equal_texts_unpack_to_more_than_the_limit_is_refused(
    tmp_path: Path, raises: Callable
) -> None:
    path, rows = tmp_path / "t.parquet", 20_000
    pandas.DataFrame({"id": range(rows), "text": rows * [10_000 * "x"]}).to_parquet(path)
    assert path.stat().st_size < 1_000_000
    (table,) = open_tables("nodes", path, memory=MemoryLimit.of("100MB"))
    with raises("memory-limit", "t.parquet"):
        list(read_blocks(table))


@pytest.mark.parametrize("delimiter", ["\t", "\\t", "tab"])
def test_a_tab_has_three_names(write: Write, delimiter: str) -> None:
    path = write("t.csv", "id\tx\na\t1\n")
    assert open_table(path, options=ColumnOptions(delimiter=delimiter)).columns == ("id", "x")


def test_a_delimiter_is_one_character(write: Write, raises: Callable) -> None:
    with raises("out-of-range", value="::"):
        open_table(write("t.csv", "id::x\na::1\n"), options=ColumnOptions(delimiter="::"))


@pytest.mark.parametrize(
    ("encoding", "title"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", ""),
        ("utf-32", ""),
        ("utf-16-le", "UTF-16-LE"),
        ("utf-16-be", "UTF-16-BE"),
        ("latin-1", "Windows-1252 (Latin-1)"),
    ],
)
def test_encodings_are_detected_and_noted(tmp_path: Path, encoding: str, title: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,city\na,Zürich\nb,Köln\n".encode(encoding))
    for table in (open_table(path), open_table(path, options=ColumnOptions(encoding=encoding))):
        assert table.columns == ("id", "city")
        (frame,) = read_blocks(table)
        assert frame["city"].tolist() == ["Zürich", "Köln"]
        assert table.line(1) == "line 3"
    expected = [f"t.csv is not UTF-8 and is read as {title}; --encoding (encoding=) names another"]
    assert open_table(path).notes == (expected if title else [])


def test_bytes_that_windows_does_not_know_are_latin_1(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,x\na,\x81\xfc\n")
    (frame,) = read_blocks(open_table(tmp_path / "t.csv"))
    assert frame["x"].tolist() == ["\x81ü"]


def test_a_wrong_encoding_is_refused(tmp_path: Path, raises: Callable) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,city\na,Zürich\n".encode("latin-1"))
    with raises("wrong-encoding", options={"encoding": ...}):
        list(read_blocks(open_table(path, options=ColumnOptions(encoding="utf-8"))))
    for name in ("utf-9", "base64", "\0"):
        with raises("unknown-choice", value=name):
            ColumnOptions(encoding=name)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfid,x\na,1\n")
    assert open_table(path).columns == ("id", "x")


def test_the_pandas_index_of_parquet_is_a_column(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": ["a", "b"], "x": [1.5, None]}).set_index("id")
    frame.to_parquet(tmp_path / "t.parquet")
    source = open_table(tmp_path / "t.parquet")
    assert set(source.columns) == {"id", "x"}
    (result,) = read_blocks(source)
    assert result["id"].tolist() == ["a", "b"]


def test_integers_of_parquet_stay_exact_next_to_an_empty_cell(tmp_path: Path) -> None:
    numbers = [9007199254740993, 9007199254740992, None]
    pandas.DataFrame({"id": pandas.array(numbers, dtype="Int64")}).to_parquet(tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    (frame,) = read_blocks(table)
    assert table.texts("id", frame["id"]).tolist() == ["9007199254740993", "9007199254740992", None]
    assert table.numbers("id", frame["id"]).tolist()[2] is not None


def test_bytes_of_parquet_are_text_or_refused(tmp_path: Path, raises: Callable) -> None:
    frame = pandas.DataFrame({"id": [b"a", "b\u00fc".encode()], "x": [b"\xff\xfe", b"1"]})
    frame.to_parquet(tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    (result,) = read_blocks(table)
    assert table.texts("id", result["id"]).tolist() == ["a", "b\u00fc"]
    for read in (table.texts, table.numbers):
        with raises("not-a-cell", value="x", options={"ignore": ["x"]}):
            read("x", result["x"])


def test_time_grows_with_the_number_of_columns_and_not_with_its_square(write: Write) -> None:
    names = [f"c{number}" for number in range(30_000)]
    path = write("t.csv", ",".join(names) + "\n" + ",".join(["1"] * 30_000) + "\n")
    assert open_table(path).columns == tuple(names)


TEXT = "id,x,city\na,1,Bonn\nb,,Köln\nc,3.5,Bonn\n"
ROWS = [
    {"id": "a", "x": 1.0, "city": "Bonn"},
    {"id": "b", "city": "Köln"},
    {"id": "c", "x": 3.5, "city": "Bonn"},
]


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


def zipped(data: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, data)
    return file.getvalue()


def parquet(rows: list[dict[str, object]]) -> bytes:
    return pandas.DataFrame(rows).to_parquet()


def excel(**sheets: list[dict[str, object]]) -> bytes:
    pytest.importorskip("openpyxl")
    file = io.BytesIO()
    with pandas.ExcelWriter(file) as book:
        for name, rows in sheets.items():
            pandas.DataFrame(rows).to_excel(book, sheet_name=name, index=False)
    return file.getvalue()


def lines(rows: list[dict[str, object]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


FILES = {
    "t.csv": lambda: TEXT.encode(),
    "t.tsv": lambda: TEXT.replace(",", "\t").encode(),
    "t.csv.gz": lambda: gzip.compress(TEXT.encode()),
    "t.CSV.bz2": lambda: bz2.compress(TEXT.encode()),
    "t.csv.xz": lambda: lzma.compress(TEXT.encode()),
    "t.csv.zst": lambda: zstd(TEXT.encode()),
    "t.csv.zip": lambda: zipped(TEXT.encode(), "other name", "__MACOSX/._t"),
    "t.zip": lambda: zipped(TEXT.replace(",", "\t").encode(), "t.tsv"),
    "t.parquet": lambda: parquet(ROWS),
    "t.parquet.gz": lambda: gzip.compress(parquet(ROWS)),
    "t.xlsx": lambda: excel(Sheet1=ROWS),
    "two.xlsx": lambda: excel(Edges=[{"a": 1}], Nodes=ROWS),
    "t.json": lambda: json.dumps(ROWS).encode(),
    "columns.json": lambda: json.dumps(
        {"id": ["a", "b", "c"], "x": [1, None, 3.5], "city": ["Bonn", "Köln", "Bonn"]}
    ).encode(),
    "graph.json": lambda: json.dumps({"nodes": ROWS, "links": []}).encode(),
    "t.jsonl": lambda: lines(ROWS) + b"\n\n",
    "t.jsonl.gz": lambda: gzip.compress(lines(ROWS)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name]())
    (table,) = open_tables("nodes", tmp_path / name)
    (frame,) = read_blocks(table, ["id"], rows=None)
    assert table.columns == ("id", "x", "city")
    assert table.texts("id", frame["id"]).tolist() == ["a", "b", "c"]
    assert table.texts("city", frame["city"]).tolist() == ["Bonn", "Köln", "Bonn"]
    assert str(table.numbers("x", frame["x"])) == "[1.  nan 3.5]"
    assert table.line(1) in ("line 3", "row 2")


@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.csv.zst", "t.parquet", "t.xlsx", "t.json", "t.jsonl"]
)
def test_the_standard_input_is_known_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    stdin = type("Stdin", (), {"buffer": io.BytesIO(FILES[name]())})
    monkeypatch.setattr(sys, "stdin", stdin)
    (table,) = open_tables("nodes", "-")
    (frame,) = read_blocks(table, rows=None)
    assert table.columns == ("id", "x", "city")
    assert frame["city"].tolist() == ["Bonn", "Köln", "Bonn"]


@pytest.mark.parametrize("data", [b"[" * 100_000, b'[{"id": ' + b"[" * 10**5 + b"]" * 10**5 + b"}]", None])
def test_a_standard_input_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, raises: Callable, tmp_path: Path, data: bytes | None
) -> None:
    """Nested too deeply, or a folder."""
    stream: Any = io.BytesIO(data or b"")
    if data is None:
        stream = type("Folder", (), {"read": lambda self, size: os.read(os.open(tmp_path, 0), size)})()
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
    with raises("file-damaged"):
        open_tables("nodes", "-")


def test_a_query_that_is_not_utf8_is_refused(tmp_path: Path, raises: Callable) -> None:
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install pairnorm[all]")
    sqlite3.connect(tmp_path / "bank.db").close()
    (tmp_path / "bank.db").touch()
    with raises("database-error"):
        open_tables("nodes", "SELECT '\udcff' AS id", database=f"sqlite:///{tmp_path}/bank.db")


def test_only_one_table_is_piped_in(monkeypatch: pytest.MonkeyPatch, raises: Callable) -> None:
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": io.BytesIO(b"")}))
    with raises("file-empty"):
        open_tables("edges", "-")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("t.csv.gz", b"id,x\na,1\n", "file-damaged"),
        ("t.csv.gz", gzip.compress(TEXT.encode() * 1000)[:-30], "file-damaged"),
        ("t.csv.zst", b"id,x\na,1\n", "file-damaged"),
        ("t.csv.zip", b"id,x\na,1\n", "file-damaged"),
        ("t.zip", zipped(b"id,x\n", "a.csv", "b.csv"), "unknown-contents"),
        ("t.xlsx", b"id,x\na,1\n", "file-damaged"),
        ("t.json", b"{", "file-damaged"),
        ("t.json", b"[1, 2]", "unknown-contents"),
        ("t.json", b"[]", "unknown-contents"),
        ("t.json", b"[" * 100_000, "file-damaged"),
        ("t.jsonl", b'{"id": 1}\n{"id"', "file-damaged"),
        ("t.parquet", b"PAR1", "file-damaged"),
    ],
)
def test_contents_of_another_type_than_the_suffix_are_refused(
    tmp_path: Path, name: str, data: bytes, code: str, raises: Callable
) -> None:
    (tmp_path / name).write_bytes(data)
    with raises(code) as caught:
        list(read_blocks(*open_tables("nodes", tmp_path / name)))
    assert name in str(caught.value)


def test_the_sheet_is_noted_if_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(excel(People=ROWS, Edges=[{"a": 1}]))
    assert open_table(tmp_path / "t.xlsx").notes == [
        "the nodes are read from sheet 'People' of 'People', 'Edges'"
    ]
    assert open_table(tmp_path / "t.xlsx", role="edges").columns == ("a",)


def test_integers_of_json_stay_exact_next_to_an_empty_cell(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('[{"id": 9007199254740993}, {"id": null}]')
    table = open_table(tmp_path / "t.json")
    assert table.texts("id", table.frame["id"]).tolist() == ["9007199254740993", None]


def test_patterns_and_folders_expand_to_files(tmp_path: Path, raises: Callable) -> None:
    names = ["b.parquet", "a.parquet", "x.csv", "odd[1].csv"]
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in find_files([tmp_path / "*.parquet"])] == ["a.parquet", "b.parquet"]
    assert [path.name for path in find_files([tmp_path, "-"])[:2]] == ["a.parquet", "b.parquet"]
    assert find_files([tmp_path / "odd[1].csv", "-"]) == [tmp_path / "odd[1].csv", "-"]
    with raises("file-missing", value=str(tmp_path / "*.xls")):
        find_files([tmp_path / "*.xls"])


def test_json_may_list_the_features_of_each_node(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"7": [3, 1], "8": []}')
    table = open_table(tmp_path / "f.json", role="features")
    assert table.frame.to_numpy().tolist() == [["7", 3, 1], ["7", 1, 1]]
    (tmp_path / "f.json").write_text('{"7": {"red": 0.5}}')
    assert open_table(tmp_path / "f.json", role="features").frame.to_numpy().tolist() == [["7", "red", 0.5]]


# Databases, each a real one.

TABLE = "CREATE TABLE people (id BIGINT, x NUMERIC(9, 2), city TEXT, born DATE)"
VALUES = "INSERT INTO people VALUES (9007199254740993, 1.25, 'Bonn', '2001-02-03'), (7, NULL, 'a:b %s', NULL)"


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install pairnorm[all]")
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    path = tmp_path / "people.db"
    if request.param == "sqlite":
        connection = sqlite3.connect(path)
    else:
        pytest.importorskip("duckdb_engine", reason="needs duckdb-engine: pip install pairnorm[all]")
        connection = pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]").connect(
            str(path)
        )
    connection.execute(TABLE)
    connection.execute(VALUES)
    connection.commit()
    connection.close()
    return f"{request.param}:///{path}"


@pytest.mark.parametrize("query", ["SELECT * FROM people ORDER BY id DESC", "people"])
def test_a_query_and_a_table_of_a_database(database: str, query: str) -> None:
    (table,) = open_tables("nodes", query, database=database)
    assert table.columns == ("id", "x", "city", "born")
    (frame,) = read_blocks(table, rows=None)
    assert table.texts("id", frame["id"]).tolist() == ["9007199254740993", "7"]
    assert str(table.numbers("x", frame["x"])) == "[1.25  nan]"
    assert table.texts("city", frame["city"]).tolist() == ["Bonn", "a:b %s"]
    days = (pandas.Timestamp("2001-02-03") - pandas.Timestamp(0)).days
    result = table.read_column("born", frame["born"]).values  # SQLite keeps dates as text
    assert result[0] == days


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT nothing FROM people", "database-error"),
        ("nobody", "database-error"),
        ("SELECT 1 AS a, 2 AS a", "duplicate-column"),
    ],
)
def test_an_invalid_query_is_refused(database: str, query: str, code: str, raises: Callable) -> None:
    with raises(code) as caught:
        open_tables("edges", query, database=database)
    assert "secret" not in str(caught.value)


def test_a_query_changes_nothing(database: str) -> None:
    with pytest.raises(PairNormError):
        open_tables("nodes", "DELETE FROM people", database=database)
    assert len(open_tables("nodes", "people", database=database)[0].frame) == 2


def test_an_invalid_database_is_refused(tmp_path: Path, raises: Callable) -> None:
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install pairnorm[all]")
    with raises("file-missing"):
        open_tables("nodes", "people", database=f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
    for url in ("people.db", "ravendb://host/people", "postgresql://someone:secret@127.0.0.1:1/nothing"):
        with raises("database-error") as caught:
            open_tables("nodes", "people", database=url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["nodes.csv", "63"])
def test_a_pipe_is_refused_at_once(tmp_path: Path, raises: Callable, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with raises("not-a-file", value=str(tmp_path / name)):
        Graph.from_files(tmp_path / name, "edges.csv")


@pytest.mark.parametrize("url", ["https://host/nodes.csv", "https://host/nodes.csv?raw=1", "sqlite:///x.db"])
def test_a_url_is_no_file(raises: Callable, url: str) -> None:
    with raises("file-missing", f"{url}: it is a URL, not a file", value=url):
        find_files([url])


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ('"Ames, IA"\t07\t"Yuma, AZ"\n"Ames, IA"\t08\t"Reno, NV"\n', ("column 1", "column 2", "column 3")),
        ('"a, b"|"c|d"\n"b, c"|"d"\n', ("a, b", "c|d")),
        ('"a, b",c\n"b; c","d;"\n', ("a, b", "c")),
    ],
)
def test_delimiters_within_quotes_are_ignored(write: Write, text: str, titles: tuple[str, ...]) -> None:
    assert open_table(write("t.txt", text), "nodes").columns == titles


def test_edges_may_have_two_columns_of_the_same_title(write: Write) -> None:
    table = open_table(write("t.txt", "node_id\tnode_id\tkind\n1\t2\tx\n2\t3\ty\n"), "edges")
    assert table.has_header
    assert table.columns == ("column 1", "column 2", "kind")
    assert not open_table(write("t.txt", "ann\tann\nann\tbob\n"), "edges").has_header
    assert not open_table(write("t.txt", "3\t3\n1\t3\n"), "edges").has_header


PEOPLE = [{"id": name, "x": place} for place, name in enumerate("abcd")]
PAIRS = [(0, 1), (1, 2), (2, 3)]
LINKS = [{"source": "abcd"[s], "target": "abcd"[t]} for s, t in PAIRS]
GRAPHS_IN_JSON = {
    "links": {"nodes": PEOPLE, "links": LINKS},
    "edges": {"directed": False, "graph": {}, "nodes": PEOPLE, "edges": LINKS},
    "positions": {"nodes": PEOPLE, "links": [{"source": s, "target": t} for s, t in PAIRS]},
    "nodes as ends": {
        "nodes": [{"index": place, **node} for place, node in enumerate(PEOPLE)],
        "links": [{"source": PEOPLE[s], "target": PEOPLE[t]} for s, t in PAIRS],
    },
    "adjacency": {
        "nodes": PEOPLE,
        "adjacency": [[{"id": "b", "weight": 1}], [{"id": "a"}, {"id": "c"}], [{"id": "d"}], []],
    },
    "elements": {
        "elements": {
            "nodes": [{"data": node} for node in PEOPLE],
            "edges": [{"data": link} for link in LINKS],
        }
    },
    "list of elements": {"elements": [{"data": row} for row in (*PEOPLE, *LINKS)]},
}


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize("layout", GRAPHS_IN_JSON)
def test_a_graph_in_json(write: Write, layout: str) -> None:
    graph = Graph.from_files(write("graph.json", json.dumps(GRAPHS_IN_JSON[layout])))
    assert graph.node_names.tolist() == ["a", "b", "c", "d"]
    assert graph.feature_names == ("x",)
    assert graph.edge_index.tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]


@pytest.mark.parametrize("end", [-1, 4, True, [0], None, {"id": "e"}, {}])
def test_an_unknown_endpoint_in_json_is_refused(write: Write, end: object) -> None:
    graph = {"nodes": PEOPLE, "links": [{"source": 0, "target": end}]}
    with pytest.raises(PairNormError, match=r"graph\.json"):
        Graph.from_files(write("graph.json", json.dumps(graph)))


def test_cells_of_duckdb_that_python_does_not_have(tmp_path: Path, raises: Callable) -> None:
    """Infinite and early dates are missing, moments with a zone need no pytz, durations are days."""
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install pairnorm[all]")
    with duckdb.connect(str(tmp_path / "base.db")) as base:
        base.execute("CREATE TABLE edges AS SELECT 1 AS source, 2 AS target")
        dates = ["'infinity'::DATE", "'0044-03-15 (BC)'::DATE", "'1970-01-11'::DATE", "'200000-01-01'::DATE"]
        rows = ", ".join(
            f"({n}, {date}, {date}::TIMESTAMP, {date}::TIMESTAMPTZ, to_days({n}), union_value(k := 1), [1])"
            for n, date in enumerate(dates)
        )
        base.execute(f"CREATE TABLE nodes AS FROM (VALUES {rows}) AS r(id, d, t, z, s, u, l)")
    url = f"duckdb:///{tmp_path}/base.db"
    with pytest.warns(GraphWarning):
        graph = Graph.from_files("SELECT id, d, t, z, s FROM nodes", "edges", database=url)
    assert graph.features.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [10, 10, 10, 2], [0, 0, 0, 3]]
    assert graph.missing[:, 0].tolist() == [True, True, False, True]
    for name, code in (("u", "file-damaged"), ("l", "not-a-cell")):
        with raises(code, "the query for nodes"):
            Graph.from_files(f"SELECT id, {name} FROM nodes", "edges", database=url)
