"""What a classifier tries: validated parameters, families of candidates, baselines and the time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pairnorm.base.errors import PairNormError, one_of, parse_duration, real_number, whole_number
from pairnorm.classify.candidates.boosted_trees import HOPS, LEAVES, BoostedTrees
from pairnorm.classify.candidates.candidate import Family
from pairnorm.classify.candidates.label_propagation import ALPHAS, LabelPropagation, MostFrequent
from pairnorm.classify.candidates.networks import GNNFamily
from pairnorm.classify.candidates.prepared import has_many_nodes
from pairnorm.classify.candidates.sgc import LogisticRegression, SGCFamily
from pairnorm.classify.diagnosis import suggest_depth
from pairnorm.classify.search_limits import SCALES, default_norms
from pairnorm.data import Graph
from pairnorm.train.methods import METHODS
from pairnorm.train.spec import NORMS, Norm, Spec

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


# What is trained by gradient descent, and how deep by default.
NETWORKS = {"GCN": (2, 4, 6, 8, 10), "GAT": (2, 4, 6, 8, 10), "GCNII": (8, 32), "APPNP": (4, 10)}
# Models that are tried within the default time limit.
SIMPLE = ("label propagation", "logistic regression", "boosted trees", "most frequent class")
MODELS = ("SGC", *NETWORKS, *SIMPLE)
IMPUTATIONS = ("zero", "fp", "mass")
IMPUTATION_ALIASES = {"known_neighbor_mean": "mass"}
IMPUTATION_CHOICES = ("zero", "fp", "known_neighbor_mean", "mass")
SGC_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60)
DEEPEST = 10_000
# Beyond these, float32 holds no logits, or no difference between them.
LEAST_SCALE, LARGEST_SCALE = 1e-6, 1e6
# What the paper trains GCN and GAT with.
GNN_NORM: Norm = "PN-SI"
# Where nothing is left to choose by.
USUAL_SCALE = 30.0
# Seconds that a search takes at most up to so many nodes, growing with the square root of their number.
DEFAULT_SECONDS, DEFAULT_NODES = 60.0, 20_000
BASELINE_EPOCHS, BASELINE_SEEDS = 200, 3
BASELINE_RATES, BASELINE_DROPOUTS = (0.005, 0.02), (0.6, 0.2)


class SearchSpace(NamedTuple):
    """A classifier's parameters, validated; None stands for ``"auto"``."""

    models: list[str] | None
    imputations: list[str] | None
    norms: list[Any] | None
    depths: list[int] | None
    scales: list[float] | None
    seeds: int
    seconds: float | None


def parse_search_space(classifier: NodeClassifier) -> SearchSpace:
    """Validate the parameters of a classifier that may have several values."""
    space = SearchSpace(
        _several("model", classifier.model, _model),
        _several("impute", classifier.impute, parse_imputation),
        _several("norm", classifier.norm, partial(_choice, NORMS)),
        _several("depth", classifier.depth, partial(whole_number, least=1, most=DEEPEST)),
        _several("scale", classifier.scale, partial(real_number, least=LEAST_SCALE, most=LARGEST_SCALE)),
        whole_number("seeds", classifier.seeds, least=1),
        _granted(classifier.time_limit),
    )
    if [] in space:
        expected = "a model, a norm, a depth and a scale at least, or 'auto'"
        raise PairNormError("there is nothing to try", code="nothing-to-try", expected=expected)
    return space


def plan(classifier: NodeClassifier, graph: Graph) -> list[Family]:
    """Return what a classifier's parameters ask to try, in order.

    Args:
        classifier: whose parameters.
        graph: with its split. Without validation nodes, one model is planned, by default an SGC whose depth
            is set by rule.
    """
    models, imputations, norms, depths, scales, seeds, seconds = parse_search_space(classifier)
    if models is None:
        # One who names a depth or a norm asks for what has them.
        named = any(given is not None for given in (norms, depths, scales, imputations))
        models = ["SGC", *(() if named else SIMPLE), *(() if seconds is None else NETWORKS)]
    gnns = [model for model in models if model in NETWORKS]
    sgc = (norms or default_norms(classifier.adjacency, has_many_nodes(graph))) if "SGC" in models else []
    chosen = bool(graph.validation.any())
    if not chosen:
        if gnns:
            problem = f"model {gnns[0]!r} is chosen by validation, but no labeled node is left for that"
            hint = "Label more nodes, or pass {model}."
            raise PairNormError(problem, code="no-validation", value=gnns[0], hint=hint, model="SGC")
        sgc = [norm for norm in sgc if norm != "none"][:1] or sgc[:1]
        depths = depths[:1] if depths else [suggest_depth(graph).depth]
        scales = scales[:1] if scales else [USUAL_SCALE]
        imputations = imputations[:1] if imputations else ["zero"]
        models = models[:1]
    families: list[Family] = []
    if sgc:
        over = tuple(imputations or IMPUTATIONS) if graph.missing.any() else ("zero",)
        families.append(SGCFamily(sgc, depths or SGC_DEPTHS, scales or SCALES, over))
    families += _simple(models, scales or SCALES, chosen, _directed(classifier, graph))
    if gnns:
        specs = _specs(classifier, gnns, norms, depths, scales)
        limit = inf if seconds is None else seconds
        kept = None if classifier.checkpoints is None else Path(classifier.checkpoints)
        family = GNNFamily(
            specs,
            range(classifier.random_state, classifier.random_state + seeds),
            limit,
            required=not sgc,
            checkpoints=kept,
            cross_fit=True,
        )
        families.append(family)
    return families


def _specs(
    classifier: NodeClassifier,
    models: Sequence[str],
    norms: Sequence[Norm] | None,
    depths: Sequence[int] | None,
    scales: Sequence[float] | None,
) -> list[Spec]:
    """Return what to train, shallow ones first: they are quick, and often so good that none should miss them.

    GCNII and APPNP have no norm, but a share of the first state, and the adjacency of their papers.
    """
    shared: dict[str, Any] = {name: getattr(classifier, name) for name in ("hidden", "dropout", "epochs")}
    specs = []
    for model in models:
        for depth in depths or NETWORKS[model]:
            if model not in METHODS:
                own = shared | {"adjacency": classifier.adjacency}
                settings = product(norms or ("none", GNN_NORM), scales or (1.0,))
                specs += [
                    Spec("own", model, depth, norm=norm, scale=scale, **own) for norm, scale in settings
                ]
            elif norms is None or "none" in norms:
                own, shares = {**shared, **METHODS[model].settings}, METHODS[model].grid
                specs += [Spec("own", "GCN", depth, method=model, strength=one, **own) for one in shares]
    if not specs:
        problem = f"{' and '.join(models)} have no norm"
        raise PairNormError(problem, code="nothing-to-try", value=norms, expected="norm 'none'")
    return sorted(dict.fromkeys(specs), key=lambda spec: spec.depth)


def baselines(graph: Graph, seed: int = 0, large: bool = False) -> list[Family]:
    """Return the simpler methods that a model is compared with, each with settings to choose from.

    They are: the most frequent class; label propagation, which sees no features; logistic regression, which
    sees no edges; and a plain GCN of two layers. Where there are no validation nodes, regularization is set
    by the rule that sets SGC's, and there is no GCN, whose epochs are chosen by them; nor is there
    one over many nodes, where it would take hours.

    Args:
        graph: with its split.
        seed: the first of the GCN's.
        large: leave out logistic regression, for which features must be dense.
    """
    chosen = bool(graph.validation.any())
    families: list[Family] = [MostFrequent(), LabelPropagation()]
    if not large:
        families.append(LogisticRegression(SCALES if chosen else (USUAL_SCALE,)))
    if chosen and not has_many_nodes(graph):
        specs = [
            Spec("own", "GCN", 2, epochs=BASELINE_EPOCHS, learning_rate=rate, dropout=dropout)
            for rate in BASELINE_RATES
            for dropout in BASELINE_DROPOUTS
        ]
        families.append(GNNFamily(specs, range(seed, seed + BASELINE_SEEDS), name="GCN, 2 layers"))
    return families


def _directed(classifier: NodeClassifier, graph: Graph) -> bool:
    """Say whether directions count: where some edges go both ways and some do not, unless it is said.

    A list that has every edge once may well be that of an undirected graph.
    """
    if graph.directed is None or classifier.directed == "no":
        return False
    return classifier.directed == "yes" or int(graph.directed.sum()) > graph.num_edges


def _simple(models: Sequence[str], scales: Sequence[float], chosen: bool, directed: bool) -> list[Family]:
    """Return the families that are asked for among ``SIMPLE``, with one setting where nothing chooses."""
    few = None if chosen else 1
    directions = (False, True) if directed else (False,)
    families: dict[str, Family] = {
        "label propagation": LabelPropagation(ALPHAS[:few]),
        "logistic regression": LogisticRegression(scales),
        "boosted trees": BoostedTrees(HOPS[:few], LEAVES[:few], directions[:few]),
        "most frequent class": MostFrequent(),
    }
    return [families[name] for name in SIMPLE if name in models]


def resolve_time_limit(time_limit: float | str | None, nodes: int) -> float:
    """Return the time limit in seconds; infinite for 0, which asks for an exhaustive search.

    >>> resolve_time_limit("5m", 1000)
    300.0

    Args:
        time_limit: a number of seconds, a text such as ``"5m"``, or None for 60 s up to 20,000 nodes and more
            for larger graphs.
        nodes: how many nodes the graph has.
    """
    if time_limit is None:
        return DEFAULT_SECONDS * sqrt(max(1.0, nodes / DEFAULT_NODES))
    seconds = parse_duration("time_limit", time_limit, allow_zero=True)
    return seconds if seconds > 0 else inf


def _granted(time_limit: float | str | None) -> float | None:
    """Return the seconds that were asked for, which networks join for; None without a limit of one's own."""
    seconds = inf if time_limit is None else resolve_time_limit(time_limit, 0)
    return None if seconds == inf else seconds


def _choice(allowed: Sequence[str], what: str, value: Any) -> str:
    return one_of(what, value, ("auto", *allowed))


def parse_imputation(what: str, value: Any) -> str:
    """Return the name of an imputation in ``IMPUTATIONS``, which may be given by an alias."""
    name = _choice(IMPUTATION_CHOICES, what, value)
    return IMPUTATION_ALIASES.get(name, name)


def _model(what: str, value: Any) -> str:
    """Take a model's name also as a command line has it, with hyphens."""
    return _choice(MODELS, what, value.replace("-", " ") if isinstance(value, str) else value)


def _several(what: str, value: Any, check: Callable[[str, Any], Any]) -> list[Any] | None:
    """Return what was given, one or many in whatever holds them, checked; None for ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return None
    return [check(what, one) for one in np.array(value, dtype=object).ravel().tolist()]
