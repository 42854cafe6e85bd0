import numpy as np
import pytest
import torch

from pairnorm.classify.candidates.base import Known
from pairnorm.classify.candidates.columns import feature_columns, label_columns
from pairnorm.data import Graph

CPU = torch.device("cpu")


@pytest.fixture
def holed(small: Graph) -> Graph:
    """Four numbers a node, some of which are missing; the last two nodes lose all."""
    generator = torch.Generator().manual_seed(0)
    missing = torch.rand(300, 4, generator=generator) < 0.4
    missing[298:] = True
    return small.replace(features=torch.rand(300, 4, generator=generator), missing=missing)


def test_means_are_over_what_is_known_at_the_ends_of_walks(holed: Graph) -> None:
    found = torch.cat(feature_columns(holed, holed.features, 2), 1)
    adjacency = holed.adjacency.to_dense().double()
    walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    known = (~holed.missing).double()
    expected = [torch.where(holed.missing, torch.nan, holed.features.double())]
    for power in (walk, walk @ walk):
        mass = power @ known
        expected.append(torch.where(mass > 0, (power @ (known * holed.features)) / mass, torch.nan))
    expected.append(adjacency.sum(1, keepdim=True).log1p())
    torch.testing.assert_close(found.double(), torch.cat(expected, 1), equal_nan=True, atol=1e-5, rtol=1e-4)


def test_a_node_never_sees_its_own_label(small: Graph) -> None:
    """Whatever its own label is, its columns are the same; those of its neighbours are not."""
    node = int(small.train.nonzero()[0])
    labels = small.labels.clone()
    labels[node] = 1 - labels[node]
    other = small.replace(labels=labels)
    found, changed = (label_columns(graph, Known.of(graph), 2, CPU) for graph in (small, other))
    torch.testing.assert_close(found[node], changed[node], equal_nan=True, atol=0, rtol=0)
    neighbours = small.adjacency.to_dense()[node] > 0
    assert not torch.equal(found[neighbours].nan_to_num(), changed[neighbours].nan_to_num())


def test_near_shares_are_those_of_labelled_neighbours(small: Graph) -> None:
    found = label_columns(small, Known.of(small), 2, CPU)
    given = torch.nn.functional.one_hot(small.labels, 2) * small.train[:, None]
    near = small.adjacency.to_dense() @ given.float()
    count = near.sum(1, keepdim=True)
    torch.testing.assert_close(found[:, 2:3], count.log1p())
    some = count.squeeze(1) > 0
    torch.testing.assert_close(found[some, :2], (near / count)[some])
    assert found[~some, :2].isnan().all()


def test_labels_are_found_by_name_in_a_graph_that_has_grown(small: Graph) -> None:
    names = np.append(small.node_names.astype(str), "new")
    edges = torch.cat([small.edge_index, torch.tensor([[300], [int(small.train.nonzero()[0])]])], 1)
    grown = Graph.from_edges(edges, torch.ones(301, 1), num_nodes=301, node_names=names)
    columns = label_columns(grown, Known.of(small), 2, CPU)
    own = int(small.labels[small.train][0])
    assert columns[300, own] == 1
    assert columns[300, 2] == pytest.approx(np.log(2))
