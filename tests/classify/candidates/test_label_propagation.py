from dataclasses import replace

import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier
from pairnorm.classify.candidates import LabelPropagation, PreparedGraph, Task
from pairnorm.classify.search import search
from pairnorm.data import Graph, load

CPU = torch.device("cpu")


def test_label_propagation_ignores_features(small, task):
    noise = torch.rand(300, 500, generator=torch.Generator().manual_seed(0))
    tasks = [Task(small, PreparedGraph(small, features, CPU), "rw") for features in (task.features, noise)]
    fitted, other = (search(one, [LabelPropagation()]).fit(one) for one in tasks)
    assert torch.equal(
        fitted.logits(PreparedGraph(small, task.features, CPU)),
        other.logits(PreparedGraph(small, noise, CPU)),
    )


def test_label_propagation_solves_its_fixed_point(small, task):
    """F = (1 - α) (I - α S)⁻¹ Y."""
    adjacency = small.adjacency.to_dense().double() + torch.eye(300)
    degree = adjacency.sum(1)
    matrix = adjacency / (degree[:, None] * degree).sqrt()
    given = torch.nn.functional.one_hot(small.labels, 2).double() * small.train[:, None]
    for alpha in (0.5, 0.9):
        ((*_, fit),) = LabelPropagation((alpha,)).fit(task, lambda done: None)
        exact = (1 - alpha) * torch.linalg.solve(torch.eye(300) - alpha * matrix, given)
        result = fit(task).logits(PreparedGraph(small, task.features, CPU))[:, 0].exp().double()
        torch.testing.assert_close(result, exact, atol=1e-4, rtol=1e-3)


def test_labels_are_matched_by_node_name(small, task):
    """In a graph whose nodes come in another order, and of which some are new, the known ones are found."""
    small = small.replace(node_names=np.arange(300))
    task = replace(task, graph=small)
    ((*_, fit),) = LabelPropagation((0.9,)).fit(task, lambda done: None)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    position = order.argsort()
    edges = torch.cat([position[small.edge_index], torch.tensor([[300], [0]])], 1)
    names = np.append(small.node_names[order.numpy()], 1_000_000)
    graph = Graph.from_edges(edges, torch.ones(301, 1), num_nodes=301, node_names=names)
    here, there = (
        fit(task).logits(PreparedGraph(one, one.features, CPU))[:, 0].argmax(1) for one in (small, graph)
    )
    assert (there[:300] == here[order]).double().mean() > 0.98


def test_unreachable_nodes_get_class_shares_of_reached_nodes():
    """Two labels each, but six nodes near class 1 and one near class 0: nodes 11 and 12 are of class 1."""
    train = torch.arange(13) < 4
    edges = [[0, 2, 2, 2, 3, 3, 3, 11], [4, 5, 6, 7, 8, 9, 10, 12]]
    labels = [0, 0, 1, 1, *[-1] * 9]
    graph = Graph.from_edges(edges, torch.ones(13, 1), labels, num_nodes=13, train=train)
    task = Task(graph, PreparedGraph(graph, graph.features, CPU), "rw")
    ((*_, fit),) = LabelPropagation((0.5,)).fit(task, lambda done: None)
    result = fit(task).logits(PreparedGraph(graph, graph.features, CPU))[:, 0].softmax(1)
    assert result[11:, 1].tolist() == pytest.approx([6 / 7, 6 / 7], abs=1e-3)


def test_unreachable_predictions_do_not_depend_on_features(blanked_cora):
    """Label propagation uses no features, so that their absence must not change how it treats a node."""
    settings = {"model": "label propagation", "simple": True, "refit": False, "target": "labeled"}
    first, second = (
        NodeClassifier(**settings).fit(graph).evaluation_probabilities_
        for graph in (load("cora"), blanked_cora)
    )
    np.testing.assert_allclose(first, second, atol=1e-4)
