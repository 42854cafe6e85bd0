"""What a layer costs with each method, against one with PairNorm: GCN on Cora, trials side by side.

An epoch, validation included, of a deep model less that of a shallow one: free of the first layer, of the
optimizer's part of it and of the loss. On a CPU it is the process's own time in one thread, which does
not count what others on the machine do.
"""

import time

import torch

from benchmarks.report import Row
from benchmarks.timing import interleave
from pairnorm.data import load
from pairnorm.train import METHODS, Spec
from pairnorm.train.engine import find_device
from pairnorm.train.trainers import GNNTrainer

SHALLOW, DEEP, TRIALS, ROUNDS = 4, 12, 4, 9
BASE = "PN"
# Where the formula itself asks for more: n² products; ten groups, each normalized; a second linear map; a map
# of all layers.
FORCED = ("ContraNorm", "DiffGroupNorm", "Residual", "JK-concat")


def measure() -> list[Row]:
    """Time every method of a GCN, turn by turn."""
    device, graph = find_device(), load("cora")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names = [name for name, method in METHODS.items() if "GCN" in method.models]
    epochs = 1 if device.type == "cpu" else 50

    def task(name: str, depth: int) -> object:
        spec = Spec("cora", "GCN", depth, method=name, **METHODS[name].settings)
        loop = GNNTrainer(graph, [(spec, seed) for seed in range(TRIALS)], device).loop

        def epoch() -> float:
            loop.train(epochs)
            return float(loop.best_accuracy.sum())  # waits for the device

        return epoch

    tasks = {(name, depth): task(name, depth) for name in names for depth in (SHALLOW, DEEP)}
    quick = {key: one for key, one in tasks.items() if not METHODS[key[0]].quadratic}
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times = interleave(quick, ROUNDS, clock=clock)
    times |= interleave({key: one for key, one in tasks.items() if key not in quick}, 1, clock=clock)
    torch.set_num_threads(threads)

    def seconds(name: str) -> float:
        per_epoch = times[name, DEEP].best - times[name, SHALLOW].best
        return per_epoch / (DEEP - SHALLOW) / TRIALS / epochs

    base = seconds(BASE)
    return [
        Row(
            part="methods",
            work=f"GCN, Cora, a layer with {name}, against {BASE}",
            ours=f"{1e6 * seconds(name):.0f} µs per layer, epoch and trial",
            peer=f"{1e6 * base:.0f} µs",
            result=seconds(name) / base,
            unit="x",
            goal=None if name in FORCED else 2,
            at_least=False,
        )
        for name in names
        if name != BASE
    ]
