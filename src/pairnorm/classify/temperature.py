"""Making a model as sure as it is right: probabilities softened until they fit the validation nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from pairnorm.train.problem import part_losses

HOTTEST, STEPS = 30.0, 60
# Of fewer nodes than this, how sure to be cannot be learnt.
FEWEST = 20


def mean_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return softmax(logits / T), averaged over the trials: [n, classes] from [n, trials, classes].

    Args:
        logits: of every trial.
        temperature: T.
    """
    return (logits / temperature).softmax(-1).mean(1)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T from 1 to 30 under which the labels are likeliest (Guo et al., 2017); 1 for few nodes.

    Never below 1, and with one imagined mistake among the labels, as Platt (1999) has it: a model that is
    right on all of a few validation nodes would else be certain of everything.

    Args:
        logits: [m, trials, classes], of the validation nodes.
        labels: int64 [m].
    """
    if len(labels) < FEWEST:
        return 1.0
    temperatures = torch.logspace(0, torch.tensor(HOTTEST).log10().item(), STEPS).tolist()

    def loss(temperature: float) -> float:
        logarithms = mean_probabilities(logits.double(), temperature).clamp(min=1e-30).log()
        return float(part_losses(logarithms, labels) - logarithms.mean() / len(labels))

    return float(min(temperatures, key=loss))
