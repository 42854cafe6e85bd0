"""A user's own graph: labels in, labels out, and a reason to believe them."""

from pairnorm.classify.candidates import Candidate
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.diagnosis import smoothing, suggest_depth
from pairnorm.classify.evaluation import Scores
from pairnorm.classify.scaling import Scaling
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
