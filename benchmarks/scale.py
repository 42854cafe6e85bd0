"""Several processes against one: ranks that share a graph, and a sweep on Ray against a pool of processes.

Ranks are started by ``torchrun``, one and two in turns, each with one thread; a step is GCN's loss, gradients
and Adam. The sweep is two minutes of one-core trainings on two workers, in turns too.

With enough machines, time a step of any size, to compare with the traffic and reads that docs/scale.md
states (there, ogbn-papers100M): ``torchrun --nproc-per-node 8 -m benchmarks.scale --nodes 111059956
--degree 29 --width 128 --depth 2``. It takes a GPU for each rank where there are as many.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, duration

NODES, DEGREE, WIDTH, DEPTH, STEPS, ROUNDS = 1_000_000, 10, 32, 4, 3, 3
CLASSES = 4


def measure() -> list[Row]:
    """Compare one rank with two, and the pool of processes with Ray."""
    return [_ranks(), *_ray()]


def _ranks() -> Row:
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for ranks, taken in times.items():
            taken.append(_step_of(ranks))
    one, two = (min(taken) for taken in times.values())
    return Row(
        part="scale",
        work=f"a step of GCN, {NODES:,} nodes, {DEGREE * NODES:,} entries, depth {DEPTH}, hidden {WIDTH}, "
        "two ranks",
        ours=duration(two),
        peer=f"{duration(one)} (one rank, one thread)",
        result=one / two,
        unit="x",
        goal=1.5,
    )


def _step_of(ranks: int) -> float:
    """Return the seconds of the fastest step by a number of ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    done = subprocess.run([*command, "-m", "benchmarks.scale"], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[0])


def step() -> None:
    """Time training steps as one of the ranks; the first prints the fastest, and the bytes of the model."""
    import torch
    import torch.distributed as dist

    from pairnorm.nn import GCN, SparseMatrix
    from pairnorm.nn.ops.sparse_product import Pattern, index_dtype
    from pairnorm.train.distributed import Shards

    parser = argparse.ArgumentParser(prog="torchrun -m benchmarks.scale")
    for name, default in (("nodes", NODES), ("degree", DEGREE), ("width", WIDTH), ("depth", DEPTH)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    nodes, width, depth, entries = options.nodes, options.width, options.depth, options.nodes * options.degree

    torch.set_num_threads(1)
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    shards, size = Shards(nodes), dist.get_world_size()
    torch.manual_seed(0)  # all ranks draw the same matrix
    with device:
        crow = torch.arange(0, entries + 1, options.degree).to(index_dtype(entries))
        column = torch.randint(nodes, (entries,), dtype=torch.int32)
        matrix = SparseMatrix(
            Pattern(crow, column, (nodes, nodes)), torch.full((entries,), 1 / options.degree)
        )
        x = torch.rand(shards.rows.stop - shards.rows.start, width)
        labels = torch.arange(shards.rows.start, shards.rows.stop) % CLASSES
    adjacency = shards.adjacency(matrix)
    model = shards.join(
        GCN(width, CLASSES, depth, hidden_channels=width, norm="PN-SI", dropout=0.3).to(device)
    )
    adam, taken = torch.optim.Adam(model.parameters()), []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        adam.zero_grad()
        shards.cross_entropy(model(x, adjacency), labels).backward()
        shards.sum_gradients(model)
        adam.step()
        dist.barrier()
        taken.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        columns = width * (depth - 1) + CLASSES  # of all layers
        sent = 2 * 2 * (size - 1) / size**2 * 4 * nodes * columns
        read = 2 * entries * (8 * depth + 4 * columns / size)
        held = 2 * (8 * entries + index_dtype(entries).itemsize * nodes) + 6 * 4 * nodes * columns / size
        print(
            f"{min(taken):.4f} s a step, the fastest of {len(taken)}, by {size} ranks on {device.type}, "
            f"{nodes:,} nodes, {entries:,} entries, depth {depth}, width {width}.\n"
            f"The model, a rank: {sent / 1e9:.3g} GB sent, {read / 1e9:.3g} GB read by products, "
            f"{held / 1e9:.3g} GB held."
        )
        if on_gpu:
            print(f"Held at most: {torch.cuda.max_memory_allocated(device) / 1e9:.3g} GB.")
    dist.destroy_process_group()


def _ray(seeds: int = 40) -> list[Row]:
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        return []
    import pairnorm
    from pairnorm.train import Spec, Store, run

    pairs = [
        (Spec("cora", "GCN", depth, norm="PN-SI", epochs=200), seed)
        for depth in (4, 8, 12, 16)
        for seed in range(seeds)
    ]
    # Workers begin elsewhere, where a relative path would lead to another version, or to none.
    os.environ["PYTHONPATH"] = str(Path(pairnorm.__file__).resolve().parents[1])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    times: dict[str, list[float]] = {"processes": [], "ray": []}
    try:
        for _ in range(2):
            for name, how in (("processes", {"workers": 2}), ("ray", {"on": "ray"})):
                with tempfile.TemporaryDirectory() as folder:
                    start = time.perf_counter()
                    run(pairs, Store(Path(folder) / "store.sqlite"), device="cpu", **how)
                    times[name].append(time.perf_counter() - start)
    finally:
        ray.shutdown()
        cluster.shutdown()
    home, away = (min(taken) for taken in times.values())
    return [
        Row(
            part="scale",
            work=f"{len(pairs)} trainings of GCN on Cora: Ray, two nodes of one core, over the process pool",
            ours=duration(away),
            peer=f"{duration(home)} (two processes)",
            result=100 * (away / home - 1),
            unit="%",
            goal=10,
            at_least=False,
        )
    ]


if __name__ == "__main__":
    step()
