"""``python -m benchmarks.large cpu|cuda``: time and memory on generated graphs of many nodes.

Every figure is printed, and with ``--out`` written to a file of that folder, as soon as it is known.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.large import gnn, walk
from pairnorm.train.result import Origin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for device, (sizes, degree, width) in walk.DEFAULTS.items():
        command = commands.add_parser(device, help=f"walks of SGC-PN of {width} columns on this device")
        command.set_defaults(measure=walks)
        command.add_argument("nodes", nargs="*", type=int, default=list(sizes), help="default: %(default)s")
        command.add_argument("--degree", type=int, default=degree, help="entries a node has, on average")
        command.add_argument("--width", type=int, default=width, help="columns of the state")
        command.add_argument("--training-nodes", type=int, default=gnn.NODES, help="0 for no GCN and GAT")
    for command in commands.choices.values():
        command.add_argument("--out", type=Path, help="write every figure to a file in this folder")
    options = parser.parse_args()
    for name, line, figures in options.measure(options):
        print(line, flush=True)
        if options.out and figures:
            device = "cuda" if options.command == "cuda" else "cpu"
            origin = Origin.here(seconds=figures.get("seconds", 0), shared_by=1, device=device)
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(figures | {"origin": asdict(origin)}, indent=1)
            (options.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


Figures = Iterator[tuple[str, str, dict[str, Any]]]
"""The name of a file, what is printed, and what is written."""


def walks(options: argparse.Namespace) -> Figures:
    """Walk over every size, then on CUDA train a GCN and a GAT."""
    device, found = options.command, []
    for nodes in options.nodes:
        found.append(walk.measure(device, nodes, options.degree, options.width))
        yield f"walk-{device}-{nodes}", walk.describe(found[-1]), asdict(found[-1])
    for one, other in pairwise(found):
        yield "", walk.exponents(one, other), {}
    if device == "cuda" and options.training_nodes:
        adjacency = gnn.adjacency(options.training_nodes, device)
        for model in gnn.MODELS:
            trained = gnn.measure(model, adjacency, device)
            yield f"{model}-{device}-{options.training_nodes}", gnn.describe(trained), asdict(trained)


if __name__ == "__main__":
    main()
