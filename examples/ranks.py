"""Train a deep GCN on one graph in several processes, and resume after one of them dies.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 2 --max-restarts 3 \
    examples/ranks.py [EPOCHS [CHECKPOINT]]
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from pairnorm.data import csbm
from pairnorm.nn import GCN, normalized_adjacency
from pairnorm.train.distributed import Shards


def main(device: torch.device, epochs: int = 100, checkpoint: Path | None = None) -> None:
    """Train, and let all that knows the group go."""
    graph = csbm(2000, classes=4, features=100, seed=0)
    shards = Shards(graph.num_nodes)
    x = shards.local_rows(graph.features).to(device)
    labels, train, test = (
        shards.local_rows(part).to(device) for part in (graph.labels, graph.train, graph.test)
    )
    adjacency = shards.adjacency(normalized_adjacency(graph.adjacency).to(device))

    torch.manual_seed(0)
    model = GCN(graph.num_features, graph.num_classes, num_layers=8, norm="PN-SI", dropout=0.3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begun = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun = saved["epoch"]
    shards.join(model)

    for epoch in range(begun, epochs):
        torch.manual_seed(epoch)  # decides the dropout, on all ranks alike
        optimizer.zero_grad()
        loss = shards.cross_entropy(model(x, adjacency), labels, train)
        loss.backward()
        shards.sum_gradients(model)
        optimizer.step()
        if checkpoint is not None and dist.get_rank() == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(saved, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)

    with torch.no_grad():
        right = model.eval()(x, adjacency).argmax(-1) == labels
    count = torch.stack([(right & test).sum(), test.sum()])
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {epochs - begun} epochs: loss {loss.item():.6f},", end=" ")
        print(f"{100 * count[0].item() / count[1].item():.1f}% of the test nodes right")


# A GPU for each process of this machine, where there are as many; NCCL knows no other way.
number = int(os.environ["LOCAL_RANK"])
on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
main(device, *map(int, sys.argv[1:2]), *map(Path, sys.argv[2:3]))
# With the last that knew the group its threads end here; one that outlives Python aborts the process.
dist.destroy_process_group()
