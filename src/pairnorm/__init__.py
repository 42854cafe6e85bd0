"""Deep graph neural networks that do not oversmooth, and labels for nodes that have no features."""

import warnings

from torch.sparse import check_sparse_tensor_invariants

from pairnorm.classify import NodeClassifier
from pairnorm.data import (
    Graph,
    GraphWarning,
    Missing,
    Split,
    csbm,
    datasets,
    given_missing,
    load,
    missing_entries,
    missing_nodes,
    missing_vectors,
)
from pairnorm.errors import PairNormError
from pairnorm.measure import (
    Estimate,
    Probe,
    apd,
    apsd,
    col_diff,
    connected_pairs,
    dirichlet_energy,
    effective_rank,
    mean_average_distance,
    pair_distances,
    random_pairs,
    row_diff,
    tpsd,
)
from pairnorm.nn import (
    GAT,
    GCN,
    SGC,
    PairNorm,
    add_pair_norm,
    grls,
    largest_lambda,
    pair_norm,
    propagation,
    remove_pair_norm,
    repel,
    repel_conv,
)
from pairnorm.train import Spec, Store, Trial

# torch prints these once per process, at the first CSR tensor; CSR is how this package holds every graph.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
if not check_sparse_tensor_invariants.is_enabled():
    check_sparse_tensor_invariants.disable()

__version__ = "0.1.0"

__all__ = [
    "GAT",
    "GCN",
    "SGC",
    "Estimate",
    "Graph",
    "GraphWarning",
    "Missing",
    "NodeClassifier",
    "PairNorm",
    "PairNormError",
    "Probe",
    "Spec",
    "Split",
    "Store",
    "Trial",
    "add_pair_norm",
    "apd",
    "apsd",
    "col_diff",
    "connected_pairs",
    "csbm",
    "datasets",
    "dirichlet_energy",
    "effective_rank",
    "given_missing",
    "grls",
    "largest_lambda",
    "load",
    "mean_average_distance",
    "missing_entries",
    "missing_nodes",
    "missing_vectors",
    "pair_distances",
    "pair_norm",
    "propagation",
    "random_pairs",
    "remove_pair_norm",
    "repel",
    "repel_conv",
    "row_diff",
    "tpsd",
]
