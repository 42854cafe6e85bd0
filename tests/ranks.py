"""Run as a program: for every input line ``CHECKS SIZE``, ranks of one gloo group run checks.

They are forks of this process, which has imported once what each would import for seconds. Checks joined by
commas share the forks, each of which loads the compiled kernels.
"""

import copy
import gc
import importlib
import json
import os
import socket
import struct
import sys
import tempfile
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pairnorm import PairNorm, PairNormError, add_pair_norm, pair_norm, remove_pair_norm
from pairnorm.classify import NodeClassifier, search_space
from pairnorm.classify.candidates import networks
from pairnorm.data import csbm
from pairnorm.nn import GAT, GCN, GCNII, SGC, SparseMatrix, normalized_adjacency
from pairnorm.nn.norms import BatchNorm
from pairnorm.nn.ops.dropout import draw_keys
from pairnorm.nn.ops.pair_norm import all_sum
from pairnorm.nn.pair_norm import MODES
from pairnorm.train import Spec, loop
from pairnorm.train.distributed import Shards, blocks
from pairnorm.train.trainers import GNNTrainer

NODES = 23
close = torch.testing.assert_close


def rows(size, empty):
    """Return the rows of this rank: more than of the rank before; with ``empty``, none for the first."""
    ends = [NODES * (rank + 1) ** 2 // size**2 for rank in range(size)]
    starts = [0, *ends[:-1]]
    if empty:
        starts[1], ends[0] = 0, 0
    return slice(starts[dist.get_rank()], ends[dist.get_rank()])


def sum_over_ranks(x):
    total = x.detach().clone()
    dist.all_reduce(total)
    return total


def check_pair_norm(size):
    """Check outputs, gradients and second gradients against one process, with one collective each way."""
    group, dtypes = dist.group.WORLD, {torch.float64: 1e-12, torch.float32: 2e-5}
    shapes = ((), None), ((2,), None), ((2,), 3)  # axes between, and graphs of a batch
    for mode, (dtype, tolerance), (middle, graphs), empty in product(
        MODES, dtypes.items(), shapes, (False, True)
    ):
        x = torch.randn(NODES, *middle, 5, dtype=dtype) + 3
        upstream, own = torch.randn_like(x), rows(size, empty)
        batch = None if graphs is None else torch.randint(0, graphs, (NODES,))
        whole = x.clone().requires_grad_()
        y = pair_norm(whole, 2.0, mode, batch=batch, batch_size=graphs)
        (expected,) = torch.autograd.grad((y * upstream).sum(), whole, create_graph=True)
        (twice,) = torch.autograd.grad(expected.pow(3).sum(), whole)

        mine = x[own].clone().requires_grad_()
        layer = PairNorm(2.0, mode, process_group=group)
        with (
            mock.patch.object(dist, "all_gather", wraps=dist.all_gather) as gathers,
            mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as sums,
        ):
            result = layer(mine, None if batch is None else batch[own], graphs)
            assert gathers.call_count + sums.call_count == 1
            loss = (result * upstream[own]).sum()
            loss.backward(retain_graph=True)
            assert gathers.call_count + sums.call_count == 2
        (again,) = torch.autograd.grad(loss, mine, create_graph=True)
        (result_twice,) = torch.autograd.grad(again.pow(3).sum(), mine)
        for one, other in ((result, y), (mine.grad, expected), (result_twice, twice)):
            close(one, other[own], rtol=tolerance, atol=tolerance * float(other.detach().abs().max()))


def check_extremes(size):
    """Check large offsets, squares beyond single precision, half precision, and no rows."""
    group, own = dist.group.WORLD, rows(size, True)
    small = torch.randn(NODES, 4)
    for mode in MODES:
        for x in (small * 1e-3 + 1e3, small * 1e25, (small * 300).half(), (small * 300).bfloat16()):
            expected = pair_norm(x.double(), mode=mode)
            result = pair_norm(x[own], mode=mode, process_group=group)
            assert result.dtype == x.dtype
            largest = max(1.0, float(expected.abs().max()))
            close(result.double(), expected[own], rtol=0, atol=float(torch.finfo(x.dtype).eps) * 8 * largest)
        assert pair_norm(small[:0], mode=mode, process_group=group).shape == (0, 4)
    with pytest.raises(PairNormError) as caught:
        pair_norm(small[own], batch=torch.zeros(NODES, dtype=torch.long)[own], process_group=group)
    assert caught.value.code == "no-batch-size"


class Net(nn.Module):
    """Convolutions over a graph whose rows are divided among ranks; an all-gather sends neighbors."""

    class Convolution(nn.Linear):
        is_graph_convolution = True

        def forward(self, x, adjacency):
            return super().forward(adjacency(x))

    def __init__(self):
        super().__init__()
        self.first, self.second = self.Convolution(4, 8), self.Convolution(8, 3)

    def forward(self, x, adjacency):
        return self.second(self.first(x, adjacency).relu(), adjacency)


def check_patch(size):
    """Check a patched model under DDP with local rows: it has the gradients of one process."""
    group, own = dist.group.WORLD, rows(size, True)
    model = Net().double()
    x = torch.randn(NODES, 4).double()
    labels = torch.randint(0, 3, (NODES,))
    matrix = normalized_adjacency(torch.randint(0, NODES, (2, 60)), num_nodes=NODES).to_dense().double()

    alone = copy.deepcopy(model)
    add_pair_norm(alone)
    loss = nn.functional.cross_entropy(alone(x, lambda h: matrix @ h), labels)
    loss.backward()

    def propagate(h):
        """Own rows of matrix @ h: all rows, gathered as a sum of what each rank has of them."""
        own_rows = torch.zeros(NODES, len(h), dtype=h.dtype)
        own_rows[torch.arange(NODES)[own], torch.arange(len(h))] = 1
        return matrix[own] @ all_sum(own_rows @ h, group)

    handle = add_pair_norm(model, process_group=group)
    assert f"process_group=<{size} ranks>" in repr(handle)
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    share = nn.functional.cross_entropy(wrapped(x[own], propagate), labels[own], reduction="sum") / NODES
    (share * size).backward()
    close(sum_over_ranks(share), loss.detach(), rtol=1e-10, atol=0)
    for mine, other in zip(wrapped.parameters(), alone.parameters(), strict=True):
        close(mine.grad, other.grad, rtol=1e-10, atol=1e-12)
    remove_pair_norm(model)


def bytes_sent():
    """Return the bytes that this process has sent through its sockets, as the kernel counts them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        except OSError:
            continue
        total += struct.unpack_from("Q", info, 120)[0]
    return total


def one_step(model, x, adjacency, keys, loss):
    model.zero_grad()
    result = loss(model(x, adjacency, keys))
    result.backward()
    return result.detach()


def check_shards(size):
    """Check that loss and gradients of a training step equal one process, with the same dropout masks."""
    nodes = 10 * size + 3
    matrix = normalized_adjacency(torch.randint(0, nodes, (2, 4 * nodes)), num_nodes=nodes)
    shards, labels = Shards(nodes), torch.randint(0, 3, (nodes,))
    with pytest.raises(PairNormError, match="this rank's rows"):
        shards.adjacency(matrix) @ torch.rand(nodes, 2)
    with pytest.raises(PairNormError, match="one per node"):
        shards.local_rows(labels[1:])
    for refused in (GCN(9, 3, norm=partial(BatchNorm, 32)), GCN(9, 3, residual=True), GCNII(9, 3)):
        with pytest.raises(PairNormError, match="no other method"):
            shards.join(refused)
    train = torch.arange(nodes) < 8  # so that most ranks have no node to train on
    cases = [
        (model, {"norm": norm, **more}, trials, sparse, dtype)
        for model, more in (
            (GCN, {"num_layers": 4, "hidden_channels": 7, "skip": 2}),
            (GAT, {"num_layers": 3, "hidden_channels": 6, "heads": 2}),
            (GAT, {"num_layers": 3, "hidden_channels": 3, "skip": 1}),
            (SGC, {"num_layers": 3}),
        )
        for norm, trials, sparse in (
            (None, 3, False),
            ("PN", None, True),
            ("PN-SI", 3, True),
            ("PN-SCS", None, False),
        )
        for dtype in (torch.float64, torch.float32)
        if dtype == torch.float64 or sparse  # with PN and PN-SI, which are the usual ones
    ]
    for kind, settings, trials, sparse, dtype in cases:
        model = shards.join(kind(9, 3, dropout=0.5, num_models=trials, **settings).to(dtype))
        alone = copy.deepcopy(model)
        shards.leave(alone)
        x = (torch.rand(nodes, 9) * (torch.rand(nodes, 9) < 0.4)).to(dtype)
        values = SparseMatrix(matrix.pattern, matrix.values.to(dtype))
        keys = draw_keys(1 if kind is SGC else settings["num_layers"], 2, trials or 1)
        features = SparseMatrix.from_torch(x) if sparse else x

        def loss(logits):
            expanded = labels if logits.dim() == 2 else labels.unsqueeze(1).expand(logits.shape[:2])
            total = nn.functional.cross_entropy(
                logits[train].flatten(0, -2), expanded[train].flatten(), reduction="sum"
            )
            return total / int(train.sum())

        expected = one_step(alone, features, values, keys, loss)
        result = one_step(
            model,
            shards.local_rows(features),
            shards.adjacency(values),
            keys,
            lambda logits: shards.cross_entropy(logits, shards.local_rows(labels), shards.local_rows(train)),
        )
        shards.sum_gradients(model)
        tolerance = 1e-10 if dtype == torch.float64 else 1e-5
        close(result, expected, rtol=tolerance, atol=0)
        # Gradients of scores are small differences of large numbers: held against the largest of the model.
        scale = max(float(one.grad.abs().max()) for one in alone.parameters())
        for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
            close(mine.grad, other.grad, rtol=tolerance, atol=tolerance * max(scale, 1e-6))


def check_traffic(size):
    """Check the bytes sent: 2 (P - 1) / P² of each layer's output forward, and as much backward."""
    nodes, hidden, depth, classes = 6000, 64, 4, 16
    shards = Shards(nodes)
    matrix = normalized_adjacency(torch.randint(0, nodes, (2, 4 * nodes)), num_nodes=nodes)
    x, labels = (
        shards.local_rows(torch.rand(nodes, 32)),
        shards.local_rows(torch.randint(0, classes, (nodes,))),
    )
    for kind in (GCN, GAT):
        model = shards.join(kind(32, classes, depth, hidden, norm="PN-SI", dropout=0.5))

        def step(model=model):
            shards.cross_entropy(model(x, shards.adjacency(matrix)), labels).backward()

        step()  # connections are made
        dist.barrier()
        before = bytes_sent()
        step()
        dist.barrier()
        outputs = 4 * nodes * (hidden * (depth - 1) + classes)
        expected = 2 * 2 * (size - 1) / size**2 * outputs
        if kind is GAT:  # the scores of own nodes to all others, and their gradients back
            expected += 2 * (size - 1) / size * 4 * nodes * 2 * depth
        assert (bytes_sent() - before) / expected == pytest.approx(1, abs=0.05)


def check_training(size):
    """Check that training selects the epoch and ends as in one process, also from a checkpoint."""
    graph = csbm(150, classes=3, features=8, seed=1)
    for model in ("GCN", "GAT"):
        spec = Spec("csbm", model, 3, norm="PN-SI", hidden=8, missing_rate=0.5, epochs=12)
        trials = [(spec, 0), (spec, 1)]
        alone = GNNTrainer(graph, trials, torch.device("cpu"))
        alone.fit()
        with tempfile.TemporaryDirectory() as folder:  # as on machines that do not share their files
            checkpoint = Path(folder, "checkpoint.pt")
            together = GNNTrainer(graph, trials, torch.device("cpu"), shards=Shards(graph.num_nodes))
            with mock.patch.object(loop, "EPOCHS_PER_SYNC", 5), pytest.raises(KeyboardInterrupt):
                together.fit(mock.Mock(side_effect=KeyboardInterrupt), checkpoint)
            assert checkpoint.exists() == (dist.get_rank() == 0)
            together = GNNTrainer(graph, trials, torch.device("cpu"), shards=Shards(graph.num_nodes))
            ticks = mock.Mock()
            together.fit(ticks, checkpoint)
            assert [call.args for call in ticks.call_args_list] == [(7,)]
        close(together.loop.best_accuracy, alone.loop.best_accuracy)
        assert together.loop.best_epoch.tolist() == alone.loop.best_epoch.tolist()
        for mine, other in zip(together.evaluate(), alone.evaluate(), strict=True):
            close(mine, other, rtol=2e-3, atol=2e-4)  # twelve steps of Adam in single precision


def check_networks(size):
    """Check that each rank of fit trains a share of the networks and predicts as one process does."""
    graph = csbm(300, classes=3, features=8, seed=1)
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for num_folds, num_seeds in ((1, 1), (1, 3), (5, 1), (5, 11)):
        if num_folds == 5:  # without validation nodes of the user's, there are folds
            graph = graph.replace(train=none, validation=none, test=none)

        def train_networks(seeds=num_seeds, graph=graph):
            classifier = NodeClassifier(["GCN", "GCNII"], depth=2, epochs=3, seeds=seeds, device="cpu")
            with mock.patch.object(networks, "GNNTrainer", wraps=GNNTrainer) as trainers:
                probabilities = classifier.fit(graph).probabilities_
            pairs = [pair for call in trainers.call_args_list for pair in call.args[1]]
            return [(spec.method, seed) for spec, seed in pairs], probabilities

        together, probabilities = train_networks()
        with mock.patch.object(search_space, "shards_of", return_value=None):
            alone, expected = train_networks()
        total = num_folds * -(-num_seeds // num_folds)
        for method in ("none", "GCNII"):
            shares = [None] * size
            dist.all_gather_object(shares, [pair for pair in together if pair[0] == method])
            trained = [pair for share in shares for pair in share]
            if total >= size or method == "GCNII":  # otherwise ranks share the nodes
                expected_pairs = sorted(pair for pair in alone if pair[0] == method)
                specs = len(expected_pairs) // total
                assert sorted(trained) == expected_pairs
                assert [len(share) for share in shares] == [specs * count for count in blocks(total, size)]
        close(torch.from_numpy(probabilities), torch.from_numpy(expected), rtol=0, atol=1e-6)


def check_local(size):
    """Check that PairNorm without a group warns once of local statistics, but not if graphs are complete."""
    x = torch.randn(4, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair_norm(x, batch=torch.zeros(4, dtype=torch.long))
        assert not caught
        PairNorm()(x)
        PairNorm()(x)
    assert [str(one.message)[:30] for one in caught] == ["PairNorm without process_group"]


def run_rank(rank, size, checks, store):
    dist.init_process_group(
        "gloo", rank=rank, world_size=size, init_method=f"file://{store}", timeout=timedelta(seconds=30)
    )
    for check in checks:
        torch.manual_seed(0)
        globals()[f"check_{check}"](size)
        dist.barrier()
    gc.collect()
    dist.destroy_process_group()
    # Nothing keeps the group: its threads, letting tensors go while Python ends, would abort the process.
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name]


def run_checks(name, size):
    """Run checks on a number of ranks, and return the output if one fails."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                try:
                    if name != "local":
                        warnings.filterwarnings("ignore", "PairNorm without process_group")
                    run_rank(rank, size, name.split(","), f"{folder}/store")
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        return f"{codes}\n{Path(said.name).read_text()}" if any(codes) else ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    for late in ("numba", "torch._dynamo", "torch.distributed.tensor"):
        with suppress(ImportError):
            importlib.import_module(late)
    for line in sys.stdin:
        check, ranks = line.split()
        print(json.dumps(run_checks(check, int(ranks))), flush=True)
