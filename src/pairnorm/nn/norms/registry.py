"""The norms by name, each with the one parameter that is tuned and the values it is tuned over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from pairnorm.errors import one_of
from pairnorm.nn.norms.base import ParametricNorm
from pairnorm.nn.norms.batch_norm import BatchNorm
from pairnorm.nn.norms.contra_norm import ContraNorm
from pairnorm.nn.norms.degree_pair_norm import DegreePairNorm
from pairnorm.nn.norms.diff_group_norm import DiffGroupNorm
from pairnorm.nn.norms.graph_norm import GraphNorm
from pairnorm.nn.norms.layer_norm import LayerNorm
from pairnorm.nn.norms.mean_subtraction import MeanSubtraction
from pairnorm.nn.norms.node_norm import NodeNorm
from pairnorm.nn.pair_norm import PairNorm

_SCALES = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class NamedNorm:
    """A norm by name.

    Args:
        kind: its class.
        settings: what the name fixes of the constructor's arguments.
        parameter: the argument that is tuned; None where the formula has none.
        grid: the values of the parameter to tune over; their source is with the entry.
    """

    kind: type[nn.Module]
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameter: str | None = None
    grid: tuple[float, ...] = ()

    def make(self, features: int, trials: int | None = None, **settings: Any) -> nn.Module:
        """Make the norm for states ``[nodes, features]`` or ``[nodes, trials, features]``."""
        settings = {**self.settings, **settings}
        if issubclass(self.kind, ParametricNorm):
            return self.kind(features, trials=trials, **settings)
        return self.kind(**settings)


NORMS: Mapping[str, NamedNorm] = MappingProxyType(
    {
        "PN": NamedNorm(PairNorm, {"mode": "PN"}, "scale", _SCALES),
        "PN-SI": NamedNorm(PairNorm, {"mode": "PN-SI"}, "scale", _SCALES),
        "PN-SCS": NamedNorm(PairNorm, {"mode": "PN-SCS"}, "scale", _SCALES),
        "PN-degree": NamedNorm(DegreePairNorm, {"mode": "PN"}, "scale", _SCALES),
        "PN-SI-degree": NamedNorm(DegreePairNorm, {"mode": "PN-SI"}, "scale", _SCALES),
        "BatchNorm": NamedNorm(BatchNorm),
        "LayerNorm": NamedNorm(LayerNorm, {"mode": "node"}),
        "LayerNorm-graph": NamedNorm(LayerNorm, {"mode": "graph"}),
        "GraphNorm": NamedNorm(GraphNorm),
        "MeanSubtraction": NamedNorm(MeanSubtraction),
        "NodeNorm": NamedNorm(NodeNorm, {}, "p", (1.0, 2.0, 3.0, 4.0)),
        # The span of the settings in the authors' code, without those of SGC.
        "DiffGroupNorm": NamedNorm(DiffGroupNorm, {}, "balance", (0.001, 0.005, 0.01, 0.03)),
        "ContraNorm": NamedNorm(ContraNorm, {}, "scale", (0.2, 0.5, 0.8, 1.0)),
    }
)


def make_norm(name: str, features: int, trials: int | None = None, **settings: Any) -> nn.Module:
    """Make a norm by name.

    Args:
        name: One of ``NORMS``.
        features: The width of a node's representation, for the norms that have parameters.
        trials: How many trials each have their own; None for an ordinary module.
        **settings: Arguments of the norm, such as the value of its tuned parameter.

    Example:
        >>> make_norm("NodeNorm", features=32, p=3)
        NodeNorm(p=3.0, eps=1e-05)
        >>> make_norm("PN-SI", features=32, scale=10)
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """
    return NORMS[one_of("norm", name, [*NORMS])].make(features, trials, **settings)
