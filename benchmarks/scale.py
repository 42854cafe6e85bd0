"""Several processes against one: ranks that share a graph, and a sweep on Ray against a pool of processes.

Ranks are started by ``torchrun``, one and two in turns, each with one thread; a step is GCN's loss, gradients
and Adam. The sweep is two minutes of one-core trainings on two workers, in turns too.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, duration

NODES, DEGREE, COLUMNS, STEPS, ROUNDS = 1_000_000, 5, 32, 3, 3


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
        work=f"a step of GCN, {NODES:,} nodes, {2 * DEGREE * NODES:,} entries, depth 4, hidden 32, two ranks",
        ours=duration(two),
        peer=f"{duration(one)} (one rank, one thread)",
        result=one / two,
        unit="x",
        goal=1.5,
    )


def _step_of(ranks: int) -> float:
    """Return the seconds of the fastest step by so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    done = subprocess.run([*command, "-m", "benchmarks.scale"], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def step() -> None:
    """Time training steps as one of the ranks; the first prints the fastest."""
    import torch
    import torch.distributed as dist

    from pairnorm.nn import GCN, propagation
    from pairnorm.nn.distributed import Shards

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(0, NODES, (2, DEGREE * NODES), generator=generator)
    shards = Shards(NODES)
    adjacency = shards.adjacency(propagation(torch.cat([ends, ends.flip(0)], 1), num_nodes=NODES))
    x, labels = torch.rand(NODES, COLUMNS, generator=generator), torch.arange(NODES) % 4
    x, labels = shards.own(x), shards.own(labels)
    model = shards.join(GCN(COLUMNS, 4, depth=4, norm="PN-SI", dropout=0.3))
    adam, taken = torch.optim.Adam(model.parameters()), []
    for _ in range(STEPS):
        dist.barrier()
        began = time.perf_counter()
        adam.zero_grad()
        shards.cross_entropy(model(x, adjacency), labels).backward()
        shards.sum_gradients(model)
        adam.step()
        dist.barrier()
        taken.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(min(taken))
    dist.destroy_process_group()


def _ray() -> list[Row]:
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        return []
    from pairnorm.train import Spec, Store, run

    pairs = [
        (Spec("cora", "GCN", depth, norm="PN-SI", epochs=200), seed)
        for depth in (4, 8, 12, 16)
        for seed in range(40)
    ]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    times: dict[str, list[float]] = {"processes": [], "ray": []}
    try:
        for _ in range(2):
            for name, how in (("processes", {"workers": 2}), ("ray", {"on": "ray"})):
                with tempfile.TemporaryDirectory() as folder:
                    began = time.perf_counter()
                    run(pairs, Store(Path(folder) / "store.sqlite"), device="cpu", **how)
                    times[name].append(time.perf_counter() - began)
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
