"""Families of candidates for ``fit`` and baselines for the report: one file each, all with one interface."""

from pairnorm.classify.candidates.boosted_trees import BoostedTrees, Trees
from pairnorm.classify.candidates.ensemble import (
    Average,
    Frequencies,
    LabelPropagation,
    MostFrequent,
    PropagatedLabels,
)
from pairnorm.classify.candidates.networks import GNNFamily, Network
from pairnorm.classify.candidates.residual import HopNetworks, ResidualGCNs
from pairnorm.classify.candidates.sgc import FittedSGC, LogisticRegression, SGCFamily
from pairnorm.classify.candidates.task import Candidate, CandidateResult, Family, Fitted, Task
from pairnorm.classify.scaling import PreparedGraph

KINDS: dict[str, type[Fitted]] = {
    **dict.fromkeys(Network.KINDS, Network),
    "SGC": FittedSGC,
    "label propagation": PropagatedLabels,
    "logistic regression": FittedSGC,
    "boosted trees": Trees,
    "most frequent class": Frequencies,
}
"""Classes of fitted candidates by ``Candidate.model``."""

__all__ = [
    "KINDS",
    "Average",
    "BoostedTrees",
    "Candidate",
    "CandidateResult",
    "Family",
    "Fitted",
    "GNNFamily",
    "HopNetworks",
    "LabelPropagation",
    "LogisticRegression",
    "MostFrequent",
    "PreparedGraph",
    "ResidualGCNs",
    "SGCFamily",
    "Task",
]
