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
    """Train on this rank's nodes. When it returns, nothing refers to the process group any more."""
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
    first = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    shards.join(model)

    for epoch in range(first, epochs):
        torch.manual_seed(epoch)  # so that all ranks draw the same dropout masks
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
        print(f"{dist.get_world_size()} ranks, {epochs - first} epochs: loss {loss.item():.6f},", end=" ")
        print(f"{100 * count[0].item() / count[1].item():.1f}% of the test nodes right")


# Use a GPU per process if this machine has enough: with NCCL, processes cannot share one.
local_rank = int(os.environ["LOCAL_RANK"])
on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
main(device, *map(int, sys.argv[1:2]), *map(Path, sys.argv[2:3]))
# The threads of the group end here; one that outlives Python would abort the process.
dist.destroy_process_group()
