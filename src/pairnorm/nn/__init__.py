"""The layer, propagation over a graph, the models and the patch for any GNN. Imports torch only."""

from pairnorm.nn.denoise import grls, largest_lambda, repel, repel_conv
from pairnorm.nn.find import graph_convolutions
from pairnorm.nn.models import GAT, GCN, SGC
from pairnorm.nn.pair_norm import PairNorm, pair_norm
from pairnorm.nn.patch import PairNormPatch, add_pair_norm, remove_pair_norm
from pairnorm.nn.propagate import propagation
from pairnorm.nn.sparse import SparseMatrix

__all__ = [
    "GAT",
    "GCN",
    "SGC",
    "PairNorm",
    "PairNormPatch",
    "SparseMatrix",
    "add_pair_norm",
    "graph_convolutions",
    "grls",
    "largest_lambda",
    "pair_norm",
    "propagation",
    "remove_pair_norm",
    "repel",
    "repel_conv",
]
