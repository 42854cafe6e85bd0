"""``python -m benchmarks [part ...]``: measure, print the table, record it."""

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.report import FOLDER, Row, machine, text_table, write, write_readme

# Memory first: the peak of a process never falls, so nothing large may have come before.
PARTS = {
    "memory": ("benchmarks.sgc", "measure_memory"),
    "layer": ("benchmarks.layer", "measure"),
    "training": ("benchmarks.training", "measure"),
    "sgc": ("benchmarks.sgc", "measure"),
    "cuda": ("benchmarks.cuda", "measure"),
    "scale": ("benchmarks.scale", "measure"),
    "methods": ("benchmarks.methods", "measure"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--out", type=Path, help="write the rows as JSON to this file too")
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json and the README's table")
    parser.add_argument("--readme", action="store_true", help="only write the README's table again")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    if options.readme:
        write_readme()
        return

    rows: list[Row] = []
    for part, (module, function) in PARTS.items():
        if part in options.parts or not options.parts:
            start = time.perf_counter()
            measure: Callable[[], list[Row]] = getattr(import_module(module), function)
            result = measure()
            if result:
                print(f"\n{part}, in {time.perf_counter() - start:.0f} s\n{text_table(result)}", flush=True)
            rows += result

    where = machine("cuda" if torch.cuda.is_available() else "cpu")
    print(f"\n{where}")
    if options.out:
        write(options.out, rows, where)
    if options.record:
        write(FOLDER / "results" / f"{options.record}.json", rows, where)
        write_readme()


if __name__ == "__main__":
    main()
