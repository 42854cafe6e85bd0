import pickle
from math import isnan, nan

import numpy as np
import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.train.trial import Trial

METRICS = dict.fromkeys(
    ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy"),
    0.5,
)


def test_tensors_become_plain_numbers() -> None:
    trial = Trial(
        **METRICS | {"test_loss": torch.tensor(0.25), "test_accuracy": np.float32(0.5)},
        seed=np.int64(3),
        best_epoch=torch.tensor(7),
        diverged=torch.tensor(True),
        measures={"row_diff": torch.tensor(1.5)},
        curves={"train_loss": torch.tensor([2.0, nan])},
    )
    assert (trial.seed, trial.best_epoch, trial.diverged, trial.test_loss) == (3, 7, True, 0.25)
    plain = (trial.seed, trial.best_epoch, trial.diverged, trial.test_loss, trial.measures["row_diff"])
    assert [type(value) for value in plain] == [int, int, bool, float, float]
    assert trial.curves is not None
    assert trial.curves["train_loss"][0] == 2.0
    assert isnan(trial.curves["train_loss"][1])
    assert pickle.loads(pickle.dumps(trial)).measures == {"row_diff": 1.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed is -1; expected"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected"),
        ({"best_epoch": -2}, "best_epoch is -2; expected"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Trial(**METRICS | {"seed": 0, "best_epoch": 1} | change)
