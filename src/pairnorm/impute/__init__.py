"""What stands in for missing features: constants, averages over the graph, and which entries were known."""

from pairnorm.impute.constant import mean, zero
from pairnorm.impute.feature_propagation import feature_propagation
from pairnorm.impute.known import Fill
from pairnorm.impute.mask import mask
from pairnorm.impute.mass import mass, mass_states
from pairnorm.impute.methods import FILLS, Method, fill_missing
from pairnorm.impute.pcfi import pcfi

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
