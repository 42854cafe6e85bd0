"""``python -m benchmarks.compare BEFORE``: the sources here against those of another commit, in turn.

``git worktree add ../before COMMIT`` makes the other tree. A process for each tree is asked for one workload
after the other, in turn, so that both see the same state of the machine. What both have is compared, in CPU
seconds: other work on the machine then matters little. Freed memory stays in the process, since whether glibc
returns it depends on where an allocation happens to lie.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

SOURCES = Path(__file__).parents[1] / "src"
ROUNDS = 9


def workloads() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name; each is called once before it counts."""
    import torch

    import pairnorm
    from pairnorm import Graph, NodeClassifier, PairNorm, load
    from pairnorm.train import Spec, train

    torch.set_num_threads(1)
    cora = load("cora")
    result: dict[str, Callable[[], object]] = {}
    for shape in ((2708, 32), (2708, 50, 32), (169343, 128)):
        x = torch.randn(shape, requires_grad=True)
        for mode in ("PN", "PN-SI"):

            def layer(x: torch.Tensor = x, mode: Any = mode) -> None:
                PairNorm(mode=mode)(x).sum().backward()

            result[f"{mode} {list(shape)}, forward and backward"] = layer
    for model, depth, seeds in (("GCN", 2, 1), ("GCN", 10, 5), ("GAT", 2, 1), ("GAT", 10, 5), ("SGC", 10, 5)):
        spec = Spec("cora", model, depth, norm="PN" if model == "SGC" else "PN-SI", epochs=20)

        def training(spec: Spec = spec, seeds: int = seeds) -> None:
            train(cora, spec, range(seeds), "cpu")

        result[f"{model}, depth {depth}, {seeds} trials, 20 epochs"] = training
    small = load("csbm", nodes=2000, seed=1)
    result["fit on a generated graph"] = lambda: NodeClassifier(depth=[2, 8]).fit(small)
    folder = Path(tempfile.mkdtemp())
    rows = "".join(f"n{i},{i % 7},{i % 11 / 3},{'ab'[i % 2]},{'uv'[i % 2]}\n" for i in range(50_000))
    (folder / "nodes.csv").write_text("id,a,b,c,y\n" + rows)
    ends = "".join(f"n{i % 50_000},n{(7 * i + 1) % 50_000}\n" for i in range(200_000))
    (folder / "edges.csv").write_text("source,target\n" + ends)
    result["50,000 nodes and 200,000 edges read from CSV"] = lambda: Graph.from_files(
        folder / "nodes.csv", folder / "edges.csv", label="y"
    )
    assert pairnorm.__version__
    return result


def serve() -> None:
    """Answer with the time of each workload that is named on standard input."""
    import warnings

    warnings.simplefilter("ignore")
    known = workloads()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        work = known[line.strip()]
        start = time.process_time()
        work()
        print(json.dumps(time.process_time() - start), flush=True)


class Tree:
    """A process that runs on one tree of sources."""

    def __init__(self, sources: Path) -> None:
        root = str(Path(__file__).parents[1])
        memory = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
        environment = {**os.environ, **memory, "PYTHONPATH": f"{sources}{os.pathsep}{root}"}
        command = [sys.executable, "-m", "benchmarks.compare", "--serve"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=sources
        )
        self.works: list[str] = self._read()

    def seconds(self, work: str) -> float:
        """Return the CPU time of a workload."""
        assert self.process.stdin
        print(work, file=self.process.stdin, flush=True)
        return float(self._read())

    def _read(self):  # type: ignore[no-untyped-def]
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("before", nargs="?", type=Path, help="folder of the other tree")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of each workload")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    trees = [Tree((options.before / "src").resolve()), Tree(SOURCES.resolve())]
    print(f"{'workload':<48} {'before':>10} {'now':>10}   now / before: best, median of {options.rounds}")
    for work in trees[1].works:
        if options.only not in work or work not in trees[0].works:
            continue
        times: list[list[float]] = [[], []]
        for turn in range(options.rounds + 1):
            for tree, taken in zip(trees, times, strict=True):
                taken.append(tree.seconds(work))
                if not turn:  # what happens once, such as compiling kernels
                    taken.clear()
        ratio = median(now / before for before, now in zip(*times, strict=True))
        old, new = (1e3 * min(taken) for taken in times)
        print(f"{work:<48} {old:>7.1f} ms {new:>7.1f} ms   {new / old:.2f}, {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
