"""Compare a fitted classifier with its baselines in words, and state how far the figures hold."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from pairnorm.classify.evaluation import RANKING_METRICS, Scores, metric_difference
from pairnorm.classify.holdout import FEW

if TYPE_CHECKING:
    from pairnorm.classify.findings import Baseline, Findings

# A smaller difference between two accuracies is not worth a sentence, nor is a smaller share of nodes.
MIN_DIFFERENCE = 0.02
MIN_UNMATCHED = 0.05
# A larger loss against a baseline is stated even if it is not significant.
LARGE_LOSS = 0.05


def verdict(findings: Findings) -> str:
    """Return the headline, and remarks on the target population, time and rare classes."""
    remarks = (*_target(findings), *_time(findings), *_rare(findings))
    return " ".join([headline(findings), *remarks])


def headline(findings: Findings) -> str:
    """Compare the model with its baselines, by the metric that selected it, in a few sentences."""
    best, test = findings.classifier.best_, findings.test
    if not test.any():
        return _unevaluated(findings)
    ours = findings.test_scores
    if not findings.baselines:
        return (
            f"**Not compared with baselines.** {best.name} is right on {100 * ours.accuracy:.1f}% of "
            f"{ours.count:,} held-out nodes."
        )
    metric = "accuracy" if findings.classifier.metric == "loss" else findings.classifier.metric
    compared = findings.comparison()
    values = {one.name: compared[one.name].value(metric) for one in findings.baselines}
    baseline = max(findings.baselines, key=lambda one: np.nan_to_num(values[one.name], nan=-1.0))
    name = _capitalized(f"{best.name}," if "," in best.name else best.name)
    if ours.count < FEW:
        right = compared[baseline.name].right
        nodes = f"{ours.right} of {ours.count} held-out {'node' if ours.count == 1 else 'nodes'}"
        return (
            f"**Too few nodes are held out for a verdict.** {name} is right on {nodes}, {baseline.name} "
            f"on {right}. Label more nodes."
        )
    labels = findings.graph.labels.cpu().numpy()[test]
    models = [(findings.predicted, findings.probabilities), (baseline.predicted, baseline.probabilities)]
    ours_, theirs = ((predicted[test], probabilities[test]) for predicted, probabilities in models)
    gain, low, high = (100 * value for value in metric_difference(metric, labels, ours_, theirs))
    interval = f"(95% interval {low:+.1f} to {high:+.1f})"
    opening = f"{name} is right on {100 * ours.accuracy:.1f}% of the held-out nodes"
    reached = f"{100 * values[baseline.name]:.1f}%"
    if metric != "accuracy":
        article = "an" if metric[0] in "aeiou" else "a"
        opening = f"{name} reaches {article} {metric.replace('-', ' ')} of {_stated(findings, metric)}"
        reached = f"{values[baseline.name]:.3f}"
    if same := [one.name for one in findings.baselines if _predicts_the_same(findings, one, metric)]:
        return f"**{_capitalized(same[0])} does as well.** Its predictions are the same. {opening}."
    if low > 0:
        return (
            f"**It beats the baselines.** {opening}, {gain:.1f} points more than the best of them, "
            f"{baseline.name} {interval}."
        )
    if high < 0:
        return (
            f"**A baseline does better.** {opening}, {-gain:.1f} points less than {baseline.name} "
            f"{interval}. Use that, or label more nodes."
        )
    if gain < -100 * LARGE_LOSS:
        return (
            f"**A baseline may do better.** {opening}, {-gain:.1f} points less than {baseline.name}, but too "
            f"few nodes are held out to be sure {interval}."
        )
    return (
        f"**No significant difference from a baseline.** {opening}; {baseline.name} reaches {reached}. "
        f"The difference is {gain:+.1f} points {interval}."
    )


def _unevaluated(findings: Findings) -> str:
    if not findings.chosen:
        return "There are no held-out nodes: the accuracy of these predictions is not known."
    return (
        f"There are no held-out nodes. Of the validation nodes "
        f"{100 * findings.classifier.best_.validation_accuracy:.1f}% are right, but they selected the model: "
        "expect less."
    )


def _stated(findings: Findings, metric: str) -> str:
    """Return the value of a metric with its interval, cross-fitted where that was done."""
    scores: Scores = findings.classifier.cross_fitted_ or findings.test_scores
    low, high = scores.interval_of(metric)
    where = "on the held-out nodes"
    if findings.classifier.cross_fitted_ is not None:
        where = f"cross-fitted over {scores.count:,} labeled nodes"
    return f"{scores.value(metric):.3f} {where} (95% interval {low:.3f} to {high:.3f})"


def _predicts_the_same(findings: Findings, baseline: Baseline, metric: str) -> bool:
    same = np.array_equal(baseline.predicted[findings.test], findings.predicted[findings.test])
    ranks = metric in RANKING_METRICS
    return same and (not ranks or np.array_equal(baseline.probabilities, findings.probabilities))


def _target(findings: Findings) -> Iterator[str]:
    """Yield how the masks changed the accuracy, and for which nodes no figure holds."""
    ours, target = findings.classifier.held_out_, findings.classifier.target_
    if ours is None or target is None or ours.count < FEW:
        return
    unmasked = findings.classifier.unmasked_
    if unmasked is not None and abs(unmasked.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
        yield (
            f"Held-out nodes were masked like the {target.source}, "
            f"{float(target.missing.float().mean()):.0%} of whose features are missing; with all "
            f"features they have, {100 * unmasked.accuracy:.1f}% are right."
        )
    weighted = findings.standardized
    if weighted is None:
        return
    if not isnan(weighted.accuracy) and abs(weighted.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
        yield (
            f"Weighted by the distance of the {target.source} to labels and features, "
            f"{100 * weighted.accuracy:.1f}% are right (95% interval {100 * weighted.low:.1f} to "
            f"{100 * weighted.high:.1f})."
        )
    if weighted.unmatched >= MIN_UNMATCHED:
        yield (
            f"The figures are optimistic for {weighted.unmatched:.0%} of the {target.source}: too few "
            "held-out nodes are as far from labels and features."
        )


def _time(findings: Findings) -> Iterator[str]:
    drawn = findings.random_split_scores
    if drawn is not None and drawn.accuracy > findings.test_scores.interval[1]:
        yield f"A random split would be optimistic: on that, {100 * drawn.accuracy:.1f}% are right."


def _rare(findings: Findings) -> Iterator[str]:
    scores, names = findings.test_scores, findings.graph.class_names
    if scores.count < FEW:
        return
    counts, predictions = scores.confusion.sum(1), scores.confusion.sum(0)
    never = [repr(names[number]) for number in np.flatnonzero((counts > 0) & (predictions == 0))]
    if never:
        yield (
            f"It never predicts {', '.join(never[:5])}; selecting by macro F1 (`--metric macro-f1`) "
            "finds more of such classes."
        )
    if len(counts) == 2 and not isnan(scores.auc):
        rarer = int(counts[1] <= counts[0])
        yield (
            f"It ranks nodes of class {names[rarer]!r} ({counts[rarer] / counts.sum():.0%} of them) with an "
            f"AUC of {_stated(findings, 'auc')} and an average precision of "
            f"{_stated(findings, 'average-precision')}; it predicts that class from a probability of "
            f"{findings.classifier.threshold(rarer):.2f}."
        )


def _capitalized(text: str) -> str:
    """Capitalize the first letter only; ``str.capitalize`` makes Gcn of GCN."""
    return text[:1].upper() + text[1:]
