"""Choosing a model by validation: SGC at every depth, then GCNs and GATs if asked for, while time allows."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

from pairnorm.classify.candidates import SCALES, Candidate, Found, Task, gnn_candidate, sgc_candidates
from pairnorm.classify.diagnosis import suggest_depth
from pairnorm.classify.split import ClassifierWarning
from pairnorm.data import Graph
from pairnorm.errors import PairNormError, one_of
from pairnorm.train.spec import NORMS, Spec

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


Number = TypeVar("Number", int, float)

MODELS = ("SGC", "GCN", "GAT")
SGC_DEPTHS = (*range(1, 11), *range(15, 61, 5))
GNN_DEPTHS = (2, 4, 6, 8, 10)
# What the paper trains GCN and GAT with.
GNN_NORM = "PN-SI"
# Where nothing is left to choose by.
USUAL_SCALE = 30.0
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Plan:
    """What to try, in order.

    Args:
        sgc: the norms of SGC; none for no SGC.
        sgc_depths: its depths.
        scales: PairNorm's s, for SGC.
        gnns: the specs of GCNs and GATs.
        seeds: of their trials.
        seconds: after so long, no GCN or GAT is begun or gone on with.
    """

    sgc: Sequence[str]
    sgc_depths: Sequence[int]
    scales: Sequence[float]
    gnns: Sequence[Spec]
    seeds: Sequence[int]
    seconds: float = inf

    @classmethod
    def of(cls, wanted: NodeClassifier, graph: Graph) -> Plan:
        """Make a plan of a classifier's parameters.

        Args:
            wanted: whose parameters.
            graph: with its split. Without validation nodes, one SGC is planned, its depth set by rule.
        """
        models = _choices("model", wanted.model, MODELS)
        norms = _choices("norm", wanted.norm, NORMS)
        depths = _numbers("depth", wanted.depth, _whole)
        scales = _numbers("scale", wanted.scale, _positive)
        seed = _whole("random_state", wanted.random_state, least=0)
        seconds = parse_budget(wanted.budget)
        models = models or (["SGC"] if seconds is None else list(MODELS))
        gnns = [model for model in models if model != "SGC"]
        sgc = (norms or ["none", "PN"]) if "SGC" in models else []
        if not graph.validation.any():
            if gnns:
                raise PairNormError(
                    f"model {gnns[0]!r} is chosen by validation, but no labelled node is left for that. "
                    "Label more nodes, or choose model='SGC'."
                )
            sgc = [norm for norm in sgc if norm != "none"][:1] or sgc[:1]
            depths = depths[:1] if depths else [suggest_depth(graph).depth]
            scales = scales[:1] if scales else [USUAL_SCALE]
        # Shallow ones first: they are quick, and so often good enough that a budget should not miss them.
        specs = [
            Spec(
                "own",
                model,
                depth,
                norm=norm,
                scale=scale,
                hidden=wanted.hidden,
                dropout=wanted.dropout,
                adjacency=wanted.adjacency,
                epochs=wanted.epochs,
            )
            for depth in sorted(depths or GNN_DEPTHS)
            for model in gnns
            for norm in norms or ["none", GNN_NORM]
            for scale in scales or [1.0]
        ]
        return cls(
            sgc=sgc,
            sgc_depths=depths or SGC_DEPTHS,
            scales=scales or SCALES,
            gnns=list(dict.fromkeys(specs)),
            seeds=range(seed, seed + _whole("seeds", wanted.seeds)),
            seconds=inf if seconds is None else seconds,
        )

    @property
    def steps(self) -> int:
        """How many times ``tick`` will be called."""
        sweeps = sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.sgc)
        return sweeps * len(self.sgc_depths) + len(self.gnns)


def parse_budget(budget: float | str | None) -> float | None:
    """Return seconds, of a number or of a text such as ``'90s'``, ``'5m'`` or ``'1.5h'``.

    >>> parse_budget("5m")
    300.0

    Args:
        budget: None for none.
    """
    if budget is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(budget).strip())
    if not found or float(found[1]) == 0:
        raise PairNormError(f"budget is {budget!r}; expected a time such as '90s', '5m' or '1h'.")
    return float(found[1]) * UNITS[found[2]]


def _choices(what: str, value: str | Sequence[str], allowed: Sequence[str]) -> list[str] | None:
    """Return the names that were given, checked; None for ``"auto"``."""
    names = _several(value)
    return None if names is None else [one_of(what, name, ("auto", *allowed)) for name in names]


def _numbers(what: str, value: Any, check: Callable[[str, Any], Number]) -> list[Number] | None:
    """Return the numbers that were given, checked; None for ``"auto"``."""
    numbers = _several(value)
    return None if numbers is None else [check(what, number) for number in numbers]


def _several(value: Any) -> list[Any] | None:
    """Return what was given, one or many in whatever holds them, as a list; None for ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return None
    given: list[Any] = np.array(value, dtype=object).ravel().tolist()
    return given


def _whole(what: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise PairNormError(f"{what} is {value!r}; expected a whole number, {least} or more.")
    return int(value)


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < inf:
        raise PairNormError(f"{what} is {value!r}; expected a number above 0.")
    return float(value)


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
