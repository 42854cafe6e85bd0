"""Files that need more memory than a limit: small files that unpack to large ones, or claim to be large."""

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from pairnorm import cli
from pairnorm.base.errors import PairNormError
from pairnorm.base.memory import MemoryLimit, free_memory
from pairnorm.data import Graph, pack

MEGABYTE = 10**6
ROWS = "id,x\n" + "".join(f"a{row},{row}\n" for row in range(50))
EDGES = "source,target\na0,a1\na1,a2\n"
SHEET = "xl/worksheets/sheet1.xml"


def gzipped(start: str, unit: bytes) -> Callable[[Path], Path]:
    """Write a table that goes on with 3 MB of one byte."""

    def write(folder: Path) -> Path:
        path = folder / "nodes.csv.gz"
        path.write_bytes(gzip.compress(start.encode() + unit * (3 * MEGABYTE)))
        return path

    return write


def zstd(folder: Path) -> Path:
    zstandard = pytest.importorskip("zstandard")
    path = folder / "nodes.csv.zst"
    rows = ROWS.encode() + b"a" + b"".join(b"%d,1\n" % row for row in range(10**6))
    path.write_bytes(zstandard.compress(rows))
    return path


def text(name: str, contents: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(contents)
        return folder / name

    return write


def workbook(folder: Path, change: Callable[[str], str]) -> Path:
    """Write a workbook, and change the XML of its sheet."""
    pandas.read_csv(io.StringIO(ROWS)).to_excel(folder / "plain.xlsx", index=False)
    with (
        zipfile.ZipFile(folder / "plain.xlsx") as old,
        zipfile.ZipFile(folder / "nodes.xlsx", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            contents = old.read(name).decode()
            new.writestr(name, change(contents) if name == SHEET else contents)
    return folder / "nodes.xlsx"


def large_sheet(folder: Path) -> Path:
    return workbook(folder, lambda xml: xml.replace("</sheetData>", " " * (3 * MEGABYTE) + "</sheetData>"))


def equal_rows(folder: Path) -> Path:
    path = folder / "nodes.parquet"
    pandas.DataFrame({"id": np.zeros(2 * 10**5, np.int64), "x": 1}).to_parquet(path)
    return path


def many_keys(folder: Path) -> Path:
    """Write a GraphML in which each of 600 nodes has an attribute of its own."""
    keys = "".join(f'<key id="d{n}" for="node" attr.name="k{n}" attr.type="int"/>' for n in range(600))
    nodes = "".join(f'<node id="{n}"><data key="d{n}">1</data></node>' for n in range(600))
    edges = "<edge source='0' target='1'/>"
    xmlns = "http://graphml.graphdrawing.org/xmlns"
    graph = f"<graph edgedefault='undirected'>{nodes}{edges}</graph>"
    return text("graph.graphml", f"<graphml xmlns='{xmlns}'>{keys}{graph}</graphml>")(folder)


def array_of_zeros(folder: Path) -> Path:
    np.savez_compressed(folder / "graph.npz", edge_index=np.array([[0], [1]]), x=np.zeros((10**6, 2)))
    return folder / "graph.npz"


BOMBS = {
    "one line": (gzipped(ROWS, b"a"), 10 * MEGABYTE),
    "line breaks": (gzipped("", b"\n"), 10 * MEGABYTE),
    "line breaks after rows": (gzipped(ROWS, b"\n"), 10 * MEGABYTE),
    "rows": (gzipped(ROWS, b"1,2\n"), 10 * MEGABYTE),
    "text that is not compressed": (text("nodes.csv", ROWS * 4000), 2 * MEGABYTE),
    "zstd": (zstd, 10 * MEGABYTE),
    "spaces in JSON": (text("nodes.json", " " * (3 * MEGABYTE) + "[]"), 10 * MEGABYTE),
    "spaces in JSON lines": (text("nodes.jsonl", " " * (3 * MEGABYTE) + "{}"), 10 * MEGABYTE),
    "JSON": (text("nodes.json", json.dumps([{"id": n} for n in range(10**5)])), 10 * MEGABYTE),
    "JSON with a column per row": (
        text("nodes.json", json.dumps([{"id": n, str(n): 1} for n in range(2000)])),
        10 * MEGABYTE,
    ),
    "a sheet of spaces": (large_sheet, 10 * MEGABYTE),
    "equal rows in Parquet": (equal_rows, 10 * MEGABYTE),
    "GraphML with many keys": (many_keys, 10 * MEGABYTE),
    "an array of zeros": (array_of_zeros, 10 * MEGABYTE),
}


def read(path: Path, limit: int) -> Graph:
    edges = path.with_name("edges.csv")
    edges.write_text(EDGES)
    whole = path.suffix in (".graphml", ".npz")
    return Graph.from_files(path, None if whole else edges, memory=limit)


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_needs_more_memory_than_the_limit_is_refused(name: str, tmp_path: Path) -> None:
    write, limit = BOMBS[name]
    path = write(tmp_path)
    with pytest.raises(PairNormError, match="the limit ") as refused:
        read(path, limit)
    assert refused.value.code == "memory-limit"
    assert path.name in str(refused.value)
    assert refused.value.value > (limit if "{memory}" in refused.value.hint else limit // 16)


def test_a_distant_cell_does_not_enlarge_a_sheet(tmp_path: Path) -> None:
    far = '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'
    path = workbook(tmp_path, lambda xml: xml.replace("</sheetData>", far + "</sheetData>"))
    path.with_name("edges.csv").write_text(EDGES)
    with pytest.raises(PairNormError, match="the id in column 'id' is empty"):
        read(path, 10 * MEGABYTE)


def test_a_row_number_over_the_limit_of_excel_is_refused(tmp_path: Path) -> None:
    far = '<row r="99999999999"><c r="A99999999999"><v>1</v></c></row>'
    path = workbook(tmp_path, lambda xml: xml.replace("</sheetData>", far + "</sheetData>"))
    with pytest.raises(PairNormError, match="a row has a number over 1,048,576"):
        read(path, 10 * MEGABYTE)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize("name", ["nodes.csv", "nodes.csv.gz", "nodes.parquet", "nodes.xlsx", "nodes.jsonl"])
def test_small_files_are_read_within_a_small_limit(name: str, tmp_path: Path) -> None:
    frame, path = pandas.read_csv(io.StringIO(ROWS)), tmp_path / name
    kinds = {"parquet": frame.to_parquet, "xlsx": lambda path: frame.to_excel(path, index=False)}
    kinds["jsonl"] = lambda path: frame.to_json(path, orient="records", lines=True)
    kinds.get(name.split(".")[1], lambda path: frame.to_csv(path, index=False))(path)
    assert read(path, MEGABYTE).num_nodes == 50


def test_standard_input_and_queries_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edges.csv").write_text(EDGES)
    stream = SimpleNamespace(buffer=io.BytesIO(gzip.compress(ROWS.encode() + b"a" * (3 * MEGABYTE))))
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(PairNormError, match=r"the standard input: .* the limit"):
        Graph.from_files("-", tmp_path / "edges.csv", memory=2 * MEGABYTE)
    with sqlite3.connect(tmp_path / "base.db") as connection:
        connection.execute("CREATE TABLE edges (source, target)")
        connection.execute("CREATE TABLE nodes (id)")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with pytest.raises(PairNormError, match=r"the query for nodes: a table of .* is more than the limit"):
        Graph.from_files(endless, "edges", database=f"sqlite:///{tmp_path}/base.db", memory="2MB")


def test_pack_reads_a_large_table_but_no_endless_line(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(EDGES)
    nodes = tmp_path / "nodes.csv.gz"
    nodes.write_bytes(gzip.compress(ROWS.encode() + b"\n" * 2**25))
    with pytest.raises(
        PairNormError, match="a run of spaces and line breaks has more than 18MB, the limit is 17MB"
    ):
        pack(nodes, tmp_path / "edges.csv", tmp_path / "packed", memory="300MB")


@pytest.mark.parametrize("columns", [1, 300])
@pytest.mark.parametrize("compress", [lzma.compress, bz2.compress])
def test_pack_reads_no_endless_cell(tmp_path: Path, compress: Callable[[bytes], bytes], columns: int) -> None:
    """Line breaks within quotes do not end the row, late in a text that DuckDB cannot read by itself."""
    (tmp_path / "edges.csv").write_text(EDGES)
    names = ",".join(f"x{number}" for number in range(columns))
    rows = "".join(f"a{row}{',1' * columns}\n" for row in range(3000))
    cell = 2**16 * (b"y" * 2**10 + b"\n")
    nodes = tmp_path / f"nodes.csv.{compress.__module__[-3:].replace('zma', 'xz')}"
    nodes.write_bytes(compress(f'id,{names}\n{rows}z,"'.encode() + cell))
    with pytest.raises(
        PairNormError, match=rf"{nodes.name}: a row, or a few, have more than 33,554,432 char"
    ):
        pack(nodes, tmp_path / "edges.csv", tmp_path / "packed", memory=2**28)


def test_the_command_names_file_size_limit_and_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text(ROWS * 4000)
    edges.write_text(EDGES)
    words = ["fit", "--nodes", str(nodes), "--edges", str(edges), "--label", "x", "--memory", "2MB"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "nodes.csv: a text of 1,340,000 bytes, 3MB in memory, is more than the limit of 2MB" in error
    assert "--memory 3MB" in error


def test_the_default_is_half_of_the_free_memory() -> None:
    assert 0.4 < MemoryLimit.of(None).limit / free_memory() < 0.6
