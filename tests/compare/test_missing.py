import os

import numpy as np
import pytest
import torch

from pairnorm.compare.missing import (
    FIT,
    FP_VECTORS,
    FSD_CAP,
    FSD_CAP_RELEASED,
    PROTOCOLS,
    SSNC,
    TRAINED,
    choose_protocols,
    hold_out_labels,
    largest_component,
    mask_features,
    reached,
)
from pairnorm.data import Graph, csbm, missing_entries, missing_vectors


def test_methods_have_equally_many_candidates():
    counts = {len(SSNC.candidates(cell, 0)) for cell in SSNC.cells() if cell.dataset == "cora"}
    assert counts == {12}
    assert {len(FP_VECTORS.candidates(cell, 0)) for cell in FP_VECTORS.cells()} == {1}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_runs_are_unique_and_candidate_order_is_stable(protocol):
    cells = [cell for cell in protocol.cells() if cell.dataset == protocol.datasets[0]]
    specs = [spec for cell in cells for spec in protocol.candidates(cell, 0)]
    assert len(specs) == len(set(specs))
    for cell in cells[:5]:
        for seed in protocol.seeds(cell):
            others = protocol.candidates(cell, seed)
            assert [one.replace(split="x") for one in others] == [
                one.replace(split="x") for one in protocol.candidates(cell, 0)
            ]
    assert len(set(protocol.evaluated_cells())) == len(list(protocol.evaluated_cells()))


def test_deterministic_methods_run_once_for_equal_masks():
    cells = [*SSNC.cells(), *SSNC.evaluated_cells()]
    once = {cell[3:] for cell in cells if len(SSNC.seeds(cell)) == 1}
    assert once == {
        (model, percent) for model in ("label propagation", "Correct & Smooth") for percent in (0, 100)
    }
    assert {len(SSNC.seeds(cell)) for cell in cells} == {1, 5}
    assert {len(FP_VECTORS.seeds(cell)) for cell in FP_VECTORS.evaluated_cells()} == {10}


def test_complete_features_are_not_imputed():
    imputations = {cell.imputation for cell in SSNC.cells() if cell.missing_percent == 0}
    assert imputations == {"zero"}


def test_fsd_cap_is_evaluated_on_missing_vectors_only():
    cells = [cell for protocol in PROTOCOLS.values() for cell in protocol.evaluated_cells()]
    own = {cell[:2] + cell[3:] for cell in cells if cell.model in (FSD_CAP, FSD_CAP_RELEASED)}
    assert own == {
        ("fp-vectors", dataset, model, percent)
        for dataset in ("cora", "citeseer", "pubmed")
        for model in (FSD_CAP, FSD_CAP_RELEASED)
        for percent in (99.5, 90, 50)
    }


def test_fallback_is_evaluated_on_graphs_with_unreachable_nodes():
    cells = [cell for protocol in PROTOCOLS.values() for cell in protocol.fallback_cells()]
    assert {cell[:2] + cell[4:] for cell in cells} == {
        *(("ssnc-mv", name, percent) for name in ("cora", "citeseer") for percent in (100, 80, 40)),
        *(
            (by, name, percent)
            for by in ("by-class", "by-degree")
            for name in ("cora", "citeseer")
            for percent in (80, 40)
        ),
    }
    assert SSNC.test_sets("cora") == ("cora", "cora-reached")
    assert SSNC.test_sets("pubmed") == FP_VECTORS.test_sets("pubmed") == ("pubmed",)
    assert FP_VECTORS.test_sets("cora") == ("cora",)


@pytest.mark.skipif("PAIRNORM_DATA" not in os.environ, reason="PAIRNORM_DATA is not set")
@pytest.mark.parametrize("name", ["pubmed", "coauthor-cs"])
def test_other_graphs_have_no_unreachable_nodes(name):
    graph = SSNC.graph(name)
    assert bool(reached(graph)[graph.test].all())


def test_choose_protocols_selects_a_subset():
    whole = {cell for protocol in PROTOCOLS.values() for cell in protocol.cells()}
    chosen = choose_protocols(["ssnc-mv", "fp-vectors"], ["cora"], ["GCN", FIT], [99.5, 100], runs=2)
    selected = {cell for protocol in chosen for cell in protocol.cells()}
    assert selected < whole
    assert {cell.model for cell in selected} == {"GCN"}
    assert {cell.missing_percent for cell in selected} == {99.5, 100}
    assert all(protocol.runs == 2 for protocol in chosen)
    assert choose_protocols() == list(PROTOCOLS.values())
    assert [one.name for one in choose_protocols(["tables", "ssnc-mv"])] == [
        "ssnc-mv",
        "tables-80",
        "tables-95",
    ]
    few = choose_protocols(["ssnc-mv"], models=["SGC"], epochs=3)[0]
    assert {spec.epochs for cell in few.cells() for spec in few.candidates(cell, 0)} == {3}
    assert set(few.trained) == {"SGC"} < set(TRAINED)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"protocols": ["ssnc"]}, "unknown-choice"),
        ({"datasets": ["coar"]}, "unknown-choice"),
        ({"models": ["GNC"]}, "unknown-choice"),
        ({"missing": [101]}, "not-a-number"),
        ({"missing": [33]}, "nothing-selected"),
        ({"protocols": ["tables-80"], "models": ["GCN"]}, "nothing-selected"),
    ],
)
def test_invalid_selection_raises(options, code, raises):
    with raises(code):
        choose_protocols(**options)


def test_mask_features_combines_drawn_and_missing_features():
    graph = csbm(100, classes=2, features=6, words=3, seed=1)
    graph = graph.replace(missing=torch.arange(100) % 7 == 0)
    whole = graph.features.to_dense()
    drawn = missing_vectors(graph, 0.5, seed=3)
    result = mask_features(graph, drawn)
    assert torch.equal(result.missing, drawn.mask[:, 0] | graph.missing)
    assert torch.equal(result.features.to_dense(), whole * ~drawn.mask)

    dense = graph.replace(features=whole)
    drawn = missing_entries(dense, 0.5, seed=3)
    result = mask_features(dense, drawn)
    mask = drawn.mask[:, 0].view(100, 6)
    assert torch.equal(result.missing, mask | graph.missing[:, None])
    assert torch.equal(result.features, whole * ~mask)


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_hold_out_labels_is_stratified(share):
    labels = torch.tensor([0] * 200 + [1] * 60 + [-1] * 40)
    split = hold_out_labels(labels, share, seed=4)
    assert torch.equal(torch.stack(split).sum(0), (labels >= 0).long())
    for number, size in ((0, 200), (1, 60)):
        train, validation, _ = (int(mask[labels == number].sum()) for mask in split)
        assert abs(train - (1 - share) * size) < 1
        assert (train >= 1, validation) == (True, 0)
    assert not torch.equal(split.train, hold_out_labels(labels, share, seed=5).train)


def test_largest_component_and_reached_nodes():
    edges = torch.tensor([[0, 1, 3, 4, 5, 7], [1, 2, 4, 5, 6, 8]])
    features, labels = torch.eye(10), torch.arange(10) % 2
    train = torch.zeros(10, dtype=torch.bool).index_fill_(0, torch.tensor([1, 9]), True)
    graph = Graph.from_edges(edges, features, labels=labels, train=train)
    assert reached(graph).nonzero().flatten().tolist() == [0, 1, 2, 9]
    largest = largest_component(graph)
    assert torch.equal(largest.features, features[3:7])
    assert torch.equal(largest.labels, labels[3:7])
    path = np.eye(4, k=1) + np.eye(4, k=-1)
    assert torch.equal(largest.adjacency.to_dense().double(), torch.from_numpy(path))


def test_published_protocol_uses_largest_component_of_cora():
    graph = FP_VECTORS.graph("cora", seed=3)
    assert (graph.num_nodes, graph.num_edges) == (2485, 5069)
    assert [int(part.sum()) for part in graph.split] == [140, 1360, 985]
    assert not torch.equal(graph.test, FP_VECTORS.graph("cora", seed=4).test)
