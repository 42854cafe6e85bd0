"""Score against seconds: ``fit`` at several time limits, and its baselines, on the same nodes.

Run it as ``python -m benchmarks.labels cora citeseer --missing 1.0 --out labels.json``. The seconds are CPU
time of this process, so that other work on the machine does not count; the score is the accuracy on the test
nodes, whose vectors are missing as often as the option says.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import torch

from pairnorm.classify import NodeClassifier
from pairnorm.classify.holdout import hide
from pairnorm.data import Graph, load, missing_vectors

# Seconds; 0 is the exhaustive search.
TIME_LIMITS = (10, 60, 0)
MODELS = ("SGC", "boosted trees", "logistic regression", "label propagation", "most frequent class")


def measure(graph: Graph, **parameters: object) -> dict[str, object]:
    """Fit a classifier, and return its accuracy on the test nodes and the seconds that it took."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = NodeClassifier(refit=False, **parameters).fit(graph)  # type: ignore[arg-type]
    seconds, scores = time.process_time() - began, classifier.held_out_
    assert scores is not None
    return {
        "graph": graph.name,
        "parameters": {
            name: list(value) if isinstance(value, tuple) else value for name, value in parameters.items()
        },
        "nodes": scores.count,
        "accuracy": scores.accuracy,
        "seconds": round(seconds, 2),
        "candidates": len(classifier.search_),
        "best": classifier.best_.name,
    }


def main() -> None:
    """Measure what the command line names, and print a line per fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", default=["cora"])
    parser.add_argument("--missing", type=float, default=1.0, help="share of missing vectors. Default: 1")
    parser.add_argument("--out", type=Path, help="write the measurements here, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.graphs:
        graph = load(name)
        if options.missing:
            graph = hide(graph, missing_vectors(graph, options.missing, seed=0).mask[:, 0])
        settings: list[dict[str, object]] = [{"model": MODELS, "time_limit": limit} for limit in TIME_LIMITS]
        for parameters in [*settings, *({"model": model} for model in MODELS)]:
            rows.append(measure(graph, **parameters))
            print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
