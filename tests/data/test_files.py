from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairnorm.data import Graph, GraphWarning
from pairnorm.errors import PairNormError

Write = Callable[[str, str], Path]
NODES = """customer,risk,age,city,part
ann,low,31,Rome,train
bob,high,,Oslo,train
cy,low,25,Rome,val
di,,,,
ed,high,44,Oslo,test
"""
EDGES = "from,to,amount\nann,bob,2\nbob,ann,2\nbob,cy,1\ncy,cy,1\ncy,di,1\nbob,cy,3\n"


def test_tables_become_a_graph(write: Write) -> None:
    nodes, edges = write("nodes.csv", NODES), write("edges.csv", EDGES)
    with pytest.warns(GraphWarning) as warned:
        graph = Graph.from_files(nodes, edges, label="risk", split="part", weight="amount")
    (warning,) = (warning for warning in warned if warning.category is GraphWarning)
    assert warning.filename == __file__
    assert graph.node_names.tolist() == ["ann", "bob", "cy", "di", "ed"]
    assert graph.class_names == ("high", "low")
    assert graph.labels.tolist() == [1, 0, 1, -1, 0]
    assert [mask.nonzero().flatten().tolist() for mask in graph.split] == [[0, 1], [2], [4]]
    assert graph.feature_names == ("age", "city=Oslo", "city=Rome")
    assert graph.features.tolist() == [[31, 0, 1], [0, 1, 0], [25, 0, 1], [0, 0, 0], [44, 1, 0]]
    assert graph.missing[:, 0].tolist() == [False, True, False, True, False]
    assert graph.missing_vectors.tolist() == [False, False, False, True, False]
    assert graph.adjacency.to_dense()[1].tolist() == [2, 0, 3, 0, 0]
    assert graph.name == "nodes"
    assert graph.notes == (
        "1 self-loop was dropped",
        "1 repeated edge was merged",
        "2 edges were listed in one direction only and are taken as undirected",
        "1 node has no edge",
    )
    assert all(note in str(warning.message) for note in graph.notes)


@pytest.mark.filterwarnings("ignore::pairnorm.data.files.GraphWarning")
@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "txt"])
def test_kinds_of_tables_say_the_same(tmp_path: Path, write: Write, kind: str) -> None:
    for name, text in (("nodes", NODES), ("edges", EDGES)):
        frame = pandas.read_csv(write(f"{name}.csv", text))
        if kind == "parquet":
            frame.to_parquet(tmp_path / f"{name}.parquet")
        elif kind != "csv":
            frame.to_csv(tmp_path / f"{name}.{kind}", sep="\t" if kind == "tsv" else "|", index=False)
    options = {"delimiter": "|"} if kind == "txt" else {}
    paths = (tmp_path / f"nodes.{kind}", tmp_path / f"edges.{kind}")
    graph = Graph.from_files(*paths, label="risk", split="part", **options)
    assert graph.features.tolist()[0] == [31, 0, 1]
    assert graph.labels.tolist() == [1, 0, 1, -1, 0]
    assert graph.num_edges == 3
    assert graph.missing_vectors.tolist() == [False, False, False, True, False]


def test_a_graph_written_as_tables_comes_back(tmp_path: Path, cora: Graph) -> None:
    frame = pandas.DataFrame(cora.features.to_dense().numpy()).add_prefix("word")
    frame.insert(0, "paper", [f"p{name}" for name in cora.node_names])
    frame.insert(1, "subject", [cora.class_names[label] for label in cora.labels])
    blank = cora.missing.numpy() | (torch.arange(2708) >= 140).numpy()
    frame.loc[blank, frame.columns[2:]] = None
    frame.to_csv(tmp_path / "nodes.csv", index=False)
    source, target = cora.node_names[cora.edge_index.numpy()]
    ends = pandas.DataFrame({"citing": source, "cited": target}).map("p{}".format)
    ends.to_csv(tmp_path / "edges.csv", index=False)

    graph = Graph.from_files(tmp_path / "nodes.csv", tmp_path / "edges.csv", label="subject")
    assert graph.notes == ()
    assert torch.equal(graph.edge_index, cora.edge_index)
    assert graph.features.layout == torch.sparse_csr
    assert torch.equal(graph.features.to_dense()[:140], cora.features.to_dense()[:140])
    assert torch.equal(graph.missing, torch.arange(2708) >= 140)
    assert graph.class_names == tuple(sorted(cora.class_names))
    assert [graph.class_names[label] for label in graph.labels] == [
        cora.class_names[label] for label in cora.labels
    ]


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "message"),
    [
        (
            NODES,
            "from,to\nann,zed\n",
            {},
            r"edges\.csv, line 2: 'zed' in column 'to' is not the id of a node",
        ),
        (NODES + "ann,low,1,Rome,\n", EDGES, {}, r"nodes\.csv, line 7: id 'ann' was used before, in line 2"),
        (NODES.replace("25", "old"), EDGES, {}, r"nodes\.csv, line 4: 'old' in column 'age' is not a number"),
        (NODES.replace("25", "inf"), EDGES, {}, r"nodes\.csv, line 4: inf in column 'age' is not finite"),
        (NODES.replace("high", "low"), EDGES, {}, r"nodes\.csv: column 'risk' holds one class only, 'low'"),
        (NODES.replace("high", "").replace("low", ""), EDGES, {}, r"nodes\.csv: no node has a label"),
        (NODES.replace("Oslo,train", "Oslo,"), EDGES, {"split": "part"}, "class 'high' has no training node"),
        (NODES, EDGES, {"label": "risc"}, r"no column 'risc' \(label\).*Did you mean 'risk'"),
        (NODES, EDGES, {"id": "costumer"}, r"no column 'costumer' \(id\).*Did you mean 'customer'"),
        (NODES, EDGES, {"source": "form"}, r"no column 'form' \(source\).*Did you mean 'from'"),
        (NODES, EDGES, {"weight": "amout"}, r"no column 'amout' \(weight\).*Did you mean 'amount'"),
        (NODES, EDGES, {"ignore": ["ag"]}, r"no column 'ag' \(ignore\).*Did you mean 'age'"),
        (NODES, EDGES, {"source": "from", "target": "from"}, "column 'from' is both source and target"),
        (NODES, EDGES, {"label": None, "split": "part"}, "split is 'part' but label is not given"),
        ("", EDGES, {}, r"nodes\.csv: the file is empty"),
        (NODES, "", {}, r"edges\.csv: the file is empty"),
        ("customer,risk\n", EDGES, {}, r"nodes\.csv: there are no rows under the header"),
        (NODES.replace(",", ";"), EDGES, {}, r"nodes\.csv: line 1 is one column .* separated by ';'"),
        (NODES, "from to\nann bob\n", {}, r"edges\.csv: it has one column only, 'from to'"),
    ],
)
def test_bad_input_is_named(
    write: Write, nodes: str, edges: str, options: dict[str, object], message: str
) -> None:
    paths = write("nodes.csv", nodes), write("edges.csv", edges)
    with pytest.raises(PairNormError, match=message):
        Graph.from_files(*paths, **({"label": "risk"} | options))


def test_files_that_do_not_fit_are_named(write: Write, tmp_path: Path) -> None:
    nodes = write("nodes.csv", NODES)
    with pytest.raises(PairNormError, match=r"nodez\.csv: there is no such file"):
        Graph.from_files(tmp_path / "nodez.csv", nodes)
    with pytest.raises(PairNormError, match=r"nodes\.csv: a table of nodes needs a table of edges"):
        Graph.from_files(nodes)
    with pytest.raises(PairNormError, match=r"nodes\.xlsx: '\.xlsx' is no table, but edges are given"):
        Graph.from_files(write("nodes.xlsx", NODES), nodes)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_na_is_a_country_and_no_number(write: Write, tmp_path: Path, kind: str) -> None:
    nodes = write(
        "nodes.csv", "id,country,age,member\na,NA,31,TRUE\nb,DE,NA,FALSE\nc,,?,NA\nd,None,40,TRUE\n"
    )
    edges = write("edges.csv", "source,target\na,b\nb,a\nc,d\nd,c\n")
    if kind == "parquet":
        frame = pandas.read_csv(nodes, dtype=str, keep_default_na=False)
        nodes = tmp_path / "nodes.parquet"
        frame.to_parquet(nodes)
    with pytest.warns(GraphWarning, match="'NA' in column 'country' is read as a category; .*'None' in"):
        graph = Graph.from_files(nodes, edges)
    assert graph.feature_names == ("country=DE", "country=NA", "country=None", "age", "member")
    assert graph.features.tolist() == [
        [0, 1, 0, 31, 1],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 40, 1],
    ]
    assert graph.missing.tolist() == [
        [False] * 5,
        [False, False, False, True, False],
        [True] * 5,
        [False] * 5,
    ]


def test_without_a_label_column_every_class_is_unknown(write: Write) -> None:
    edges = write("edges.csv", "source,target\n1,2\n2,1\n")
    graph = Graph.from_files(write("nodes.csv", "id,x\n1,0.5\n2,1\n"), edges)
    assert not graph.labelled.any()
    assert graph.num_classes == 0
    assert graph.node_names.tolist() == [1, 2]


Text = st.text(alphabet=st.sampled_from("ab1,;\"'\n\t.-é \0∞einfxNA"), max_size=60)
Cells = st.one_of(st.sampled_from(["", "a", "b", "c", "1", "2.5", "inf", "nan", "train", "x y"]), Text)


def table(header: list[str]) -> st.SearchStrategy[str]:
    row = st.lists(Cells, min_size=1, max_size=len(header) + 1).map(",".join)
    return st.lists(row, max_size=6).map(lambda rows: "\n".join([",".join(header), *rows]))


@pytest.mark.filterwarnings("ignore::pairnorm.data.files.GraphWarning")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(table(["id", "y", "x", "s"]), Text),
    st.one_of(table(["source", "target", "w"]), Text),
    st.fixed_dictionaries(
        {},
        optional={
            "label": st.sampled_from(["y", "Y", ""]),
            "split": st.just("s"),
            "weight": st.just("w"),
            "categorical": st.just(["x"]),
            "delimiter": st.sampled_from([",", ";", "\t"]),
        },
    ),
)
def test_nothing_but_our_own_error_escapes(
    tmp_path: Path, nodes: str, edges: str, options: dict[str, object]
) -> None:
    paths = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    for path, text in zip(paths, (nodes, edges), strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    try:
        graph = Graph.from_files(*paths, **options)  # type: ignore[arg-type]
    except PairNormError:
        return
    assert torch.isfinite(graph.features.to_dense()).all()
    assert len(set(graph.node_names.tolist())) == graph.num_nodes > 0


Name = st.text(alphabet="abcé01 _-", min_size=1, max_size=5).map(str.strip).filter(bool)


@pytest.mark.filterwarnings("ignore::pairnorm.data.files.GraphWarning")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_good_tables_are_read_as_they_were_written(tmp_path: Path, data: st.DataObject) -> None:
    names = data.draw(st.lists(Name, min_size=2, max_size=9, unique=True))
    values = data.draw(st.lists(st.integers(-99, 99), min_size=len(names), max_size=len(names)))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20))
    pandas.DataFrame({"id": names, "x": values}).to_csv(tmp_path / "n.csv", index=False)
    pandas.DataFrame(pairs, columns=["a", "b"]).to_csv(tmp_path / "e.csv", index=False)
    graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", source="a", target="b")
    assert [str(name) for name in graph.node_names.tolist()] == names
    assert graph.features.to_dense().flatten().tolist() == values
    found = {frozenset(str(graph.node_names[end]) for end in edge) for edge in graph.edge_index.T.tolist()}
    assert found == {frozenset(pair) for pair in pairs if pair[0] != pair[1]}


def test_words_that_others_write_for_an_empty_cell_are_noted(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,age,job,risk\na,1,cook,low\nb,NA,NA,NA\nc,3,cook,high\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    with pytest.warns(GraphWarning, match="'NA' is read as a class.*'NA' in column 'job' is read as a cat"):
        graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", label="risk")
    assert graph.class_names == ("NA", "high", "low")
