import numpy as np
import pytest
import torch

from pairnorm.classify import Scaling
from pairnorm.classify.baselines import baselines
from pairnorm.classify.candidates import Task
from pairnorm.data import Graph


def run(graph: Graph) -> dict[str, np.ndarray]:
    task = Task(graph, Scaling.of(graph)(graph), "rw", torch.device("cpu"))
    return {found.name: found.predicted for found in baselines(task)}


@pytest.fixture(scope="module")
def found(small: Graph) -> dict[str, np.ndarray]:
    return run(small)


def share(graph: Graph, predicted: np.ndarray) -> float:
    test = graph.test.numpy()
    return float((predicted == graph.labels.numpy())[test].mean())


def test_all_learn_something_on_an_easy_graph(small: Graph, found: dict[str, np.ndarray]) -> None:
    assert list(found) == ["most frequent class", "label propagation", "logistic regression", "GCN, 2 layers"]
    for name in list(found)[1:]:
        assert share(small, found[name]) > 0.75, name


def test_label_propagation_sees_no_features(small: Graph, found: dict[str, np.ndarray]) -> None:
    noise = small.replace(features=torch.rand(300, 500, generator=torch.Generator().manual_seed(0)))
    assert np.array_equal(run(noise)["label propagation"], found["label propagation"])


def test_label_propagation_solves_its_fixed_point(small: Graph, found: dict[str, np.ndarray]) -> None:
    """F = (1 - α) (I - α S)⁻¹ Y, for the α that does best on the validation nodes."""
    adjacency = small.adjacency.to_dense().double() + torch.eye(300)
    degree = adjacency.sum(1)
    matrix = adjacency / (degree[:, None] * degree).sqrt()
    given = torch.nn.functional.one_hot(small.labels, 2).double() * small.train[:, None]
    exact = [
        torch.linalg.solve(torch.eye(300) - alpha * matrix, given).argmax(1) for alpha in (0.5, 0.9, 0.99)
    ]
    agreement = [(one.numpy() == found["label propagation"]).mean() for one in exact]
    assert max(agreement) > 0.97


def test_logistic_regression_sees_no_edges(small: Graph, found: dict[str, np.ndarray]) -> None:
    alone = Graph.from_edges([[0], [1]], small.features, small.labels, **small.split._asdict())
    assert np.array_equal(run(alone)["logistic regression"], found["logistic regression"])


def test_the_most_frequent_class_is_that_of_the_training_nodes(small: Graph) -> None:
    ones = (small.labels == 1) & small.train
    first = small.train & ~ones & (torch.cumsum((small.train & ~ones).int(), 0) <= 5)
    assert set(run(small.replace(train=ones | first))["most frequent class"]) == {1}


def test_without_validation_there_is_no_gcn(small: Graph) -> None:
    assert "GCN, 2 layers" not in run(small.replace(validation=torch.zeros_like(small.validation)))
