"""Deep graph neural networks that do not oversmooth, and labels for nodes that have no features.

The names that most users need are here. The packages have the others: ``pairnorm.nn`` (layers, models,
propagation), ``pairnorm.measure``, ``pairnorm.data``, ``pairnorm.impute``, ``pairnorm.train`` and
``pairnorm.classify``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier
    from pairnorm.data import Graph, load
    from pairnorm.measure import Probe
    from pairnorm.nn import PairNorm, add_pair_norm, pair_norm, remove_pair_norm

__version__ = "1.0.0rc1"

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

# Imported on first use: importing torch takes a second, and `pairnorm --help` does not need it. The
# classifier needs libraries that the core does not have.
_PACKAGES = ("classify", "data", "impute", "measure", "nn", "train")
_PACKAGE_OF = dict.fromkeys(("PairNorm", "add_pair_norm", "pair_norm", "remove_pair_norm"), "nn")
_PACKAGE_OF |= {"Graph": "data", "load": "data", "Probe": "measure", "NodeClassifier": "classify"}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"pairnorm.{name}")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module 'pairnorm' has no attribute {name!r}")
    try:
        return getattr(import_module(f"pairnorm.{_PACKAGE_OF[name]}"), name)
    except ModuleNotFoundError as error:  # of the core alone
        from pairnorm.base.errors import missing_library

        raise missing_library(f"pairnorm.{name}", str(error.name).partition(".")[0]) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_PACKAGE_OF, *_PACKAGES])
