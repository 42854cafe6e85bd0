"""Deep graph neural networks that do not oversmooth, and labels for nodes that have no features.

What most people need is here; the rest is in its room: ``pairnorm.nn`` (layers, models, propagation),
``pairnorm.measure``, ``pairnorm.data``, ``pairnorm.fill``, ``pairnorm.train`` and ``pairnorm.classify``.
"""

from typing import TYPE_CHECKING, Any

from pairnorm.data import Graph, load
from pairnorm.errors import PairNormError
from pairnorm.measure import Probe
from pairnorm.nn import PairNorm, add_pair_norm, pair_norm, remove_pair_norm
from pairnorm.version import __version__

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier

__all__ = [
    "Graph",
    "NodeClassifier",
    "PairNorm",
    "PairNormError",
    "Probe",
    "__version__",
    "add_pair_norm",
    "load",
    "pair_norm",
    "remove_pair_norm",
]


def __getattr__(name: str) -> Any:
    """Load the classifier when it is asked for: it needs what the core does not have."""
    if name != "NodeClassifier":
        raise AttributeError(f"module 'pairnorm' has no attribute {name!r}")
    from pairnorm.classify import NodeClassifier

    return NodeClassifier
