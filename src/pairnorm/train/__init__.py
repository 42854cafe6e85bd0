"""Train many trials together on a CPU or CUDA device, and store their results."""

from pairnorm.train.engine import fit, train
from pairnorm.train.methods import METHODS, Method, import_method, register
from pairnorm.train.result import Trial
from pairnorm.train.schedule import Progress, run
from pairnorm.train.spec import Spec
from pairnorm.train.store import Merged, Store
from pairnorm.train.trainers import build

__all__ = [
    "METHODS",
    "Merged",
    "Method",
    "Progress",
    "Spec",
    "Store",
    "Trial",
    "build",
    "fit",
    "import_method",
    "register",
    "run",
    "train",
]
