"""What ``fit`` chooses among and what the report compares with: a family a file, all of one interface."""

from pairnorm.classify.candidates.base import Candidate, Family, Fitted, Task, check_size, is_large
from pairnorm.classify.candidates.gnn import GNNFamily
from pairnorm.classify.candidates.label_propagation import LabelPropagation
from pairnorm.classify.candidates.logistic_regression import LogisticRegression
from pairnorm.classify.candidates.most_frequent import MostFrequent
from pairnorm.classify.candidates.sgc import SGCFamily

FAMILIES: dict[str, type[Family]] = {
    "SGC": SGCFamily,
    "GCN": GNNFamily,
    "GAT": GNNFamily,
    "label propagation": LabelPropagation,
    "logistic regression": LogisticRegression,
    "most frequent class": MostFrequent,
}
"""The family of every ``Candidate.model``, which restores what was saved of it."""

__all__ = [
    "FAMILIES",
    "Candidate",
    "Family",
    "Fitted",
    "GNNFamily",
    "LabelPropagation",
    "LogisticRegression",
    "MostFrequent",
    "SGCFamily",
    "Task",
    "check_size",
    "is_large",
]
