"""Label new customers without features with a saved model, without training again."""

import tempfile

import numpy as np
import torch

from pairnorm import Graph, NodeClassifier
from pairnorm.data import csbm

graph = csbm(600, classes=3, seed=0)
known, later = graph.num_nodes - 100, np.arange(graph.num_nodes) >= graph.num_nodes - 100


def part(nodes: int) -> Graph:
    """Return the graph of the first customers; new ones have no features."""
    edges = graph.edge_index[:, (graph.edge_index < nodes).all(0)]
    missing = torch.arange(nodes) >= known
    labels = torch.where(missing, -1, graph.labels[:nodes])
    return Graph.from_edges(
        edges,
        graph.features.to_dense()[:nodes],
        labels,
        num_nodes=nodes,
        missing=missing,
        class_names=tuple("abc"),
    )


with tempfile.TemporaryDirectory() as folder:
    NodeClassifier(depth=[2, 4, 8]).fit(part(known)).save(folder)
    classifier = NodeClassifier.load(folder)

predicted = classifier.predict(part(graph.num_nodes))[later]
right = (predicted == np.array(list("abc"))[graph.labels.numpy()[later]]).mean()
print(f"Fitted on {known} customers, right on {classifier.held_out_.accuracy:.0%} of those held out")
print(f"and on {right:.0%} of the 100 who came later without features.")
