"""The search space of a classifier: parameters, families of candidates, their evaluation task, baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, parse_duration, real_number, whole_number
from pairnorm.classify.candidates.boosted_trees import (
    FACTORIES,
    HOPS,
    LEAVES,
    BoostedTrees,
    EstimatorFamily,
    find_candidate,
)
from pairnorm.classify.candidates.columns import EXTRAS
from pairnorm.classify.candidates.ensemble import LABEL_ALPHAS, LabelPropagation, MostFrequent
from pairnorm.classify.candidates.networks import GNNFamily
from pairnorm.classify.candidates.residual import HopNetworks, ResidualGCNs
from pairnorm.classify.candidates.sgc import LogisticRegression, SGCFamily
from pairnorm.classify.candidates.task import Family, Task
from pairnorm.classify.evaluation import METRICS
from pairnorm.classify.explanation import suggest_depth
from pairnorm.classify.holdout import Target, draw_folds, mask_features
from pairnorm.classify.regression import SCALES, default_norms
from pairnorm.classify.scaling import PreparedGraph, Scaling, has_many_nodes
from pairnorm.data import Graph, Split
from pairnorm.impute.methods import OLD_NAMES
from pairnorm.nn.propagate import NORMALIZATIONS
from pairnorm.train.distributed import shards_of
from pairnorm.train.engine import find_device
from pairnorm.train.methods import METHODS
from pairnorm.train.spec import NORMS, Norm, Spec

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier


# Models that are trained by gradient descent, with their default depths.
NETWORKS = {"GCN": (2, 4, 6, 8, 10), "GAT": (2, 4, 6, 8, 10), "GCNII": (8, 32), "APPNP": (4, 10)}
# Models that are evaluated within the default time limit, in addition to SGC.
SIMPLE = ("label propagation", "logistic regression", "boosted trees", "most frequent class")
# Networks with known labels as inputs, which are trained for a few epochs first.
GRADUAL = {"residual GCN": ResidualGCNs, "hop network": HopNetworks}
MODELS = ("SGC", *NETWORKS, *SIMPLE, *GRADUAL)
IMPUTATIONS = ("zero", "fp", "mass")
STORED_NAMES = {name: stored for stored, name in OLD_NAMES.items()}
IMPUTATION_CHOICES = ("zero", "fp", *STORED_NAMES, *OLD_NAMES)
SGC_DEPTHS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60)
MAX_DEPTH = 10_000
# Beyond these, float32 holds no logits, or no difference between them.
MIN_SCALE, MAX_SCALE = 1e-6, 1e6
# The norm that the paper trains GCN and GAT with, and the scale where no validation node can select one.
GNN_NORM: Norm = "PN-SI"
DEFAULT_SCALE = 30.0
# The default time limit up to this many nodes; it grows with the square root of their number.
DEFAULT_SECONDS, DEFAULT_NODES = 60.0, 20_000
# A shorter search has no time for networks.
MIN_NETWORK_SECONDS = 30.0
BASELINE_EPOCHS, BASELINE_SEEDS = 200, 3
# The first setting is the best one on most graphs, and the only one where time is short.
BASELINE_RATES, BASELINE_DROPOUTS = (0.02, 0.005), (0.6, 0.2)


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
    """Validate the parameters of a classifier, and return those that may have several values."""
    one_of("metric", classifier.metric, METRICS)
    one_of("class_weight", classifier.class_weight, ("auto", "balanced"))
    one_of("directed", classifier.directed, ("auto", "yes", "no"))
    one_of("adjacency", classifier.adjacency, NORMALIZATIONS)
    whole_number("random_state", classifier.random_state, most=2**63 - 1)
    whole_number("hidden", classifier.hidden)
    whole_number("epochs", classifier.epochs, least=1)
    real_number("dropout", classifier.dropout, least=0, below=1)
    seconds = inf if classifier.time_limit is None else resolve_time_limit(classifier.time_limit, 0)
    space = SearchSpace(
        _parse_several("model", classifier.model, _parse_model),
        _parse_several("impute", classifier.impute, parse_imputation),
        _parse_several("norm", classifier.norm, partial(_parse_choice, NORMS)),
        _parse_several("depth", classifier.depth, partial(whole_number, least=1, most=MAX_DEPTH)),
        _parse_several("scale", classifier.scale, partial(real_number, least=MIN_SCALE, most=MAX_SCALE)),
        whole_number("seeds", classifier.seeds, least=1),
        None if seconds == inf else seconds,
    )
    if [] in space:
        expected = "a model, a norm, a depth and a scale at least, or 'auto'"
        raise PairNormError("there is nothing to try", code="nothing-to-try", expected=expected)
    return space


def plan(classifier: NodeClassifier, graph: Graph) -> list[Family]:
    """Return the families of candidates that a classifier's parameters describe.

    Without validation nodes, one model is planned, by default an SGC whose depth is set by rule.
    """
    models, imputations, norms, depths, scales, seeds, seconds = parse_search_space(classifier)
    on_gpu = find_device(classifier.device).type == "cuda"
    if models is None:
        # A depth, norm, scale or imputation is one of SGC; networks need a time limit.
        only_sgc = any(values is not None for values in (norms, depths, scales, imputations))
        too_short = seconds is not None and seconds < MIN_NETWORK_SECONDS
        models = ["SGC", *(() if only_sgc else SIMPLE), *(() if seconds is None or too_short else NETWORKS)]
        # On a CPU, an epoch over many nodes takes longer than all other candidates.
        quick = not too_short and (on_gpu or not has_many_nodes(graph))
        if graph.validation.any() and not only_sgc and quick:
            models.extend(GRADUAL)
    networks = [model for model in models if model in (*NETWORKS, *GRADUAL)]
    sgc = (norms or default_norms(classifier.adjacency, has_many_nodes(graph))) if "SGC" in models else []
    selectable = bool(graph.validation.any())
    if not selectable:
        if networks:
            problem = f"model {networks[0]!r} is chosen by validation, but no labeled node is left for that"
            hint = "Label more nodes, or pass {model}."
            raise PairNormError(problem, code="no-validation", value=networks[0], hint=hint, model="SGC")
        sgc = [norm for norm in sgc if norm != "none"][:1] or sgc[:1]
        depths = depths[:1] if depths else [suggest_depth(graph).depth]
        scales = scales[:1] if scales else [DEFAULT_SCALE]
        imputations = imputations[:1] if imputations else ["zero"]
        models = models[:1]
    first = None if selectable else 1
    directions = (False, True) if _use_directions(classifier, graph) else (False,)
    names = tuple(imputations or IMPUTATIONS) if graph.missing.any() else ("zero",)
    exhaustive = resolve_time_limit(classifier.time_limit, graph.num_nodes) == inf
    # From cheap to expensive: a short search may not reach the last of them.
    known: dict[str, Family] = {
        "most frequent class": MostFrequent(),
        "label propagation": LabelPropagation(LABEL_ALPHAS[:first]),
        "SGC": SGCFamily(sgc, depths or SGC_DEPTHS, scales or SCALES, names, exhaustive),
        "boosted trees": BoostedTrees(
            HOPS[:first], LEAVES[:first], directions[:first], EXTRAS if selectable else ()
        ),
        "logistic regression": LogisticRegression(scales or SCALES),
    }
    families = [family for name, family in known.items() if name in models]
    families += [EstimatorFamily(name) for name in models if name in FACTORIES]
    for name in filter(networks.__contains__, GRADUAL):
        networks.remove(name)
        families.append(GRADUAL[name].of(depths, classifier.hidden, on_gpu, classifier.random_state))
    if networks:
        family = GNNFamily(
            _network_specs(classifier, networks, norms, depths, scales),
            range(classifier.random_state, classifier.random_state + seeds),
            required=not sgc,
            checkpoints=None if classifier.checkpoints is None else Path(classifier.checkpoints),
            cross_fit=True,
        )
        families.append(family)
    return families


def evaluation_task(
    classifier: NodeClassifier, graph: Graph, user_split: Split, target: Target | None, scaling: Scaling
) -> Task:
    """Return the task on which candidates are compared: every held-out node is masked like the target.

    Test nodes are masked in its graph. Validation nodes are masked in the folds that hold them out.
    """
    fold_masks: list[Tensor] = []
    shards = shards_of(graph.num_nodes)
    # With a time column, folds would train on later nodes. One split is enough for many nodes.
    if classifier.time is None and not has_many_nodes(graph):
        fold_masks = draw_folds(graph.with_split(user_split), graph.split, classifier.random_state)
    feature_mask = None
    if target is not None:
        selection = torch.stack(fold_masks).any(0) if fold_masks else graph.validation
        feature_mask = target.mask(graph, selection, classifier.random_state)
        masked = mask_features(graph, target.mask(graph, graph.test, classifier.random_state))
        scaling = scaling if masked is graph else scaling.fitted_to(masked)
        graph = masked
    return Task(
        graph,
        PreparedGraph(graph, scaling(graph), find_device(classifier.device)),
        classifier.adjacency,
        time_limit=resolve_time_limit(classifier.time_limit, graph.num_nodes),
        metric=classifier.metric,
        fold_masks=fold_masks,
        feature_mask=feature_mask,
        shards=shards,
    )


def _use_directions(classifier: NodeClassifier, graph: Graph) -> bool:
    """Return whether to evaluate trees with directions; by default where some edges go both ways, not all.

    A list that has every edge once may well be that of an undirected graph.
    """
    if graph.directed is None or classifier.directed == "no":
        return False
    return classifier.directed == "yes" or int(graph.directed.sum()) > graph.num_edges


def _network_specs(
    classifier: NodeClassifier,
    models: Sequence[str],
    norms: Sequence[Norm] | None,
    depths: Sequence[int] | None,
    scales: Sequence[float] | None,
) -> list[Spec]:
    """Return the networks to train, shallow ones first: they are quick, and often good.

    GCNII and APPNP have no norm, but a share of the first state, and the adjacency of their papers.
    """
    shared: dict[str, Any] = {name: getattr(classifier, name) for name in ("hidden", "dropout", "epochs")}
    specs = []
    for model in models:
        for depth in depths or NETWORKS[model]:
            if model not in METHODS:
                base = shared | {"adjacency": classifier.adjacency}
                settings = product(norms or ("none", GNN_NORM), scales or (1.0,))
                specs += [
                    Spec("own", model, depth, norm=norm, scale=scale, **base) for norm, scale in settings
                ]
            elif norms is None or "none" in norms:
                base, shares = {**shared, **METHODS[model].settings}, METHODS[model].grid
                specs += [Spec("own", "GCN", depth, method=model, strength=share, **base) for share in shares]
    if not specs:
        problem = f"{' and '.join(models)} have no norm"
        raise PairNormError(problem, code="nothing-to-try", value=norms, expected="norm 'none'")
    return sorted(dict.fromkeys(specs), key=lambda spec: spec.depth)


def baselines(graph: Graph, seed: int = 0, large: bool = False, time_limit: float = inf) -> list[Family]:
    """Return the baselines that a model is compared with, each with settings to choose from.

    They are: the most frequent class; label propagation, which sees no features; logistic regression, which
    sees no edges; and a GCN of two layers. Without validation nodes, regularization is set by rule, and there
    is no GCN, whose epochs they select; nor is there one over many nodes, where it would take hours, or
    within a short time limit. ``large`` leaves out logistic regression, for which features must be dense.
    """
    selectable = bool(graph.validation.any())
    families: list[Family] = [MostFrequent(), LabelPropagation()]
    if not large:
        families.append(LogisticRegression(SCALES if selectable else (DEFAULT_SCALE,)))
    if selectable and not has_many_nodes(graph) and time_limit >= MIN_NETWORK_SECONDS:
        specs = [
            Spec("own", "GCN", 2, epochs=BASELINE_EPOCHS, learning_rate=rate, dropout=dropout)
            for rate in BASELINE_RATES
            for dropout in BASELINE_DROPOUTS
        ]
        seeds = range(seed, seed + BASELINE_SEEDS)
        families.append(GNNFamily(specs, seeds, name="GCN, 2 layers"))
    return families


def resolve_time_limit(time_limit: float | str | None, nodes: int) -> float:
    """Return the time limit in seconds; infinite for 0, which asks for an exhaustive search.

    >>> resolve_time_limit("5m", 1000), resolve_time_limit(None, 80_000)
    (300.0, 120.0)
    """
    if time_limit is None:
        return DEFAULT_SECONDS * sqrt(max(1.0, nodes / DEFAULT_NODES))
    seconds = parse_duration("time_limit", time_limit)
    return seconds if seconds > 0 else inf


def _parse_choice(allowed: Sequence[str], name: str, value: Any) -> str:
    return one_of(name, value, ("auto", *allowed))


def parse_imputation(name: str, value: Any) -> str:
    """Return the name of an imputation in ``IMPUTATIONS``, which may be given by an alias."""
    choice = _parse_choice(IMPUTATION_CHOICES, name, value)
    return STORED_NAMES.get(choice, choice)


def _parse_model(name: str, value: Any) -> str:
    """Accept a model's name also with hyphens, as on the command line."""
    if isinstance(value, str) and find_candidate(value) is not None:
        return value
    choices = (*MODELS, *FACTORIES)
    return _parse_choice(choices, name, value.replace("-", " ") if isinstance(value, str) else value)


def _parse_several(name: str, value: Any, parse: Callable[[str, Any], Any]) -> list[Any] | None:
    """Validate one value or a sequence of values. Returns None for ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return None
    return [parse(name, item) for item in np.array(value, dtype=object).ravel().tolist()]
