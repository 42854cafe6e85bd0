import torch

from pairnorm.data import Graph


def test_cora_tells_what_is_inside(cora: Graph) -> None:
    assert repr(cora).splitlines() == [
        "Graph 'cora'",
        "  nodes      2,708",
        "  edges      5,278 undirected, 3.9 per node",
        "  features   1,433 sparse, 1.27% non-zero",
        "  classes    7 (Theory, Reinforcement_Learning, Genetic_Algorithms, Neural_Networks, "
        "Probabilistic_Methods, Case_Based, Rule_Learning)",
        "  labelled   2,708 (100%)",
        "  split      train 140, validation 500, test 2,068",
        "  missing    no vector",
        "  homophily  0.810: 4,275 of 5,278 edges between labelled nodes join one class",
        "  note       5,429 edges are listed, 5,278 of them distinct and undirected",
    ]


def test_what_is_missing_is_told(small: Graph) -> None:
    entries = torch.zeros(5, 3, dtype=torch.bool)
    entries[1], entries[2, 0] = True, True
    text = repr(small.replace(missing=entries))
    assert "labelled   4 (80%)" in text
    assert "missing    1 (20%) vectors, 1 single entries" in text
    assert "missing    1 (20%) vectors\n" in repr(small.replace(missing=entries[:, 1]))


def test_an_empty_graph_has_a_description_too() -> None:
    text = repr(Graph.from_edges([[], []], num_nodes=0))
    assert "nodes      0" in text
    assert "classes    none" in text
    assert "homophily  unknown" in text
