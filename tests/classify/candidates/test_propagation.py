import pickle
from copy import deepcopy
from itertools import islice

import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier, Scaling
from pairnorm.classify import scaling as module
from pairnorm.classify.candidates import PreparedGraph, Task, columns
from pairnorm.classify.candidates.sgc import Propagation
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.classify.search_space import plan
from pairnorm.data import Graph
from pairnorm.impute import impute
from pairnorm.nn import PairNorm, normalized_adjacency, sgc_iterates

CPU = torch.device("cpu")


def on(graph: Graph) -> PreparedGraph:
    return PreparedGraph(graph, Scaling.of(graph, "none")(graph), CPU)


@pytest.fixture
def gaps(small: Graph) -> Graph:
    missing = torch.arange(small.num_nodes) % 3 == 0
    return small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)


@pytest.mark.parametrize("mode", [None, "PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("method", ["zero", "fp"])
@pytest.mark.parametrize("known_every", [1000, 40])
def test_states_equal_iterates_in_any_order(small, mode, method, known_every):
    """Also where few rows are known, and span fewer columns than there are."""
    missing = torch.arange(small.num_nodes) % known_every == 0
    missing = missing if known_every == 1000 else ~missing & ~small.train
    gaps = small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)
    start = gaps.features
    start = start if method == "zero" else impute(start, gaps.missing, gaps.adjacency, method=method)
    norm = None if mode is None else PairNorm(1.0, mode)
    expected = list(islice(sgc_iterates(start, normalized_adjacency(gaps.adjacency), norm), 9))
    prepared, propagation = on(gaps), Propagation(method, "rw", mode)
    basis, _ = prepared.reduced
    assert (basis is None) == (known_every == 1000)
    for depth in (3, 8, 5, 3, 0, 8):
        state = propagation.state(prepared, depth)
        state = state if basis is None else state @ basis.T
        torch.testing.assert_close(state, expected[depth], atol=2e-5, rtol=1e-4)
    assert propagation.state(prepared, 5) is propagation.state(prepared, 5)


def test_masked_features_have_separate_states(gaps):
    prepared, propagation = on(gaps), Propagation("fp", "rw", "PN")
    before = propagation.state(prepared, 4)
    masked = prepared.masked(torch.arange(gaps.num_nodes) % 5 == 0)
    assert propagation.state(masked, 4).shape[1] < before.shape[1]
    assert propagation.state(prepared, 4) is before
    assert masked.adjacency("rw") is prepared.adjacency("rw")
    known = on(gaps.replace(missing=torch.zeros_like(gaps.missing)))
    assert known.imputed("fp") is known.reduced[1]


def test_least_recently_used_values_are_evicted(gaps, monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHE_BYTES", 2 * gaps.features.nbytes)
    monkeypatch.setattr(module, "SMALL_BYTES", 2**12)
    prepared = on(gaps)
    for key in "abac":
        prepared.cached(key, gaps.features.clone)
    assert [prepared.peek(key) is not None for key in "abc"] == [True, False, True]


def test_pickles_exclude_the_cache_and_copies_keep_the_adjacency(gaps):
    prepared, propagation = on(gaps), Propagation("zero", "rw", "PN")
    size = len(pickle.dumps(prepared))
    propagation.state(prepared, 3)
    assert len(pickle.dumps(prepared)) == size
    pickled, copied = pickle.loads(pickle.dumps(prepared)), deepcopy(prepared)
    assert not pickled._cache
    assert copied.adjacency("rw") is prepared.adjacency("rw")
    for copy in (pickled, copied):
        assert copy.peek((propagation, 3)) is None
        assert torch.equal(copy.features, prepared.features)


def test_sgc_without_pair_norm_differs_by_a_scale(gaps):
    """Centering changes only the bias, so that over many nodes one of the two norms is enough."""
    prepared = on(gaps)
    plain, normed = (Propagation("zero", "rw", mode).state(prepared, 6) for mode in (None, "PN"))
    centered = plain - plain.mean(0)
    scale = float(centered.norm() / normed.norm())
    assert torch.allclose(centered, scale * normed, atol=1e-4 * float(centered.abs().max()))


def test_large_graph_plans_one_norm(small, monkeypatch):
    monkeypatch.setattr(module, "MANY_NODES", 1)
    for options, norms in (({}, ["PN"]), ({"norm": ["none", "PN"]}, ["none", "PN"])):
        sgc = {family.name: family for family in plan(NodeClassifier(**options), small)}["SGC"]
        assert list(sgc.norms) == norms


def test_feature_columns_are_cached(gaps):
    prepared = on(gaps)
    widest = columns.feature_columns(prepared, 3)
    fewer = columns.feature_columns(prepared, 1)
    assert [id(one) for one in fewer] == [id(one) for one in (*widest[:2], widest[-1])]
    assert fewer[0].isnan().any()


def test_label_columns_are_cached_by_labels(small):
    prepared, classes = on(small), small.num_classes
    first = columns.label_columns(prepared, KnownLabels.of(Task(small, prepared)), classes)
    assert columns.label_columns(prepared, KnownLabels.of(Task(small, prepared)), classes) is first
    other = small.replace(train=small.validation, validation=small.train)
    known = KnownLabels.of(Task(other, prepared))
    assert not torch.equal(columns.label_columns(prepared, known, classes), first)


SETTINGS = {
    "logistic regression": {"model": "logistic regression", "scale": 10.0},
    **{
        f"SGC-{norm}": {"model": "SGC", "norm": norm, "depth": 3, "scale": 10.0}
        for norm in ("PN", "PN-SI", "PN-SCS")
    },
}


def named(graph: Graph, missing: bool) -> Graph:
    names = np.array([f"node {number}" for number in range(graph.num_nodes)])
    is_missing = (
        torch.arange(graph.num_nodes) % 3 == 0 if missing else torch.zeros(graph.num_nodes, dtype=torch.bool)
    )
    features = graph.features.to_dense() * ~is_missing[:, None]
    return graph.replace(node_names=names, features=features, missing=is_missing)


@pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("missing", [False, True])
def test_statistics_reproduce_pair_norm_on_fitted_graph(small, mode, missing):
    graph = named(small, missing)
    propagation = Propagation("zero", "rw", mode, 2.0)
    statistics = propagation.statistics(on(graph), 4)
    basis, (state,) = propagation.fitted_states(on(graph), 4, statistics)
    state = state if basis is None else state @ basis.T
    iterates = sgc_iterates(graph.features, normalized_adjacency(graph.adjacency), PairNorm(2.0, mode))
    torch.testing.assert_close(state, next(islice(iterates, 4, None)), atol=2e-5, rtol=1e-4)


def test_statistics_of_smaller_depth_are_a_prefix(small):
    prepared, propagation = on(small), Propagation("zero", "rw", "PN")
    deep, flat = (propagation.statistics(prepared, depth) for depth in (5, 2))
    assert torch.equal(deep.centers[:3], flat.centers)
    torch.testing.assert_close(propagation.statistics(on(small), 2).centers, flat.centers)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_component_alone_is_predicted_as_in_whole_graph(small, name, missing):
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
    position = torch.cumsum(inside, 0) - 1
    kept = inside.numpy()
    alone = Graph.from_edges(
        position[ends[:, inside[ends[0]]]], graph.features[inside], missing=graph.missing[inside],
        node_names=graph.node_names[kept],
    )  # fmt: skip
    np.testing.assert_allclose(
        classifier.predict_proba(alone), classifier.predict_proba(whole)[kept], atol=1e-5
    )


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_constant_feature_shift_cancels(small, mode):
    graph = named(small, missing=False)
    propagation = Propagation("zero", "rw", mode)
    statistics = propagation.statistics(on(graph), 12)
    shifted = graph.replace(features=graph.features + 0.2)
    states = []
    for one in (graph, shifted):
        basis, (state,) = propagation.fitted_states(on(one), 12, statistics)
        states.append(state if basis is None else state @ basis.T)
    torch.testing.assert_close(states[1], states[0], atol=1e-3, rtol=1e-3)


def test_unconnected_new_nodes_change_no_prediction(small):
    graph = named(small, missing=False)
    classifier = NodeClassifier(**SETTINGS["SGC-PN"], refit=False).fit(graph)
    new = graph.num_nodes // 2
    grown = Graph.from_edges(
        graph.edge_index, torch.cat([graph.features, 5 + torch.rand(new, graph.num_features)]),
        node_names=np.array([*graph.node_names, *(f"new {number}" for number in range(new))]),
    )  # fmt: skip
    known = classifier.predict_proba(graph)
    np.testing.assert_allclose(classifier.predict_proba(grown)[: graph.num_nodes], known, atol=1e-5)
