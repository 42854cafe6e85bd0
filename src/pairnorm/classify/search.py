"""Choosing a model by validation: SGC at every depth, then GCNs and GATs if asked for, while time allows."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn

from pairnorm.classify.candidates import Candidate, Found, Task, gnn_candidate, sgc_candidates
from pairnorm.classify.plan import Plan
from pairnorm.errors import PairNormError


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

    for norm in plan.sgc:
        consider(sgc_candidates(task, norm, plan.sgc_depths, plan.scales, tick))

    def watch(_: int) -> None:
        if best is not None and time.perf_counter() - began > plan.seconds:
            raise OutOfTime

    for spec in plan.gnns:
        try:
            watch(0)
            consider(gnn_candidate(task, spec, plan.seeds, watch))
        except OutOfTime:
            pass
        tick(f"{spec.model}, depth {spec.depth}")
    if best is None or network is None:
        raise PairNormError(
            "there is nothing to try: name a model, a depth and a scale, or leave them 'auto'."
        )
    return tried, best, network
