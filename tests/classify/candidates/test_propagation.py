from itertools import islice

import pytest
import torch

from pairnorm.classify import NodeClassifier, Scaling
from pairnorm.classify.candidates import SGCFamily, Task, columns
from pairnorm.classify.candidates import propagation as module
from pairnorm.classify.candidates.base import KnownLabels
from pairnorm.classify.candidates.propagation import SharedPropagation, filled, normalized
from pairnorm.classify.search_space import plan
from pairnorm.data import Graph
from pairnorm.impute import impute
from pairnorm.nn import PairNorm, normalized_adjacency, sgc_iterates

CPU = torch.device("cpu")


@pytest.fixture
def gaps(small: Graph) -> Graph:
    missing = torch.arange(small.num_nodes) % 3 == 0
    return small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)


@pytest.fixture
def many(monkeypatch) -> None:
    monkeypatch.setattr(module, "MANY_NODES", 1)


@pytest.mark.parametrize("mode", [None, "PN", "PN-SI"])
@pytest.mark.parametrize("fill", ["zero", "fp"])
def test_states_are_those_of_the_walk_however_they_are_come_by(gaps: Graph, many, mode, fill) -> None:
    features = Scaling.of(gaps)(gaps).to_dense()
    start = features if fill == "zero" else impute(features, gaps.missing, gaps.adjacency, method=fill)
    norm = None if mode is None else PairNorm(1.0, mode)
    expected = list(islice(sgc_iterates(start, normalized_adjacency(gaps.adjacency), norm), 9))
    walk = SharedPropagation(gaps, features, fill, "rw", mode)
    for depth in (3, 8, 5, 3, 0, 8):
        assert torch.allclose(walk.state(depth), expected[depth], atol=1e-6), depth
    assert walk.state(5) is walk.state(5)


def test_a_changed_graph_is_walked_anew(gaps: Graph, many) -> None:
    features = Scaling.of(gaps)(gaps).to_dense()
    before = SharedPropagation(gaps, features, "fp", "rw", "PN").state(4)
    fewer = gaps.replace(adjacency=torch.zeros_like(gaps.adjacency.to_dense()).to_sparse_csr())
    assert not torch.allclose(SharedPropagation(fewer, features, "fp", "rw", "PN").state(4), before)
    known = gaps.replace(missing=torch.zeros_like(gaps.missing))
    assert filled("fp", known, features) is features


def test_the_oldest_states_make_room(gaps: Graph, many, monkeypatch) -> None:
    features = Scaling.of(gaps)(gaps).to_dense()
    monkeypatch.setattr(module, "KEPT_STATES", 2 * features.nbytes)
    walk = SharedPropagation(gaps, features, "zero", "rw", "PN")
    for depth in (1, 2, 3):
        walk.state(depth)
    assert sorted(walk._kept()) == [2, 3]


def test_few_nodes_keep_no_states(gaps: Graph) -> None:
    walk = SharedPropagation(gaps, Scaling.of(gaps)(gaps).to_dense(), "zero", "rw", "PN")
    walk.state(2)
    assert not walk._kept()


def test_an_adjacency_is_normalized_once(small: Graph) -> None:
    assert normalized(small, "sym", CPU) is normalized(small.replace(name="other"), "sym", CPU)
    expected = normalized_adjacency(small.adjacency, "sym").to_dense()
    assert torch.equal(normalized(small, "sym", CPU).to_dense(), expected)


@pytest.mark.parametrize("norm", ["none", "PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("limit", ["MANY_NODES", "EXPENSIVE_STEP"])
@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("every", [3, 40])
def test_what_shares_walks_predicts_the_same(gaps: Graph, monkeypatch, norm, limit, entries, every) -> None:
    """Also where few rows are known, and span fewer columns than there are."""
    missing = torch.arange(gaps.num_nodes) % every == 0
    missing = missing if every == 3 else ~missing & ~gaps.train
    gaps = gaps.replace(
        features=gaps.features * ~missing[:, None],
        missing=missing[:, None].expand(gaps.features.shape) if entries else missing,
    )
    task = Task(gaps, Scaling.of(gaps)(gaps), "rw", CPU)
    found = []
    for most in (10**9, 1):
        monkeypatch.setattr(module, limit, most)
        ((*_, learn),) = SGCFamily([norm], (4,), (10.0,), ("fp",)).fit(task, lambda what: None)
        network = learn(task)
        assert network.module.weight.shape[1] == gaps.num_features
        found.append(network.logits(gaps, task.features, CPU).softmax(-1))
    assert torch.allclose(*found, atol=5e-3)  # with many nodes, the solver's tolerance is looser


def test_an_sgc_without_pair_norm_is_one_of_another_scale(gaps: Graph) -> None:
    """What over many nodes spares half of the walks: the bias takes what centering takes away."""
    features = Scaling.of(gaps)(gaps).to_dense()
    matrix = normalized_adjacency(gaps.adjacency)
    plain = next(islice(sgc_iterates(features, matrix), 6, None))
    normed = next(islice(sgc_iterates(features, matrix, PairNorm()), 6, None))
    centered = plain - plain.mean(0)
    scale = float(centered.norm() / normed.norm())
    assert torch.allclose(centered, scale * normed, atol=1e-4 * float(centered.abs().max()))


def test_over_many_nodes_one_norm_is_planned(small: Graph, many) -> None:
    assert list(plan(NodeClassifier(), small)[0].norms) == ["PN"]
    assert list(plan(NodeClassifier(norm=["none", "PN"]), small)[0].norms) == ["none", "PN"]
    assert list(plan(NodeClassifier(adjacency="sym"), small)[0].norms) == ["none", "PN"]


def test_feature_columns_are_kept_over_many_nodes(gaps: Graph, many) -> None:
    features = Scaling.of(gaps)(gaps).to_dense()
    widest = columns.feature_columns(gaps, features, 3)
    fewer = columns.feature_columns(gaps, features, 1)
    assert [id(one) for one in fewer] == [id(one) for one in (*widest[:2], widest[-1])]
    other = gaps.replace(missing=torch.zeros_like(gaps.missing))
    assert not columns.feature_columns(other, features, 1)[0].isnan().any()
    assert fewer[0].isnan().any()


def test_label_columns_follow_the_labels(small: Graph) -> None:
    first = columns.label_columns(small, KnownLabels.of(small), small.num_classes, CPU)
    assert columns.label_columns(small, KnownLabels.of(small), small.num_classes, CPU) is first
    other = small.replace(train=small.validation, validation=small.train)
    assert not torch.equal(columns.label_columns(other, KnownLabels.of(other), small.num_classes, CPU), first)
