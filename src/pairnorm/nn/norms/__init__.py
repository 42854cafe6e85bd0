"""The remedies against oversmoothing that are norms: one file and one signature each, as PyG has it."""

from pairnorm.nn.norms.base import Norm
from pairnorm.nn.norms.batch_norm import BatchNorm
from pairnorm.nn.norms.contra_norm import ContraNorm
from pairnorm.nn.norms.degree_pair_norm import DegreePairNorm
from pairnorm.nn.norms.diff_group_norm import DiffGroupNorm
from pairnorm.nn.norms.graph_norm import GraphNorm
from pairnorm.nn.norms.layer_norm import LayerNorm
from pairnorm.nn.norms.mean_subtraction import MeanSubtraction
from pairnorm.nn.norms.node_norm import NodeNorm
from pairnorm.nn.norms.registry import NORMS, NamedNorm, make_norm

__all__ = [
    "NORMS",
    "BatchNorm",
    "ContraNorm",
    "DegreePairNorm",
    "DiffGroupNorm",
    "GraphNorm",
    "LayerNorm",
    "MeanSubtraction",
    "NamedNorm",
    "NodeNorm",
    "Norm",
    "make_norm",
]
