"""The layer, propagation over a graph, the models and the patch for any GNN. Imports torch only."""

from pairnorm.nn.models import GAT, GCN, SGC
from pairnorm.nn.pair_norm import PairNorm, pair_norm
from pairnorm.nn.propagate import propagation
from pairnorm.nn.sparse import SparseMatrix

__all__ = ["GAT", "GCN", "SGC", "PairNorm", "SparseMatrix", "pair_norm", "propagation"]
