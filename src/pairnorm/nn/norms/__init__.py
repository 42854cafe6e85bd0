"""Norms of node representations, with one signature."""

from pairnorm.nn.norms.base import Norm
from pairnorm.nn.norms.contra_norm import ContraNorm
from pairnorm.nn.norms.degree_pair_norm import DegreePairNorm
from pairnorm.nn.norms.diff_group_norm import DiffGroupNorm
from pairnorm.nn.norms.graph_norm_v2 import GraphNormV2
from pairnorm.nn.norms.registry import NORMS, NamedNorm, make_norm
from pairnorm.nn.norms.standardize import BatchNorm, GraphNorm, LayerNorm, MeanSubtraction, NodeNorm

__all__ = [
    "NORMS",
    "BatchNorm",
    "ContraNorm",
    "DegreePairNorm",
    "DiffGroupNorm",
    "GraphNorm",
    "GraphNormV2",
    "LayerNorm",
    "MeanSubtraction",
    "NamedNorm",
    "NodeNorm",
    "Norm",
    "make_norm",
]
