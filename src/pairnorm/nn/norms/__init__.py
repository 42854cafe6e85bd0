"""Norms of node representations, with one signature, and their registry by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from pairnorm.base.errors import one_of
from pairnorm.nn.norms.degree_pair_norm import DegreePairNorm
from pairnorm.nn.norms.similarity import ContraNorm, DiffGroupNorm
from pairnorm.nn.norms.standardize import (
    BatchNorm,
    GraphNorm,
    GraphNormV2,
    LayerNorm,
    MeanSubtraction,
    NodeNorm,
    Norm,
    ParametricNorm,
)
from pairnorm.nn.pair_norm import PairNorm

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


@dataclass(frozen=True)
class NamedNorm:
    """A norm by name.

    Args:
        kind: Its class.
        settings: The arguments of the constructor that the name fixes.
        parameter: The argument that is tuned; None where the formula has none.
    """

    kind: type[nn.Module]
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameter: str | None = None


NORMS: Mapping[str, NamedNorm] = MappingProxyType(
    {
        "PN": NamedNorm(PairNorm, {"mode": "PN"}, "scale"),
        "PN-SI": NamedNorm(PairNorm, {"mode": "PN-SI"}, "scale"),
        "PN-SCS": NamedNorm(PairNorm, {"mode": "PN-SCS"}, "scale"),
        "PN-degree": NamedNorm(DegreePairNorm, {"mode": "PN"}, "scale"),
        "PN-SI-degree": NamedNorm(DegreePairNorm, {"mode": "PN-SI"}, "scale"),
        "BatchNorm": NamedNorm(BatchNorm),
        "LayerNorm": NamedNorm(LayerNorm, {"mode": "node"}),
        "LayerNorm-graph": NamedNorm(LayerNorm, {"mode": "graph"}),
        "GraphNorm": NamedNorm(GraphNorm),
        "GraphNormV2": NamedNorm(GraphNormV2),
        "MeanSubtraction": NamedNorm(MeanSubtraction),
        "NodeNorm": NamedNorm(NodeNorm, {}, "p"),
        "DiffGroupNorm": NamedNorm(DiffGroupNorm, {}, "balance"),
        "ContraNorm": NamedNorm(ContraNorm, {}, "scale"),
    }
)


def make_norm(name: str, in_channels: int, num_models: int | None = None, **settings: Any) -> nn.Module:
    """Make a norm by name.

    Args:
        name: One of ``NORMS``.
        in_channels: The width of a node's representation, for the norms that have parameters.
        num_models: How many models each have their own; None for an ordinary module.
        **settings: Arguments of the norm, such as the value of its tuned parameter.

    Example:
        >>> make_norm("NodeNorm", in_channels=32, p=3)
        NodeNorm(p=3.0, eps=1e-05)
        >>> make_norm("PN-SI", in_channels=32, scale=10)
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """
    named = NORMS[one_of("norm", name, [*NORMS])]
    settings = {**named.settings, **settings}
    if issubclass(named.kind, ParametricNorm):
        return named.kind(in_channels, num_models=num_models, **settings)
    return named.kind(**settings)
