import re
from dataclasses import replace

import lightgbm
import numpy as np
import pytest
import torch

from pairnorm.classify import Scaling
from pairnorm.classify.candidates import BoostedTrees, Candidate, PreparedGraph, Task, columns
from pairnorm.classify.candidates import boosted_trees as module
from pairnorm.classify.candidates.columns import NodeColumns
from pairnorm.classify.candidates.task import SavedState
from pairnorm.data import Graph, csbm

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def table() -> Task:
    """Three classes and numeric columns with many missing values; columns of neighbors predict the class."""
    graph = csbm(400, classes=3, seed=2).with_split("per-class-20")
    generator = torch.Generator().manual_seed(0)
    features = graph.labels[:, None].float() + 1.5 * torch.randn(400, 3, generator=generator)
    missing = torch.rand(400, 3, generator=generator) < 0.5
    graph = graph.replace(features=features, missing=missing)
    return Task(graph, PreparedGraph(graph, Scaling.of(graph)(graph), CPU), "rw")


@pytest.mark.parametrize("classes", [2, 3])
def test_compact_text_predicts_like_lightgbm(table, classes):
    task = table
    if classes == 2:
        graph = table.graph.replace(labels=table.graph.labels.clamp(max=1), class_names=("a", "b"))
        task = Task(graph, PreparedGraph(graph, table.features, CPU), "rw")
    rows = NodeColumns.of(task, 2).table(task.prepared).rows()
    target = {"objective": "binary"} if classes == 2 else {"objective": "multiclass", "num_class": 3}
    data = lightgbm.Dataset(rows, task.graph.labels.numpy())
    model = lightgbm.train({**target, "num_leaves": 4, "verbose": -1, "num_threads": 1}, data, 20)
    text = module._validate(module._compact(model.model_to_string()), rows.shape[1], classes)
    result = module._Ensemble(text, torch.arange(classes))(rows, classes).softmax(-1).numpy()
    expected = model.predict(rows)
    expected = np.stack([1 - expected, expected], 1) if classes == 2 else expected
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_candidates_of_hops_do_not_depend_on_other_hops(table):
    settings = [
        {one.candidate for one in BoostedTrees(hops, (4,)).fit(table, lambda done: None)}
        for hops in ((1,), (3,), (1, 3))
    ]
    assert settings[0] | settings[1] == settings[2]


def test_trees_of_a_fold_are_cached_and_reproducible(table):
    (*_, fit) = next(BoostedTrees((1,), (4,)).fit(table, lambda done: None))
    (fold,) = table.folds
    grown, again = fit(fold), fit(replace(fold))
    assert fit(fold) is grown is not again
    assert grown.ensemble.text == again.ensemble.text
    torch.testing.assert_close(grown.logits(table.prepared), again.logits(table.prepared))


def test_neighbor_columns_improve_accuracy(table):
    ((candidate, *_),) = BoostedTrees((2,), (4,)).fit(table, lambda done: None)
    alone = table.graph.replace(adjacency=Graph.from_edges([[0], [1]], num_nodes=400).adjacency)
    ((own, *_),) = BoostedTrees((2,), (4,)).fit(
        Task(alone, PreparedGraph(alone, table.features, CPU), "rw"), lambda done: None
    )
    assert candidate.validation_accuracy > own.validation_accuracy + 0.05


def test_many_features_become_principal_components(small, task):
    columns = NodeColumns.of(task, 1)
    assert columns.axes is not None
    torch.testing.assert_close(columns.axes.T @ columns.axes, torch.eye(64), atol=1e-4, rtol=0)
    assert columns.table(task.prepared).rows().shape == (300, 2 * 64 + 1 + 2 * 2 + 1)


def test_damaged_trees_raise(table):
    ((*_, fit),) = BoostedTrees((1,), (4,)).fit(table, lambda done: None)
    settings, tensors = fit(table).state()
    text = tensors["trees"].numpy().tobytes().decode()

    def restore(**changed: torch.Tensor) -> module.Trees:
        return module.Trees.restore(SavedState(Candidate("boosted trees"), settings, tensors | changed, 3, 3))

    assert restore().ensemble.text == text
    with pytest.raises(ValueError, match="3 classes"):
        restore(classes=tensors["classes"] + 3)
    damages = [
        (r"left_child=\S+", "left_child=0"),
        (r"right_child=\S+", "right_child=99999"),
        (r"right_child=-\d+", "right_child=-99"),
        (r"split_feature=\d+", "split_feature=1000"),
        (r"split_feature=\d+", "split_feature=-1"),
        (r"leaf_value=\S+", "leaf_value=nan"),
        (r"leaf_value=\S+ ", "leaf_value="),
        (r"threshold=\S+", "threshold=nan"),
        (r"decision_type=2", "decision_type=1"),
        (r"num_leaves=\d+", "num_leaves=9"),
        (r"num_leaves=\d+", "num_leaves=9999999999"),
        (r"num_cat=0", "num_cat=1"),
        (r"num_class=3", "num_class=4"),
        (r"max_feature_idx=\d+", "max_feature_idx=5"),
        (r"objective=multiclass", "objective=custom"),
        (r"Tree=1\n", "Tree=7\n"),
        (r"\Z", "\nparameters:\n"),
        (r"(?s)Tree=1\n.*", ""),
        (r"(?s).*", ""),
    ]
    for pattern, wrong in damages:
        damaged = re.sub(pattern, wrong, text, count=1)
        assert damaged != text, pattern
        with pytest.raises((ValueError, LookupError)):
            restore(trees=torch.tensor(list(damaged.encode()), dtype=torch.uint8))


def test_direction_columns_learn_a_directed_class(flow):
    task = Task(flow, PreparedGraph(flow, Scaling.of(flow)(flow), CPU), "rw")
    plain, directed = BoostedTrees((1,), (4,), (False, True)).fit(task, lambda done: None)
    assert plain.candidate.validation_accuracy < 0.65
    assert directed.candidate.validation_accuracy > 0.85


def test_directed_trees_are_restored_for_other_edges(flow):
    task = Task(flow, PreparedGraph(flow, Scaling.of(flow)(flow), CPU), "rw")
    ((candidate, *_, fit),) = BoostedTrees((1,), (4,), (True,)).fit(task, lambda done: None)
    fitted = fit(task)
    again = module.Trees.restore(SavedState(candidate, *fitted.state(), 1, 2))
    assert flow.directed is not None
    changed = Graph.from_edges(flow.edge_index[:, flow.directed][:, 50:], flow.features, flow.labels)
    for graph in (flow, changed, flow.replace(directed=None)):
        result = again.logits(PreparedGraph(graph, task.features, CPU))
        assert torch.equal(result, fitted.logits(PreparedGraph(graph, task.features, CPU)))
    assert not torch.equal(result, again.logits(PreparedGraph(flow, task.features, CPU)))


def test_available_directions_do_not_change_undirected_trees(table):
    """Directions that are there do not change trees that do not ask for them, nor what is saved."""
    directed = torch.arange(table.graph.adjacency.values().numel()) % 5 > 0
    other = table.graph.replace(directed=directed)
    other = Task(other, PreparedGraph(other, table.features, CPU))
    first, second = (list(BoostedTrees((1, 3), (4,)).fit(one, lambda done: None)) for one in (table, other))
    assert [one.candidate for one in first] == [one.candidate for one in second]
    settings, _ = first[0].fit(table).state()
    assert settings == {"hops": 1}


def test_extra_columns_are_used_if_they_improve_the_score(table, monkeypatch):
    steps: list[str] = []
    family = BoostedTrees((1,), (4,), extras=columns.EXTRAS)
    monkeypatch.setattr(module, "improves", lambda *_: False)
    assert len(list(family.fit(table, steps.append))) == 1
    assert len(steps) == family.steps
    monkeypatch.setattr(module, "improves", lambda *_: True)
    results = list(family.fit(table, lambda done: None))
    assert results[-1].candidate.setting.endswith(", " + ", ".join(columns.EXTRAS))


def test_trees_with_extra_columns_are_restored_and_checked(table, monkeypatch):
    monkeypatch.setattr(module, "improves", lambda *_: True)
    *_, (candidate, probabilities, _, fit) = BoostedTrees((1,), (4,), extras=columns.EXTRAS).fit(
        table, lambda done: None
    )
    fitted = fit(table)
    logits = fitted.logits(table.prepared)
    torch.testing.assert_close(
        logits[table.graph.validation, 0].softmax(-1), probabilities, atol=1e-4, rtol=0
    )
    saved = SavedState(candidate, *fitted.state(), 3, 3)
    assert torch.equal(module.Trees.restore(saved).logits(table.prepared), logits)
    keys = fitted.columns.keys("abc", "xyz")
    assert len(keys) == fitted.columns.table(table.prepared).rows().shape[1]
    wrong = [
        {"settings": {**saved.settings, "extras": ["unknown"]}},
        {"settings": {**saved.settings, "sgc": {**saved.settings["sgc"], "depth": 1000}}},
        {"tensors": {**saved.tensors, "SGC.values": saved.tensors["SGC.values"][:, :2]}},
        {"tensors": {**saved.tensors, "eigenvectors.names": saved.tensors["eigenvectors.names"].float()}},
    ]
    for changes in wrong:
        with pytest.raises((ValueError, LookupError)):
            module.Trees.restore(saved._replace(**changes))


def test_early_stopping_uses_separate_rows():
    """Labels without meaning: every round makes the loss on new rows larger, and on old ones smaller."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (400,), generator=generator)
    nodes = torch.arange(400)
    graph = Graph.from_edges(torch.stack([nodes, nodes.roll(1)]), torch.ones(400, 1), labels)
    graph = graph.replace(train=torch.ones(400, dtype=torch.bool))
    task = Task(graph, PreparedGraph(graph, graph.features, CPU))
    losses = module._stopping_losses((task, torch.randn(400, 5, generator=generator).numpy()), 16)
    assert losses.argmin() < 10


def test_rare_class_does_not_stop_boosting(table):
    """Both of its nodes are left out to choose the rounds: the trees of the others still have many."""
    graph, rare = table.graph, table.graph.train.nonzero().squeeze(1)[-2:]
    labels = graph.labels.clone()
    labels[graph.labels == 2] = 1
    labels[rare] = 2
    graph = graph.replace(labels=labels)
    task = Task(graph, PreparedGraph(graph, table.features, CPU), "rw")
    left_out = module.subsample(labels[graph.train], round(module.STOPPING_SHARE * int(graph.train.sum())))
    assert set(rare.tolist()) <= set(graph.train.nonzero().squeeze(1)[left_out].tolist())
    (result, *_) = BoostedTrees((2,), (4,)).fit(task, lambda done: None)
    rounds = int(re.search(r"(\d+) rounds", result.candidate.setting)[1])
    assert rounds > 5


def test_extra_columns_end_with_the_share_of_time(table, monkeypatch):
    steps: list[str] = []
    family = BoostedTrees((1,), (4,), extras=columns.EXTRAS)
    # Time for extra columns at first, but not for another evaluation as long as the first one.
    monkeypatch.setattr(Task, "allows", lambda task, share, seconds=0.0: seconds == 0)
    list(family.fit(table, steps.append))
    assert [step.rpartition(", ")[2] for step in steps[1:]] == ["SGC"]
