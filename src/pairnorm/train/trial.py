"""What training one trial gave: metrics at its best epoch, and measures of its representation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from pairnorm.errors import PairNormError


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of training one spec with one seed, as plain numbers.

    Args:
        seed: decides initial weights, dropout, and the mask of what is missing.
        diverged: whether a loss became infinite or NaN; metrics may then be NaN.
        best_epoch: the epoch of best validation accuracy, at which the metrics are taken.
        train_loss: cross-entropy on the training nodes; likewise for validation and test.
        train_accuracy: fraction of training nodes that are right; likewise for validation and test.
        measures: such as ``row_diff`` and ``col_diff`` of the last hidden representation.
        curves: metrics by epoch, where they were asked for.
    """

    seed: int
    diverged: bool = False
    best_epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    test_loss: float
    test_accuracy: float
    measures: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        # Numbers may arrive as tensors; what is kept can be pickled, stored and compared anywhere.
        for entry in fields(self):
            if entry.type in (bool, int, float):
                # Adding zero makes 0.0 of -0.0, whose sign SQLite does not keep.
                value = entry.type(getattr(self, entry.name))
                object.__setattr__(self, entry.name, value + 0.0 if entry.type is float else value)
        object.__setattr__(self, "measures", {name: float(value) for name, value in self.measures.items()})
        if self.curves is not None:
            curves = {name: [float(value) for value in curve] for name, curve in self.curves.items()}
            object.__setattr__(self, "curves", curves)
        if not 0 <= self.seed < 2**63:
            raise PairNormError(f"seed is {self.seed}; expected a whole number from 0 to 2**63 - 1.")
        if self.best_epoch < 0:
            raise PairNormError(f"best_epoch is {self.best_epoch}; expected 0 or more.")
