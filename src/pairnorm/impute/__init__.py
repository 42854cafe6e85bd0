"""Imputation of missing features: constants, and averages over the graph."""

from pairnorm.impute.methods import (
    IMPUTATIONS,
    Imputation,
    column_mean,
    feature_propagation,
    impute,
    known_neighbor_mean,
    missing_indicator,
    pcfi,
    zero,
)

__all__ = [
    "IMPUTATIONS",
    "Imputation",
    "column_mean",
    "feature_propagation",
    "impute",
    "known_neighbor_mean",
    "missing_indicator",
    "pcfi",
    "zero",
]
