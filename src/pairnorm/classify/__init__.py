"""A user's own graph: labels in, labels out, and a reason to believe them."""

from pairnorm.classify.candidates import Candidate, Family, Task
from pairnorm.classify.candidates.boosted_trees import register_candidate
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.evaluation import Scores
from pairnorm.classify.explanation import smoothing, suggest_depth
from pairnorm.classify.holdout import ClassifierWarning, complete_split
from pairnorm.classify.scaling import Scaling

__all__ = [
    "Candidate",
    "ClassifierWarning",
    "Family",
    "NodeClassifier",
    "Scaling",
    "Scores",
    "Task",
    "complete_split",
    "register_candidate",
    "smoothing",
    "suggest_depth",
]
