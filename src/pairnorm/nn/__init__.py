"""The layer, propagation over a graph, the models and the patch for any GNN. Imports torch only."""

from pairnorm.nn.calibrate import calibrate
from pairnorm.nn.deep_models import APPNP, G2, GCNII, SMPNN
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.models import GAT, GCN, SGC, Order
from pairnorm.nn.pair_norm import Mode, PairNorm, pair_norm
from pairnorm.nn.patch import PairNormPatch, add_pair_norm, remove_pair_norm
from pairnorm.nn.propagate import Normalization, drop_edges, normalized_adjacency, sgc_iterates
from pairnorm.nn.sparse import SparseMatrix

__all__ = [
    "APPNP",
    "G2",
    "GAT",
    "GCN",
    "GCNII",
    "SGC",
    "SMPNN",
    "Mode",
    "Normalization",
    "Order",
    "PairNorm",
    "PairNormPatch",
    "SparseMatrix",
    "add_pair_norm",
    "calibrate",
    "drop_edges",
    "graph_convolutions",
    "normalized_adjacency",
    "pair_norm",
    "remove_pair_norm",
    "sgc_iterates",
]
