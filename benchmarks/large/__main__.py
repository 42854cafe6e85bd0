"""``python -m benchmarks.large cpu|cuda|fit|pack``: time and memory on generated graphs of many nodes.

Every figure is printed, and with ``--out`` written to a file of that folder, as soon as it is known.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.large import commands, gnn, propagation
from benchmarks.large.generate import FORMATS, Ring
from pairnorm.train.result import Origin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    added = parser.add_subparsers(dest="command", required=True)
    for device, (sizes, degree, width) in propagation.DEFAULTS.items():
        command = added.add_parser(device, help=f"propagation of SGC-PN of {width} columns on this device")
        command.set_defaults(measure=measure_propagation)
        command.add_argument("nodes", nargs="*", type=int, default=list(sizes), help="default: %(default)s")
        command.add_argument("--degree", type=int, default=degree, help="entries a node has, on average")
        command.add_argument("--width", type=int, default=width, help="columns of the state")
        command.add_argument("--training-nodes", type=int, default=gnn.NODES, help="0 for no GCN and GAT")
    fitted = added.add_parser("fit", help="`pairnorm fit` with report and page, in memory")
    fitted.add_argument("graphs", nargs="*", default=["1000000"], help="nodes to generate, or data sets")
    fitted.add_argument("--columns", type=int, default=64, help="of a generated graph, default: %(default)s")
    fitted.add_argument("--degree", type=int, default=10, help="of a generated graph, default: %(default)s")
    fitted.add_argument("--classes", type=int, default=5, help="of a generated graph, default: %(default)s")
    fitted.add_argument("--device", default="auto", help="default: %(default)s")
    packed = added.add_parser("pack", help="`pairnorm pack`, then SGC-PN of depth 16, killed and resumed")
    packed.add_argument("nodes", nargs="?", type=int, default=10_000_000, help="default: %(default)s")
    for command, measure in ((fitted, fit), (packed, pack)):
        command.set_defaults(measure=measure)
        command.add_argument("--folder", type=Path, required=True, help="for tables, graph and results")
        command.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="default: %(default)s")
    for command in added.choices.values():
        command.add_argument("--out", type=Path, help="write every figure to a file in this folder")
    options = parser.parse_args()
    for name, line, figures in options.measure(options):
        print(line, flush=True)
        if options.out and figures:
            on_cuda = "cuda" in (options.command, getattr(options, "device", None))
            device = "cuda" if on_cuda else "cpu"
            origin = Origin.here(seconds=figures.get("seconds", 0), shared_by=1, device=device)
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(figures | {"origin": asdict(origin)}, indent=1)
            (options.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


Figures = Iterator[tuple[str, str, dict[str, Any]]]
"""The name of a file, what is printed, and what is written."""


def measure_propagation(options: argparse.Namespace) -> Figures:
    """Walk over every size, then on CUDA train a GCN and a GAT."""
    device, result = options.command, []
    for nodes in options.nodes:
        result.append(propagation.measure(device, nodes, options.degree, options.width))
        yield f"walk-{device}-{nodes}", propagation.describe(result[-1]), asdict(result[-1])
    for one, other in pairwise(result):
        yield "", propagation.exponents(one, other), {}
    if device == "cuda" and options.training_nodes:
        adjacency = gnn.adjacency(options.training_nodes, device)
        for model in gnn.MODELS:
            trained = gnn.measure(model, adjacency, device)
            yield f"{model}-{device}-{options.training_nodes}", gnn.describe(trained), asdict(trained)


def fit(options: argparse.Namespace) -> Figures:
    """Fit data sets, and generated graphs in which half of the vectors are missing."""
    device = f"--device={options.device}"
    for graph in options.graphs:
        if graph.isdecimal():
            nodes, shape = int(graph), {"columns": options.columns, "classes": options.classes}
            ring = Ring(nodes, nodes * options.degree // 2, **shape)
            run = commands.fit(ring, options.folder, options.format, device)
        else:
            run = commands.fit_dataset(graph, options.folder, device)
        shutil.rmtree(options.folder / "run")
        yield f"fit-{graph}-{run.columns}-{options.device}", commands.describe(run), asdict(run)


def pack(options: argparse.Namespace) -> Figures:
    """Pack tables; propagate to the end; then again, killed in the middle, and to the end."""
    packed = commands.pack(options.nodes, options.folder, options.format)
    yield f"pack-{options.nodes}", commands.describe(packed), asdict(packed)
    for folder in ("fitted", ".fitted.work"):
        shutil.rmtree(options.folder / folder, ignore_errors=True)
    whole = commands.fit_packed(options.nodes, options.folder)
    yield f"packed-fit-{options.nodes}", commands.describe(whole), asdict(whole)
    predictions = (options.folder / "fitted" / "predictions.csv").read_bytes()
    shutil.rmtree(options.folder / "fitted")
    killed = commands.fit_packed(options.nodes, options.folder, whole.seconds / 2)
    yield f"killed-fit-{options.nodes}", commands.describe(killed), asdict(killed)
    again = commands.fit_packed(options.nodes, options.folder)
    yield f"resumed-fit-{options.nodes}", commands.describe(again), asdict(again)
    same = predictions == (options.folder / "fitted" / "predictions.csv").read_bytes()
    yield "", f"The predictions are {'' if same else 'not '}those of the run that was not killed.", {}


if __name__ == "__main__":
    main()
