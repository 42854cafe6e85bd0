"""What training must at least do: passes over memory, and arithmetic, per layer, epoch and trial.

An epoch is two forward passes, for training and validation, and a backward pass.
"""

from pairnorm.data import Graph
from pairnorm.train import Spec

BYTES = {"float32": 4, "bfloat16": 2}

# Passes over a state [nodes, hidden] in a layer that touches memory as little as can be: everything that can
# be fused is, and what neighbors share is read once.
#   forward: linear map with dropout (read, write), exchange with bias and activation (read, write),
#            PairNorm (read, read, write); attention reads the mapped state once more for its scores
#   backward: PairNorm (5: gradient and output twice, write), activation (read), exchange (read, write),
#            linear map (gradient and input read for the weight; gradient read and write for the input);
#            attention reads gradient and state for its weights and adds to the state (read, write)
STATE_PASSES = {"GCN": 7 + 12 + 7, "GAT": 8 + 16 + 8}
# Attention also writes and reads a weight per edge: twice forward, and three times backward.
EDGE_PASSES = {"GCN": 0, "GAT": 2 + 3 + 2}


def layer_bytes(graph: Graph, spec: Spec) -> int:
    """Return the bytes that a hidden layer moves."""
    states = STATE_PASSES[spec.model] * graph.num_nodes * spec.hidden
    return BYTES[spec.precision] * states + 4 * EDGE_PASSES[spec.model] * _edges(graph)


def layer_flops(graph: Graph, spec: Spec) -> int:
    """Return the multiplications and additions of a hidden layer's products.

    The linear map four times (twice forward, for the gradients of its input and of its weight), the exchange
    with neighbors three times, and once more for the gradient of attention weights. Dropout, norm,
    activation, softmax and Adam are not counted.
    """
    maps, exchanges = 4, 4 if spec.model == "GAT" else 3
    return 2 * spec.hidden * (maps * graph.num_nodes * spec.hidden + exchanges * _edges(graph))


def _edges(graph: Graph) -> int:
    """Entries of the adjacency with self-loops."""
    return 2 * graph.num_edges + graph.num_nodes
