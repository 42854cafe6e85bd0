"""A training step of a GCN and a GAT over all nodes of a large graph, forward and backward."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from benchmarks.large.propagation import best
from pairnorm.nn import GAT, GCN, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix

MODELS = {"GCN": GCN, "GAT": GAT}
NODES, EDGES_PER_NODE = 10_000_000, 10
DEPTH, HIDDEN, CLASSES = 4, 32, 10
GIBIBYTE = 2**30


@dataclass
class Trained:
    """One model.

    Args:
        model: by name; with PN, of ``DEPTH`` layers of ``HIDDEN`` features, dropout of the default rate.
        nodes: of the graph.
        entries: of its adjacency, two for an undirected edge and one for a node's own.
        seconds: of a step, the quickest of a few.
        first: of the first, which compiles and derives the transpose.
        memory: bytes, at most.
    """

    model: str
    nodes: int
    entries: int
    seconds: float
    first: float
    memory: int


def adjacency(nodes: int, device: str) -> SparseMatrix:
    """Draw an undirected graph."""
    torch.manual_seed(0)
    edges = torch.randint(nodes, (2, nodes * EDGES_PER_NODE), device=device)
    return normalized_adjacency(torch.cat([edges, edges.flip(0)], 1), num_nodes=nodes)


def measure(name: str, adjacency: SparseMatrix, device: str) -> Trained:
    """Take a few steps; every gradient must be finite."""
    nodes = adjacency.num_rows
    model = MODELS[name](HIDDEN, CLASSES, DEPTH, HIDDEN, norm="PN").to(device)
    x, labels = torch.randn(nodes, HIDDEN, device=device), torch.randint(CLASSES, (nodes,), device=device)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        model.zero_grad()
        cross_entropy(model(x, adjacency), labels).backward()

    first, seconds = best(step, device)
    for parameter, value in model.named_parameters():
        if value.grad is None or not value.grad.isfinite().all():
            raise ArithmeticError(f"the gradient of {parameter} of {name} is {value.grad}")
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return Trained(name, nodes, adjacency.pattern.num_entries, seconds, first, memory)


def describe(one: Trained) -> str:
    """Return a line of figures."""
    return (
        f"{one.model}-PN, {DEPTH} layers of {HIDDEN}, {one.nodes:,} nodes, {one.entries:,} entries: a step "
        f"{one.seconds:.2f} s (the first {one.first:.1f} s), {one.memory / GIBIBYTE:.1f} GiB"
    )
