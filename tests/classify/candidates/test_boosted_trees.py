import numpy as np
import pytest
import torch

from pairnorm.classify import Scaling
from pairnorm.classify.candidates import BoostedTrees, Candidate, Task
from pairnorm.classify.candidates import boosted_trees as module
from pairnorm.classify.candidates.base import Saved
from pairnorm.data import Graph, csbm

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def table() -> Task:
    """Three classes and numbers, of which many are missing, that tell a class by neighbors' columns."""
    graph = csbm(400, classes=3, seed=2).with_split("per-class-20")
    generator = torch.Generator().manual_seed(0)
    features = graph.labels[:, None].float() + 1.5 * torch.randn(400, 3, generator=generator)
    missing = torch.rand(400, 3, generator=generator) < 0.5
    graph = graph.replace(features=features, missing=missing)
    return Task(graph, Scaling.of(graph)(graph), "rw", CPU)


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_as_arrays_are_scikit_learns(table: Task, classes: int, monkeypatch) -> None:
    task = table
    if classes == 2:
        graph = table.graph.replace(labels=table.graph.labels.clamp(max=1), class_names=("a", "b"))
        task = Task(graph, table.features, "rw", CPU)
    columns = module._Columns.of(task, 2)
    rows = columns(task.graph, task.features, CPU).rows(slice(None))
    model = module._boost(task, rows[task.graph.train.numpy()], 8, 30)
    for numba in (True, False):
        monkeypatch.setattr(module, "installed", lambda device, numba=numba: numba)
        found = module.Trees(columns, *module._arrays(model)).logits(task.graph, task.features, CPU)
        np.testing.assert_allclose(found[:, 0].softmax(-1).numpy(), model.predict_proba(rows), atol=1e-5)


def test_fewer_hops_are_columns_of_more(table: Task) -> None:
    settings = [
        {one.candidate for one in BoostedTrees(hops, (4,)).fit(table, lambda done: None)}
        for hops in ((1,), (3,), (1, 3))
    ]
    assert settings[0] | settings[1] == settings[2]


def test_neighbors_columns_are_worth_more_than_a_nodes_own(table: Task) -> None:
    ((candidate, *_),) = BoostedTrees((2,), (4,)).fit(table, lambda done: None)
    alone = table.graph.replace(adjacency=Graph.from_edges([[0], [1]], num_nodes=400).adjacency)
    ((own, *_),) = BoostedTrees((2,), (4,)).fit(Task(alone, table.features, "rw", CPU), lambda done: None)
    assert candidate.validation_accuracy > own.validation_accuracy + 0.05


def test_many_features_become_principal_components(small: Graph, task: Task) -> None:
    columns = module._Columns.of(task, 1)
    assert columns.axes is not None
    torch.testing.assert_close(columns.axes.T @ columns.axes, torch.eye(64), atol=1e-4, rtol=0)
    assert columns(small, task.features, CPU).rows(slice(None)).shape == (300, 2 * 64 + 1 + 2 * 2 + 1)


def test_damaged_trees_are_refused(table: Task) -> None:
    ((*_, learn),) = BoostedTrees((1,), (4,)).fit(table, lambda done: None)
    settings, tensors = learn(table).state()
    for name, wrong in {
        "left": torch.zeros_like(tensors["left"]),
        "right": tensors["right"] + 10**6,
        "feature": tensors["feature"] + 1000,
        "roots": tensors["roots"] - 10**6,
        "learned": tensors["learned"] + 3,
    }.items():
        saved = Saved(Candidate("boosted trees"), settings, tensors | {name: wrong}, 3, 3)
        with pytest.raises((ValueError, RuntimeError)):
            module.Trees.restore(saved)


def test_only_directions_tell_where_from_and_where_to(flow: Graph) -> None:
    task = Task(flow, Scaling.of(flow)(flow), "rw", CPU)
    plain, directed = BoostedTrees((1,), (4,), (False, True)).fit(task, lambda done: None)
    assert plain.candidate.validation_accuracy < 0.65
    assert directed.candidate.validation_accuracy > 0.85


def test_directed_trees_are_saved_and_meet_other_edges(flow: Graph) -> None:
    task = Task(flow, Scaling.of(flow)(flow), "rw", CPU)
    ((candidate, *_, learn),) = BoostedTrees((1,), (4,), (True,)).fit(task, lambda done: None)
    fitted = learn(task)
    again = module.Trees.restore(Saved(candidate, *fitted.state(), 1, 2))
    assert flow.directed is not None
    changed = Graph.from_edges(flow.edge_index[:, flow.directed][:, 50:], flow.features, flow.labels)
    for graph in (flow, changed, flow.replace(directed=None)):
        found = again.logits(graph, task.features, CPU)
        assert torch.equal(found, fitted.logits(graph, task.features, CPU))
    assert not torch.equal(found, again.logits(flow, task.features, CPU))


def test_undirected_graphs_have_the_candidates_they_had(table: Task) -> None:
    """Directions that are there do not change trees that do not ask for them, nor what is saved."""
    directed = torch.arange(table.graph.adjacency.values().numel()) % 5 > 0
    other = Task(table.graph.replace(directed=directed), table.features, "rw", CPU)
    first, second = (list(BoostedTrees((1, 3), (4,)).fit(one, lambda done: None)) for one in (table, other))
    assert [one.candidate for one in first] == [one.candidate for one in second]
    settings, _ = first[0].learn(table).state()
    assert settings == {"hops": 1}
