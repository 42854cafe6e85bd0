"""The layer itself against PyG's: forward and backward, and what it keeps for the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric import nn as pyg

import pairnorm
from benchmarks.report import Row, duration
from benchmarks.timing import copy_bandwidth, interleave, on_cuda

CPU_NODES, CUDA_NODES, FEATURES = 169_343, 1_000_000, 128
VARIANTS = {"PN": False, "PN-SI": True}
# Forward: read for the statistics, read again, write. Backward: read gradient and input, twice, write.
FORWARD_PASSES, BACKWARD_PASSES = 3, 5


def measure() -> list[Row]:
    """On two threads of a CPU: times and saved memory; on CUDA, where there is one: the share of the copy
    bandwidth.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    rows = [row for mode in VARIANTS for row in _on_cpu(mode)]
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        bandwidth = copy_bandwidth()
        rows += [row for mode in VARIANTS for row in _on_cuda(mode, bandwidth)]
    return rows


def _layers(mode: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    return pairnorm.PairNorm(mode=mode), pyg.PairNorm(scale_individually=VARIANTS[mode])


def _step(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> None:
    x.grad = None
    layer(x).backward(grad)


def _on_cpu(mode: str) -> list[Row]:
    x = torch.randn(CPU_NODES, FEATURES, requires_grad=True)
    grad = torch.randn_like(x)
    ours, theirs = _layers(mode)
    times = interleave({"ours": lambda: _step(ours, x, grad), "peer": lambda: _step(theirs, x, grad)}, 9)
    size = f"{CPU_NODES:,} x {FEATURES}"
    saved = [_saved_bytes(layer, x) / x.nbytes for layer in (ours, theirs)]
    return [
        Row(
            part="layer",
            work=f"{mode} forward + backward, {size}, 2 threads, {what}",
            ours=duration(getattr(times["ours"], what)),
            peer=duration(getattr(times["peer"], what)),
            result=getattr(times["peer"], what) / getattr(times["ours"], what),
            unit="x",
            goal=5,
        )
        for what in ("median", "best")
    ] + [
        Row(
            part="layer",
            work=f"{mode} saved for backward, in tensors of the input's size",
            ours=f"{saved[0]:.2f}",
            peer=f"{saved[1]:.2f}",
            result=saved[0],
            unit="tensors",
            goal=1.01,  # and a number for each row
            at_least=False,
        )
    ]


def _saved_bytes(layer: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the bytes of the distinct storages that the backward pass holds, other than the input's."""
    result: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != x.untyped_storage().data_ptr():
            result[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = layer(x)
    del kept
    return sum(result.values())


def _on_cuda(mode: str, bandwidth: float) -> list[Row]:
    x = torch.randn(CUDA_NODES, FEATURES, device="cuda", requires_grad=True)
    grad = torch.randn_like(x)
    ours, theirs = _layers(mode)
    rows = []
    for name, passes in (("forward", FORWARD_PASSES), ("backward", BACKWARD_PASSES)):
        seconds = [_cuda_time(layer, x, grad, name) for layer in (ours, theirs)]
        share = [100 * passes * x.nbytes / bandwidth / time for time in seconds]
        rows.append(
            Row(
                part="layer",
                work=f"{mode} {name}, {CUDA_NODES:,} x {FEATURES}, share of {bandwidth / 1e12:.2f} TB/s, "
                f"{passes} passes",
                ours=duration(seconds[0]),
                peer=f"{duration(seconds[1])} ({share[1]:.0f}%)",
                result=share[0],
                unit="%",
                goal=80,
            )
        )
    return rows


def _cuda_time(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor, what: str) -> float:
    if what == "forward":
        return on_cuda(lambda: layer(x))
    y = layer(x)
    return on_cuda(lambda: torch.autograd.grad(y, x, grad, retain_graph=True))
