import pytest
from written import write_customers

from pairnorm import cli
from pairnorm.classify import suggest_depth
from pairnorm.data import Graph


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_diagnose_prints_table_and_depth_and_saves_figure(tmp_path, pairnorm):
    files, out = write_customers(tmp_path), tmp_path / "d.png"
    printed = pairnorm("diagnose", *files.options, "--label", "risk", "--out", out).out
    rows = {
        cells[0]: cells[1:] for line in printed.splitlines() if (cells := line.split()) and cells[0].isdigit()
    }
    assert rows["0"][:4] == ["100%"] * 4
    assert float(rows["60"][0].rstrip("%")) < float(rows["60"][1].rstrip("%"))
    depth = suggest_depth(Graph.from_files(files.nodes, files.edges, label="risk")).depth
    assert f"Suggested depth: {depth}." in printed
    assert "Next: pairnorm fit" in printed
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_html_output_is_a_page(tmp_path):
    files, out = write_customers(tmp_path), tmp_path / "d.html"
    assert cli.main(["diagnose", *files.options, "--label", "risk", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "<h1>Oversmoothing of customers</h1>" in text
    depth = suggest_depth(Graph.from_files(files.nodes, files.edges, label="risk")).depth
    assert f'<h2>Suggested depth</h2><p class="large">{depth}</p>' in text


def test_unreachable_nodes_are_reported(tmp_path, pairnorm):
    (tmp_path / "n.csv").write_text("id,age\na,1\nb,2\nc,\nd,\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    words = ["diagnose", "--nodes", tmp_path / "n.csv", "--edges", tmp_path / "e.csv"]
    assert "1 of 2 nodes without features have no path" in pairnorm(*words, "--out", tmp_path / "d.png").out


def test_invalid_input_writes_nothing(tmp_path, pairnorm):
    (tmp_path / "n.csv").write_text("id,age\na,1\na,2\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    words = ["diagnose", "--nodes", tmp_path / "n.csv", "--edges", tmp_path / "e.csv"]
    assert "id 'a' was used before" in pairnorm(*words, "--out", tmp_path / "d.png", code=1).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv"]
