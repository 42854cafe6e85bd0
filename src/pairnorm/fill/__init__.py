"""What stands in for missing features: constants, averages over the graph, and which entries were known."""

from pairnorm.fill.constant import mean, zero
from pairnorm.fill.feature_propagation import feature_propagation
from pairnorm.fill.known import Fill
from pairnorm.fill.mask import mask
from pairnorm.fill.mass import mass, mass_states
from pairnorm.fill.methods import FILLS, Method, fill_missing
from pairnorm.fill.pcfi import pcfi

__all__ = [
    "FILLS",
    "Fill",
    "Method",
    "feature_propagation",
    "fill_missing",
    "mask",
    "mass",
    "mass_states",
    "mean",
    "pcfi",
    "zero",
]
