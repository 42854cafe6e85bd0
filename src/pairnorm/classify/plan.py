"""What to try, made of what a user asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pairnorm.classify.candidates import SCALES
from pairnorm.classify.smoothing import suggest_depth
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
