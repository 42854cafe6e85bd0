"""A user's own graph: labels in, labels out, and a reason to believe them."""

from pairnorm.classify.candidates import Candidate
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.scores import Scores
from pairnorm.classify.smoothing import smoothing, suggest_depth
from pairnorm.classify.split import ClassifierWarning, complete_split

__all__ = [
    "Candidate",
    "ClassifierWarning",
    "NodeClassifier",
    "Scaling",
    "Scores",
    "complete_split",
    "smoothing",
    "suggest_depth",
]
