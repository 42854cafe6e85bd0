"""Families of candidates for ``fit`` and baselines for the report: one file each, all with one interface."""

from pairnorm.classify.candidates.average import Average
from pairnorm.classify.candidates.boosted_trees import BoostedTrees, Trees
from pairnorm.classify.candidates.candidate import Candidate, CandidateResult, Family, Fitted
from pairnorm.classify.candidates.gnn import GNNFamily
from pairnorm.classify.candidates.label_propagation import LabelPropagation, PropagatedLabels
from pairnorm.classify.candidates.logistic_regression import Linear, LogisticRegression
from pairnorm.classify.candidates.most_frequent import Frequencies, MostFrequent
from pairnorm.classify.candidates.network import Network
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.sgc import SGCFamily
from pairnorm.classify.candidates.task import Task

KINDS: dict[str, type[Fitted]] = {
    **dict.fromkeys(Network.KINDS, Network),
    "label propagation": PropagatedLabels,
    "logistic regression": Linear,
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
    "LabelPropagation",
    "LogisticRegression",
    "MostFrequent",
    "PreparedGraph",
    "SGCFamily",
    "Task",
]
