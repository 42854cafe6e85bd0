"""SGC: every depth and scale from one propagation, each with a logistic regression solved to the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Candidate, Found, Network, Task, Tick, check_size
from pairnorm.classify.regression import regressions, span
from pairnorm.nn import SGC, PairNorm, propagation, states
from pairnorm.train.spec import Norm

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
# A depth can be chosen by this many training nodes; the model is then fitted on all of them.
ENOUGH = 4000


@dataclass(frozen=True)
class SGCFamily:
    """SGCs of several norms, depths and scales.

    Args:
        norms: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        depths: numbers of propagations.
        scales: PairNorm's s; without a norm, what the features are multiplied by.
        name: of the family.
    """

    norms: Sequence[Norm]
    depths: Sequence[int]
    scales: Sequence[float] = SCALES
    name: str = "SGC"

    @property
    def steps(self) -> int:
        """One for every norm and depth; PN-SCS is propagated anew for every scale."""
        return sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.norms) * len(self.depths)

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield an SGC for every norm, depth and scale; of many training nodes, some decide and all teach."""
        check_size(task.graph)
        few, best = _fewer(task), None
        for norm in self.norms:
            for candidate, build in _sweep(few, norm, self.depths, self.scales, tick):
                yield candidate, build if few is task else None
                if best is None or candidate.rank > best.rank:
                    best = candidate
        if few is not task and best is not None:
            yield from _sweep(task, best.norm, [best.depth], [best.scale], lambda done: None)


def _sweep(task: Task, norm: Norm, depths: Sequence[int], scales: Sequence[float], tick: Tick) -> Found:
    """Yield every depth and scale from one propagation: PairNorm commutes with its scale, all but PN-SCS."""
    graph, device = task.graph, task.device
    basis, start = span(task.features.to_dense().to(device))
    matrix = propagation(graph.adjacency, task.adjacency).to(device)
    labels, train, validation = (part.to(device) for part in (graph.labels, graph.train, graph.validation))
    for group in [[scale] for scale in scales] if norm == "PN-SCS" else [scales]:
        own = group[0] if norm == "PN-SCS" else 1.0
        walk = states(start, matrix, None if norm == "none" else PairNorm(own, norm))
        for depth, state in zip(range(max(depths) + 1), walk, strict=False):
            if depth not in depths:
                continue
            held = state[validation]
            fitted = regressions(state[train], labels[train], task.classes, [scale / own for scale in group])
            for factor, weight, bias in fitted:
                judged = task.judge((factor * held @ weight + bias).unsqueeze(1))
                candidate = Candidate("SGC", norm, depth, own * factor, *judged)

                def build(
                    candidate: Candidate = candidate, weight: Tensor = weight, bias: Tensor = bias
                ) -> Network:
                    # Without a norm an SGC has no scale of its own: its weights take it over.
                    weight = weight if candidate.norm != "none" else candidate.scale * weight
                    weight = weight if basis is None else basis @ weight
                    settings = {"norm": candidate.mode, "scale": candidate.scale, "adjacency": task.adjacency}
                    return Network(
                        SGC.from_weights(weight[None], bias[None], depth=candidate.depth, **settings)
                    )

                yield candidate, build
            tick(f"SGC{'' if norm == 'none' else '-' + norm}, depth {depth}")


def _fewer(task: Task) -> Task:
    """Return the task with at most ``ENOUGH`` training nodes, of every class its share."""
    nodes = task.graph.train.nonzero().squeeze(1)
    if len(nodes) <= ENOUGH:
        return task
    by_class = nodes[task.graph.labels[nodes].argsort(stable=True)]
    # Evenly spaced among the nodes of a class, and the first of each, however rare.
    labels = task.graph.labels[by_class]
    first = torch.cat([labels.new_ones(1, dtype=torch.bool), labels[1:] != labels[:-1]])
    spaced = torch.linspace(0, len(by_class) - 1, ENOUGH, device=nodes.device).long()
    train = torch.zeros_like(task.graph.train)
    train[by_class[spaced]] = True
    train[by_class[first]] = True
    return replace(task, graph=task.graph.replace(train=train))
