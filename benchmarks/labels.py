"""Score against seconds: ``fit`` at several time limits, its parts, and peers, on the same nodes.

``python -m benchmarks.labels --out labels.jsonl`` measures what is not in the file yet, ``--jobs`` at a time,
each in a process of its own on ``--cores`` cores. Rows are appended as they finish, so that a killed run
resumes. ``python -m benchmarks.labels --out labels.jsonl --draw labels.png`` draws the file, and
``--table labels.md`` writes it as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.report import machine

GRAPHS = ("cora", "citeseer", "pubmed", "coauthor-cs")
TABLES = ("amherst41", "german", "reed98", "minesweeper", "mim_air", "mim_electric", "mim_synthetic")
CASES = (*product(GRAPHS, (50, 90, 100)), *product(TABLES, (50,)))
# Seconds by name of the method; 0 is the exhaustive search.
TIME_LIMITS = {"fit, 10 s": 10, "fit": None, "fit, exhaustive": 0}
PARTS = ("SGC", "boosted trees", "label propagation", "logistic regression", "residual GCN")
PEERS = ("Correct & Smooth", "GCN")
# Offset of the name of a method from its marker in points, so that names do not overlap.
ABOVE, BELOW = ((0, 5), "center", "bottom"), ((0, -5), "center", "top")
LEFT, RIGHT = ((-5, 0), "right", "center"), ((5, 0), "left", "center")
POSITIONS = dict.fromkeys(TIME_LIMITS, ABOVE) | {"SGC": BELOW, "residual GCN": BELOW}
POSITIONS |= {"boosted trees": LEFT, "Correct & Smooth": LEFT}
METHODS = ("fit, 10 s", "fit", *PARTS, *PEERS, "fit, exhaustive")


def measure(method: str, dataset: str, percent: float, seed: int, device: str) -> dict[str, Any]:
    """Fit a method, and return its scores on the test nodes and the seconds that it took."""
    from pairnorm.classify import Scores
    from pairnorm.compare.missing import SSNC, TABLES_80

    protocol = TABLES_80 if dataset in TABLES else SSNC
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few labels are on purpose
        graph = protocol.mask(protocol.graph(dataset, seed=seed), percent, seed)
        start, start_cpu = time.perf_counter(), time.process_time()
        probabilities, predicted = _predict(method, graph, seed, device)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    test = graph.test.numpy()
    scores = Scores.of(graph.labels.numpy()[test], predicted[test], graph.num_classes, probabilities[test])
    return {
        "method": method,
        "dataset": dataset,
        "missing_percent": percent,
        "seed": seed,
        "device": device,
        "accuracy": round(scores.accuracy, 5),
        "auc": round(scores.auc, 5),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "machine": machine(device),
    }


def _predict(method: str, graph: Any, seed: int, device: str) -> tuple[Any, Any]:
    """Return the probabilities and the predicted classes of all nodes."""
    import torch

    from pairnorm.classify import NodeClassifier
    from pairnorm.compare.baselines import tuned_correct_and_smooth

    settings: dict[str, Any] = {"device": device, "random_state": seed, "refit": False}
    if method == "GCN":
        probabilities = _gcn_probabilities(graph, seed, device)
        return probabilities, probabilities.argmax(1)
    if method in TIME_LIMITS:
        classifier = NodeClassifier(**settings, time_limit=TIME_LIMITS[method]).fit(graph)
    elif method in PARTS:
        classifier = NodeClassifier(method, **settings).fit(graph)
    else:
        classifier = NodeClassifier("SGC", norm="none", impute="zero", simple=True, **settings).fit(graph)
        smoothed = torch.from_numpy(classifier.evaluation_probabilities_)
        probabilities = tuned_correct_and_smooth(graph.with_split(classifier.split_), smoothed).numpy()
        return probabilities, probabilities.argmax(1)
    probabilities = classifier.evaluation_probabilities_
    return probabilities, classifier.decide(probabilities)


def _gcn_probabilities(graph: Any, seed: int, device: str) -> Any:
    """Train a GCN of three layers, as published with feature propagation, on scaled and imputed features."""
    import torch

    from pairnorm.classify.holdout import complete_split
    from pairnorm.classify.scaling import Scaling
    from pairnorm.compare.missing import PUBLISHED_GCN
    from pairnorm.impute import impute
    from pairnorm.train import Spec, fit

    graph = graph.with_split(complete_split(graph, seed))  # a table has no validation nodes of its own
    features = Scaling.of(graph, "auto")(graph)
    features = features.to_dense() if features.layout != torch.strided else features
    features = impute(features, graph.missing, graph.adjacency, method="fp")
    if 4 * features.count_nonzero() < features.numel():
        features = features.to_sparse_csr()
    complete = graph.replace(features=features, missing=torch.zeros(graph.num_nodes, dtype=torch.bool))
    model = fit(complete, Spec(graph.name, **PUBLISHED_GCN), [seed], device)
    with torch.no_grad():
        return model(features.to(device), graph.adjacency.to(device))[:, 0].softmax(1).cpu().numpy()


def measure_all(jobs: Iterable[tuple[str, str, float, int]], options: argparse.Namespace) -> None:
    """Measure jobs in processes that are pinned to cores of their own; append a line per job."""
    waiting: SimpleQueue[tuple[str, str, float, int]] = SimpleQueue()
    for job in jobs:
        waiting.put(job)
    available, cores, lock = sorted(os.sched_getaffinity(0)), options.cores, threading.Lock()
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = os.environ | dict.fromkeys(threads, str(cores))

    def work(number: int) -> None:
        own = [available[core % len(available)] for core in range(number * cores, (number + 1) * cores)]
        pin = ["taskset", "-c", ",".join(map(str, own))]
        while True:
            try:
                job = waiting.get_nowait()
            except Empty:
                return
            command = [*pin, sys.executable, "-m", "benchmarks.labels"]
            command += ["--one", json.dumps([*job, options.device])]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, env=environment, timeout=options.timeout
                )
            except subprocess.TimeoutExpired:
                print(*job, f"not finished after {options.timeout} s", flush=True)
                continue
            if done.returncode:
                print(*job, done.stderr.strip().splitlines()[-1:], flush=True)
                continue
            line = done.stdout.splitlines()[-1]
            with lock, options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            row = json.loads(line)
            print(*job, row["accuracy"], row["auc"], row["seconds"], flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.jobs)))


def read(path: Path) -> list[dict[str, Any]]:
    """Read the measurements of a file, if there is one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def score(row: dict[str, Any]) -> float:
    """Return accuracy; AUC for two classes, of which one is rare."""
    return float(row["auc"] if row["dataset"] in ("minesweeper", "german") else row["accuracy"])


def means(rows: Sequence[dict[str, Any]], method: str, datasets: Sequence[str]) -> tuple[float, float] | None:
    """Return mean score and mean seconds over the cases that all methods have; None if one is absent."""
    own = {
        (row["dataset"], row["missing_percent"], row["seed"]): row for row in rows if row["method"] == method
    }
    cases = [(dataset, percent, 0) for dataset, percent in CASES if dataset in datasets]
    if any(case not in own for case in cases):
        return None
    return (
        sum(score(own[case]) for case in cases) / len(cases),
        sum(own[case]["seconds"] for case in cases) / len(cases),
    )


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw mean score against mean seconds, for the graphs with words and for the tables."""
    from pairnorm.base.plotting import BLUE, DOTS_PER_INCH, GRAY, TWO_COLUMNS, VERMILLION, new_figure, style

    panels = {
        "Cora, Citeseer, Pubmed, Coauthor CS\n(50, 90 and 100% of the vectors missing)": GRAPHS,
        "Seven graphs with columns\n(50% of the vectors missing)": TABLES,
    }
    with style():
        figure = new_figure(TWO_COLUMNS, 2.9)
        for axis, (title, datasets) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            points = {method: means(rows, method, datasets) for method in METHODS}
            fits = sorted(point[::-1] for name, point in points.items() if point and name in TIME_LIMITS)
            axis.plot(*zip(*fits, strict=True), color=BLUE, marker="o", markersize=4)
            for method, point in points.items():
                if point is None:
                    continue
                color = BLUE if method in TIME_LIMITS else VERMILLION if method in PEERS else GRAY
                marker = "os^"[(method in PARTS) + 2 * (method in PEERS)]
                axis.plot(point[1], point[0], marker=marker, color=color)
                offset, ha, va = POSITIONS.get(method, RIGHT)
                options = {"ha": ha, "va": va, "fontsize": 7, "color": color}
                axis.annotate(method, point[::-1], offset, textcoords="offset points", **options)
            axis.set(title=title, xlabel="seconds (mean)", xscale="log", ylabel="score (mean)")
            axis.margins(x=0.22, y=0.12)
        figure.savefig(path, dpi=DOTS_PER_INCH)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the measurements as a Markdown table: score and seconds, case by case."""
    result = {
        (row["method"], row["dataset"], row["missing_percent"]): row for row in rows if row["seed"] == 0
    }
    methods = [method for method in METHODS if any(key[0] == method for key in result)]
    lines = ["| graph | missing | " + " | ".join(methods) + " |", "|---|---:|" + "---:|" * len(methods)]
    for dataset, percent in CASES:
        cells = [result.get((method, dataset, percent)) for method in methods]
        text = " | ".join(f"{score(row):.3f} in {row['seconds']:.0f} s" if row else "" for row in cells)
        lines.append(f"| {dataset} | {percent}% | {text} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is pending, then draw and tabulate what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS, help="measure only these")
    parser.add_argument("--datasets", nargs="*", default=(*GRAPHS, *TABLES), help="measure only on these")
    parser.add_argument("--seeds", type=int, default=1, help="number of masks and splits. Default: 1")
    parser.add_argument("--jobs", type=int, default=1, help="measurements at a time. Default: 1")
    parser.add_argument("--cores", type=int, default=2, help="cores of each measurement. Default: 2")
    parser.add_argument("--device", default="cpu", help="cpu or cuda. Default: cpu")
    parser.add_argument("--timeout", type=float, help="give up a measurement after these seconds")
    parser.add_argument("--out", type=Path, default=Path("labels.jsonl"), help="append the measurements here")
    parser.add_argument("--draw", type=Path, help="draw the measurements, and measure nothing")
    parser.add_argument("--table", type=Path, help="write the measurements as Markdown, and measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    rows = [row for row in read(options.out) if row["device"] == options.device]
    if options.draw:
        draw(rows, options.draw)
    if options.table:
        options.table.write_text(table(rows), encoding="utf-8")
    if options.draw or options.table:
        return
    done = {(row["method"], row["dataset"], row["missing_percent"], row["seed"]) for row in rows}
    jobs = [
        (method, dataset, percent, seed)
        for seed, method, (dataset, percent) in product(range(options.seeds), options.methods, CASES)
        if dataset in options.datasets and (method, dataset, percent, seed) not in done
    ]
    measure_all(jobs, options)


if __name__ == "__main__":
    main()
