import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier
from pairnorm.classify.candidates.norm_statistics import NormStatistics
from pairnorm.classify.candidates.propagation import normalized
from pairnorm.data import Graph
from pairnorm.nn import PairNorm, sgc_iterates

SETTINGS = {
    "logistic regression": {"model": "logistic regression", "scale": 10.0},
    **{
        f"SGC-{norm}": {"model": "SGC", "norm": norm, "depth": 3, "scale": 10.0}
        for norm in ("PN", "PN-SI", "PN-SCS")
    },
}


def named(graph: Graph, missing: bool) -> Graph:
    names = np.array([f"node {number}" for number in range(graph.num_nodes)])
    gone = (
        torch.arange(graph.num_nodes) % 3 == 0 if missing else torch.zeros(graph.num_nodes, dtype=torch.bool)
    )
    features = graph.features.to_dense() * ~gone[:, None]
    return graph.replace(node_names=names, features=features, missing=gone)


@pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("missing", [False, True])
def test_on_the_graph_they_were_measured_on_statistics_are_pair_norms(
    small: Graph, mode: str, missing: bool
) -> None:
    graph = named(small, missing)
    features = graph.features
    found = NormStatistics.of(graph, features, "zero", "rw", mode, 2.0, 4)
    basis, state = found.propagate(graph, features, "zero", "rw", mode, 2.0)
    state = state if basis is None else state @ basis.T
    walk = sgc_iterates(features, normalized(graph, "rw", features.device), PairNorm(2.0, mode))
    *_, expected = (one for _, one in zip(range(5), walk, strict=False))
    torch.testing.assert_close(state, expected, atol=2e-5, rtol=1e-4)


def test_statistics_of_a_smaller_depth_are_the_first_ones(small: Graph) -> None:
    features = small.features.to_dense()
    deep, flat = (NormStatistics.of(small, features, "zero", "rw", "PN", 1.0, depth) for depth in (5, 2))
    assert torch.equal(deep.centers[:3], flat.centers)
    fresh = NormStatistics.of(small, features.clone(), "zero", "rw", "PN", 1.0, 2)
    torch.testing.assert_close(fresh.centers, flat.centers)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_predictions_do_not_depend_on_which_other_nodes_are_in_the_graph(
    small: Graph, name: str, missing: bool
) -> None:
    """Nodes of one class alone, cut off from the others, are predicted as in the whole graph."""
    graph = named(small, missing)
    inside = graph.labels == 0
    ends = graph.edge_index
    ends = ends[:, inside[ends[0]] == inside[ends[1]]]
    whole = Graph.from_edges(
        ends, graph.features, graph.labels, missing=graph.missing, node_names=graph.node_names,
        train=graph.train, validation=graph.validation, test=graph.test,
    )  # fmt: skip
    classifier = NodeClassifier(**SETTINGS[name], refit=False).fit(whole)
    place = torch.cumsum(inside, 0) - 1
    kept = inside.numpy()
    alone = Graph.from_edges(
        place[ends[:, inside[ends[0]]]], graph.features[inside], missing=graph.missing[inside],
        node_names=graph.node_names[kept],
    )  # fmt: skip
    np.testing.assert_allclose(
        classifier.predict_proba(alone), classifier.predict_proba(whole)[kept], atol=1e-5
    )


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_a_shift_of_all_fitted_nodes_cancels_however_deep(small: Graph, mode: str) -> None:
    graph = named(small, missing=False)
    statistics = NormStatistics.of(graph, graph.features, "zero", "rw", mode, 1.0, 12)
    shifted = graph.replace(features=graph.features + 0.2)
    states = []
    for one in (graph, shifted):
        basis, state = statistics.propagate(one, one.features, "zero", "rw", mode, 1.0)
        states.append(state if basis is None else state @ basis.T)
    torch.testing.assert_close(states[1], states[0], atol=1e-3, rtol=1e-3)


def test_new_nodes_change_no_prediction_of_nodes_they_are_not_connected_with(small: Graph) -> None:
    graph = named(small, missing=False)
    classifier = NodeClassifier(**SETTINGS["SGC-PN"], refit=False).fit(graph)
    new = graph.num_nodes // 2
    grown = Graph.from_edges(
        graph.edge_index, torch.cat([graph.features, 5 + torch.rand(new, graph.num_features)]),
        node_names=np.array([*graph.node_names, *(f"new {number}" for number in range(new))]),
    )  # fmt: skip
    known = classifier.predict_proba(graph)
    np.testing.assert_allclose(classifier.predict_proba(grown)[: graph.num_nodes], known, atol=1e-5)
