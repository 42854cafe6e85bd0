"""Training many trials at once, on CPU and CUDA, and the store of their results."""

from pairnorm.train.engine import fit, train
from pairnorm.train.gnn import build
from pairnorm.train.run import Progress, run
from pairnorm.train.spec import Spec
from pairnorm.train.store import Merged, Store
from pairnorm.train.trial import Trial

__all__ = ["Merged", "Progress", "Spec", "Store", "Trial", "build", "fit", "run", "train"]
