"""What ``fit`` chooses among and what the report compares with: a family a file, all of one interface."""

from pairnorm.classify.candidates.average import Average
from pairnorm.classify.candidates.base import Candidate, CandidateResult, Family, Fitted, Task
from pairnorm.classify.candidates.boosted_trees import BoostedTrees, Trees
from pairnorm.classify.candidates.gnn import GNNFamily
from pairnorm.classify.candidates.label_propagation import LabelPropagation, Spreading
from pairnorm.classify.candidates.logistic_regression import Linear, LogisticRegression
from pairnorm.classify.candidates.most_frequent import Frequencies, MostFrequent
from pairnorm.classify.candidates.network import Network
from pairnorm.classify.candidates.sgc import SGCFamily

KINDS: dict[str, type[Fitted]] = {
    **dict.fromkeys(Network.KINDS, Network),
    "label propagation": Spreading,
    "logistic regression": Linear,
    "boosted trees": Trees,
    "most frequent class": Frequencies,
}
"""What a fitted candidate is, by ``Candidate.model``."""

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
    "SGCFamily",
    "Task",
]
