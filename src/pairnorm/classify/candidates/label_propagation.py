"""Label propagation, which sees no features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Candidate, Found, Saved, State, Task, Tick, ready
from pairnorm.classify.holdout import fingerprints
from pairnorm.data import Graph
from pairnorm.errors import real_number
from pairnorm.nn import propagation

ALPHAS = (0.5, 0.9, 0.99)
ROUNDS = 100


@dataclass(frozen=True)
class LabelPropagation:
    r"""Label propagation (Zhou et al., 2004) for several α: $F \leftarrow \alpha S F + (1 - \alpha) Y$.

    Args:
        alphas: how much a node listens to its neighbours against its own label.
        name: of the family.
    """

    alphas: Sequence[float] = ALPHAS
    name: str = "label propagation"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield one for every α."""
        graph = task.graph
        names = torch.from_numpy(fingerprints(graph.node_names[graph.train.cpu().numpy()]))
        labels = torch.where(graph.train, graph.labels, -1)
        for alpha in self.alphas:
            logits = _spread(graph, labels.to(task.device), alpha, task.classes)
            judged = task.judge(logits[graph.validation.to(logits.device)])
            fitted = Spreading(alpha, names, labels[graph.train].cpu(), task.classes)
            yield Candidate(self.name, "none", 0, 1.0, *judged, f"α = {alpha:g}"), ready(fitted)
        tick(self.name)


@dataclass(frozen=True, eq=False)
class Spreading:
    """The known labels, which spread from the nodes of the same names in any graph.

    Args:
        alpha: α.
        names: int64 [m], fingerprints of the training nodes.
        labels: int64 [m].
        classes: how many there are.
    """

    alpha: float
    names: Tensor
    labels: Tensor
    classes: int

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logarithm of what arrived of every class, [n, 1, classes]."""
        found, names = fingerprints(graph.node_names), self.names.numpy()
        order = names.argsort()
        place = order[np.searchsorted(names, found, sorter=order).clip(max=len(names) - 1)]
        labels = np.where(names[place] == found, self.labels.numpy()[place], -1)
        return _spread(graph, torch.from_numpy(labels).to(device), self.alpha, self.classes)

    def state(self) -> State:
        """Return α and the labels."""
        return {"alpha": self.alpha}, {"names": self.names, "labels": self.labels}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up the labels of the nodes that were learnt from."""
        labels = saved.tensor("labels", *saved.tensors["names"].shape)
        if not 0 <= int(labels.min()) <= int(labels.max()) < saved.classes:
            raise ValueError(f"the labels are not those of {saved.classes} classes")
        alpha = real_number("alpha", saved.settings["alpha"], least=0, below=1)
        return cls(alpha, saved.tensors["names"], labels, saved.classes)


def _spread(graph: Graph, labels: Tensor, alpha: float, classes: int) -> Tensor:
    given = torch.nn.functional.one_hot(labels.clamp(min=0), classes) * (labels >= 0)[:, None].float()
    matrix, state = propagation(graph.adjacency, "sym").to(labels.device), given
    for _ in range(ROUNDS):
        state = alpha * (matrix @ state) + (1 - alpha) * given
    # Where no label arrives, the most frequent class is the best guess.
    return (state + 1e-12 * given.sum(0) + 1e-30).log().unsqueeze(1)
