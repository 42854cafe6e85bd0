"""PairNorm added from outside equals PairNorm written in by hand: every architecture, every way to train it.

Run as a program, the file is one of two processes that train under ``DistributedDataParallel``.
"""

import copy
import functools
import io
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch_geometric.nn as pyg

from pairnorm import PairNorm, add_pair_norm

NODES, WIDTH, SCALE, MODE = 12, 4, 2.0, "PN"
PAGE = Path(__file__).parents[2] / "docs/training-recipes.md"
RELATIONS = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "rev", "author")]


def graph():
    ring = torch.arange(NODES)
    chords = torch.randint(NODES, (2, 10), generator=torch.Generator().manual_seed(0))
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), chords], 1)
    return torch.cat([edges, edges.flip(0)], 1)


class Stack(nn.Module):
    """Three convolutions with an activation module between them; ``norm`` is PairNorm written in by hand."""

    def __init__(self, convolution, norm):
        super().__init__()
        self.convs = nn.ModuleList(convolution() for _ in range(3))
        self.act, self.dropout, self.norm = nn.ReLU(inplace=True), nn.Dropout(0.5), norm
        self.use_reentrant = None

    def block(self, index, x, edge_index):
        return self.norm(self.act(self.convs[index](x, edge_index)))

    def forward(self, x, edge_index):
        for index in range(2):
            if self.use_reentrant is None:
                x = self.block(index, x, edge_index)
            else:
                x = checkpoint(self.block, index, x, edge_index, use_reentrant=self.use_reentrant)
            x = self.dropout(x)
        return self.convs[2](x, edge_index)


class Reused(Stack):
    """One convolution, called three times."""

    def __init__(self, convolution, norm):
        super().__init__(convolution, norm)
        self.convs = nn.ModuleList([self.convs[0]] * 3)


class Basic(nn.Module):
    """The forward of PyG's ``BasicGNN`` with PairNorm after the activation, or after the dropout."""

    def __init__(self, model, norm, is_after=True):
        super().__init__()
        self.convs, self.act, self.dropout = model.convs, model.act, model.dropout
        self.norm, self.is_after = norm, is_after

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = self.act(conv(x, edge_index))
            x = self.dropout(self.norm(x)) if self.is_after else self.norm(self.dropout(x))
        return self.convs[-1](x, edge_index)


class Handwritten(nn.Module):
    """Dense products and functions only, with no PyTorch module between the convolutions."""

    class Convolution(nn.Linear):
        def forward(self, adj, x):
            return adj @ super().forward(x)

    def __init__(self, norm):
        super().__init__()
        self.first, self.second = self.Convolution(WIDTH, WIDTH), self.Convolution(WIDTH, WIDTH)
        self.norm, self.use_reentrant = norm, None

    def block(self, x, adj):
        return F.leaky_relu(self.first(adj, x))

    def forward(self, x, edge_index):
        adj = torch.eye(len(x), dtype=x.dtype).index_put((edge_index[0], edge_index[1]), x.new_tensor(0.5))
        if self.use_reentrant is None:
            h = self.block(x, adj)
        else:
            h = checkpoint(self.block, x, adj, use_reentrant=self.use_reentrant)
        return self.second(adj, self.norm(F.dropout(h, 0.5, self.training)))


class Relational(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.HeteroConv({one: pyg.SAGEConv((WIDTH, WIDTH), WIDTH) for one in RELATIONS}) for _ in range(3)
        )
        self.norm = norm

    def forward(self, x, edge_index):
        states = {"paper": x, "author": x[:5]}
        edges = {
            one: edge_index[:, (edge_index[0] < len(states[one[0]])) & (edge_index[1] < len(states[one[2]]))]
            for one in RELATIONS
        }
        for conv in self.convs[:-1]:
            states = {kind: self.norm(h.relu()) for kind, h in conv(states, edges).items()}
        return self.convs[-1](states, edges)["paper"]


def sequential(norm):
    steps = [(pyg.GCNConv(WIDTH, WIDTH), "x, edge_index -> x"), nn.ReLU(inplace=True)]
    steps += [] if isinstance(norm, nn.Identity) else [norm]
    steps += [(pyg.GCNConv(WIDTH, WIDTH), "x, edge_index -> x")]
    return pyg.Sequential("x, edge_index", steps)


def basic(kind, norm, is_after=True, **settings):
    model = kind(WIDTH, WIDTH, 3, WIDTH, dropout=0.5, **settings)
    return model if isinstance(norm, nn.Identity) else Basic(model, norm, is_after)


PNA = {
    "aggregators": ["mean", "max"],
    "scalers": ["identity", "amplification"],
    "deg": torch.tensor([0, 2, 5, 3]),
}
ARCHITECTURES = {
    "GCN": functools.partial(basic, pyg.GCN),
    "GAT": functools.partial(basic, pyg.GAT),
    "GraphSAGE": functools.partial(basic, pyg.GraphSAGE),
    "GIN": functools.partial(basic, pyg.GIN, is_after=False),  # its convolutions share the activation module
    "PNA": functools.partial(basic, pyg.PNA, **PNA),
    "TransformerConv": functools.partial(Stack, lambda: pyg.TransformerConv(WIDTH, WIDTH)),
    "GATv2Conv": functools.partial(Stack, lambda: pyg.GATv2Conv(WIDTH, WIDTH)),
    "HeteroConv": Relational,
    "hand-written": Handwritten,
    "one convolution reused": functools.partial(Reused, lambda: pyg.GCNConv(WIDTH, WIDTH)),
    "Sequential": sequential,
}


def build(architecture, is_patched):
    """Return a model with PairNorm, and inputs; both kinds of models have the same weights."""
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture](nn.Identity() if is_patched else PairNorm(SCALE, MODE))
    torch.manual_seed(1)
    x = torch.randn(NODES, WIDTH)
    if is_patched:
        add_pair_norm(model, SCALE, MODE, example_inputs=(x, graph()))
    return model, x, graph()


def gradients(model, call, x, edge_index):
    x = x.clone().requires_grad_()
    torch.manual_seed(2)  # the same dropout
    output = call(x, edge_index)
    (output.float() * torch.arange(1.0, WIDTH + 1)).sum().backward()
    return [output.detach(), x.grad, *(one.grad for one in model.parameters() if one.grad is not None)]


def run_eager(model, x, edge_index):
    return gradients(model, model, x, edge_index)


def run_compiled(model, x, edge_index):
    torch.compiler.reset()
    return gradients(model, torch.compile(model, backend="aot_eager"), x, edge_index)


def run_checkpointed(use_reentrant, model, x, edge_index):
    if hasattr(model, "use_reentrant"):
        model.use_reentrant = use_reentrant
        return gradients(model, model, x, edge_index)
    call = functools.partial(checkpoint, model, use_reentrant=use_reentrant)
    return gradients(model, call, x, edge_index)


def run_amp(model, x, edge_index):
    with torch.autocast("cpu", torch.bfloat16):
        return gradients(model, model, x, edge_index)


def run_threads(model, x, edge_index):
    model.eval()
    outputs = [None] * 4

    def work(index):
        with torch.no_grad():
            for _ in range(5):
                outputs[index] = model((index + 1) * x[: NODES - index].exp(), edge_index % (NODES - index))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


def run_copied(model, x, edge_index):
    return run_eager(copy.deepcopy(model), x, edge_index)


def run_pickled(model, x, edge_index):
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    return run_eager(torch.load(stored, weights_only=False), x, edge_index)


def run_ema(model, x, edge_index):
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    with torch.no_grad():
        for _ in range(2):
            for parameter in model.parameters():
                parameter.mul_(1.1)
            averaged.update_parameters(model)
    return gradients(averaged, averaged, x, edge_index)


def run_vmap(model, x, edge_index):
    model.eval()
    parameters = {name: torch.stack([one, 2 * one]) for name, one in model.named_parameters()}

    def loss(parameters, x):
        output = torch.func.functional_call(model, parameters, (x, edge_index))
        return (output * torch.arange(1.0, WIDTH + 1)).sum()

    actual = torch.func.vmap(torch.func.grad(loss), (0, None))(parameters, x)
    return [value for name, value in sorted(actual.items())]


def run_export(model, x, edge_index):
    model.eval()
    return [torch.export.export(model, (x, edge_index)).module()(x, edge_index)]


WAYS = {
    "eager": run_eager,
    "compile": run_compiled,
    "checkpoint, reentrant": functools.partial(run_checkpointed, True),
    "checkpoint, non-reentrant": functools.partial(run_checkpointed, False),
    "AMP": run_amp,
    "threads": run_threads,
    "deepcopy": run_copied,
    "pickle": run_pickled,
    "EMA": run_ema,
    "functional_call + vmap": run_vmap,
    "export": run_export,
}


def table():
    """Return what the page says, by architecture and way."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = next(row for row in rows if row[0] == "Architecture")
    return {
        (row[0], way): cell
        for row in rows
        if row[0] in ARCHITECTURES
        for way, cell in zip(header[1:], row[1:], strict=True)
    }


# The compiler takes seconds for each: three architectures stand for all, unless slow tests are asked for.
SLOW_WAYS, SAMPLED = {"compile", "export"}, {"GraphSAGE", "HeteroConv", "hand-written"}
CASES = [
    pytest.param(name, way, marks=[pytest.mark.slow] if way in SLOW_WAYS and name not in SAMPLED else [])
    for name in ARCHITECTURES
    for way in WAYS
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("architecture", "way"), CASES)
def test_patched_model_equals_one_with_the_norm_written_in(architecture, way):
    try:
        expected = WAYS[way](*build(architecture, is_patched=False))
    except Exception:
        assert table()[architecture, way] == "not by the model itself"
        return
    actual = WAYS[way](*build(architecture, is_patched=True))
    assert table()[architecture, way] == "yes"
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_patched_weights_load_into_an_unresolved_model(architecture):
    model, x, edge_index = build(architecture, is_patched=True)
    torch.manual_seed(3)
    other = ARCHITECTURES[architecture](nn.Identity())
    add_pair_norm(other, SCALE, MODE)
    other.load_state_dict(model.state_dict())
    for ours, theirs in zip(run_eager(other, x, edge_index), run_eager(model, x, edge_index), strict=True):
        assert torch.equal(ours, theirs)
    assert table()[architecture, "state_dict"] == "yes"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the outputs of two processes that train every architecture, patched and by hand."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(folder), str(rank)], stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()[-2000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_distributed_data_parallel_equals_the_norm_written_in(ranks, architecture):
    for rank in ranks:
        patched, by_hand = rank[architecture]
        assert len(patched) == len(by_hand)
        for ours, theirs in zip(patched, by_hand, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not torch.equal(ranks[0][architecture][0][0], ranks[1][architecture][0][0])  # inputs of their own
    assert table()[architecture, "DDP"] == "yes"


def train_as_a_rank(folder, rank):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    actual = {}
    for architecture in ARCHITECTURES:
        actual[architecture] = []
        for is_patched in (True, False):
            model, x, edge_index = build(architecture, is_patched)
            ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            actual[architecture].append(gradients(ddp, ddp, x * (1 + rank), edge_index))
    torch.save(actual, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train_as_a_rank(Path(sys.argv[1]), int(sys.argv[2]))
