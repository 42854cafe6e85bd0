"""Measures of oversmoothing, the Probe that records them by layer, and influence by hop.

Imports torch only. Every measure takes states [nodes, features] and returns a scalar, or [nodes, trials...,
features] and returns one value per trial. It sums in float64, returns float32 (float64 for float64) and keeps
no graph. Finite states give finite measures, as far as float32 reaches: squares of 1e20 (``tpsd``, ``apsd``,
energies) do not fit and are infinite. States of float64 have to be below 1e150. NaN gives NaN, so that a
diverged model shows.
"""

from pairnorm.measure.collapse import (
    MEASURES,
    dominant_subspace_distance,
    effective_rank,
    estimate_instance_information_gain,
    group_distance_ratio,
    instance_information_gain,
    numerical_rank,
)
from pairnorm.measure.diagnosis import Influence, Verdict, influence_by_hop
from pairnorm.measure.distances import (
    Estimate,
    apd,
    apsd,
    col_diff,
    connected_pairs,
    dirichlet_energy,
    estimate_col_diff,
    estimate_row_diff,
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
    "Influence",
    "Probe",
    "Verdict",
    "apd",
    "apsd",
    "col_diff",
    "connected_pairs",
    "dirichlet_energy",
    "dominant_subspace_distance",
    "effective_rank",
    "estimate_col_diff",
    "estimate_instance_information_gain",
    "estimate_row_diff",
    "group_distance_ratio",
    "influence_by_hop",
    "instance_information_gain",
    "mean_average_distance",
    "numerical_rank",
    "pair_distances",
    "random_pairs",
    "row_diff",
    "tpsd",
]
