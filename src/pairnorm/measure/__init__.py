"""How much a representation is smoothed: distances between its rows and columns, energies, ranks; the Probe.

Imports torch only. Every measure takes states [nodes, features] and returns a scalar, or [nodes, trials...,
features] and returns one value per trial. It sums in float64, returns float32 (float64 for float64) and keeps
no graph. States of finite values give finite measures; NaN gives NaN, so that a diverged model shows.
"""

from pairnorm.measure.functional import (
    MEASURES,
    Estimate,
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
from pairnorm.measure.probe import Probe

__all__ = [
    "MEASURES",
    "Estimate",
    "Probe",
    "apd",
    "apsd",
    "col_diff",
    "connected_pairs",
    "dirichlet_energy",
    "effective_rank",
    "mean_average_distance",
    "pair_distances",
    "random_pairs",
    "row_diff",
    "tpsd",
]
