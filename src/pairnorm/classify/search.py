"""Choosing a model by validation: SGC at every depth, then GCNs and GATs if asked for, while time allows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from pairnorm.classify.candidates import Candidate, Found, Task, gnn_candidate, sgc_candidates
from pairnorm.classify.plan import Plan
from pairnorm.classify.split import ClassifierWarning
from pairnorm.errors import PairNormError

# A depth can be chosen by this many training nodes; the model is then fitted on all of them.
ENOUGH = 4000


class OutOfTime(Exception):
    """Raised from inside an epoch loop once the budget is spent."""


def search(
    task: Task, plan: Plan, tick: Callable[[str], None] = lambda done: None
) -> tuple[list[Candidate], Candidate, nn.Module]:
    """Try every candidate and return them all, the best, and the best as a network.

    Args:
        task: the graph.
        plan: what to try.
        tick: is told of every step done.
    """
    began = time.perf_counter()
    tried: list[Candidate] = []
    best: Candidate | None = None
    network: nn.Module | None = None

    def consider(found: Found) -> None:
        nonlocal best, network
        for candidate, build in found:
            tried.append(candidate)
            if best is None or candidate.rank > best.rank:
                best, network = candidate, build()

    few = _fewer(task)
    for norm in plan.sgc:
        consider(sgc_candidates(few, norm, plan.sgc_depths, plan.scales, tick))
    if few is not task and best is not None:
        ((best, build),) = sgc_candidates(task, best.norm, [best.depth], [best.scale], lambda done: None)
        network = build()

    def watch(_: int) -> None:
        if best is not None and time.perf_counter() - began > plan.seconds:
            raise OutOfTime

    left = 0
    for spec in plan.gnns:
        try:
            watch(0)
            consider(gnn_candidate(task, spec, plan.seeds, watch))
        except OutOfTime:
            left += 1
        tick(f"{spec.model}, depth {spec.depth}")
    if left:
        warnings.warn(
            f"the budget of {plan.seconds:.0f} s was spent when {left} of {len(plan.gnns)} GCNs and GATs "
            "were left to try, the deepest among them. Allow more time, or name a model and depths.",
            ClassifierWarning,
            stacklevel=3,
        )
    if best is None or network is None:
        raise PairNormError(
            "there is nothing to try: name a model, a depth and a scale, or leave them 'auto'."
        )
    return tried, best, network


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
