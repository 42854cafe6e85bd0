"""``pairnorm fit`` and ``pairnorm pack`` as a user calls them, on generated tables: time and memory."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.large.generate import Ring
from pairnorm import load
from pairnorm.data.exchange import to_scipy

INTERVAL = 0.1
GIBIBYTE = 2**30


@dataclass
class Run:
    """One call of a command.

    Args:
        command: what was called.
        nodes: of the graph.
        edges: that were drawn.
        columns: features of a node.
        seconds: on the clock.
        processor: seconds of all cores.
        anonymous: bytes of its own memory, at most; pages mapped from files do not count.
        resident: bytes with those.
        accuracy: of the held-out nodes, in percent; None where nothing is predicted.
        killed: whether it was, with SIGKILL, in the middle.
    """

    command: str
    nodes: int
    edges: int
    columns: int
    seconds: float
    processor: float
    anonymous: int
    resident: int
    accuracy: float | None = None
    killed: bool = False


def fit(ring: Ring, folder: Path, format: str, *options: str) -> Run:
    """Fit generated tables in memory, with report and page."""
    tables = ring.write(folder / f"fit-{ring.nodes}-{ring.columns}", format)
    columns = () if format == "npz" else ("--id=id", "--label=label")
    return _call(ring, "fit", *_named(tables), *columns, f"--out={folder / 'run'}", *options)


def fit_dataset(name: str, folder: Path, *options: str) -> Run:
    """Fit a data set, the labels of its test nodes unknown, with report and page."""
    graph = load(name)
    adjacency, features = to_scipy(graph)
    arrays = {
        f"{prefix}_{part}": getattr(matrix, part)
        for prefix, matrix in (("adj", adjacency), ("attr", features))
        for part in ("data", "indices", "indptr", "shape")
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.npz"
    np.savez(path, labels=graph.labels.where(~graph.test, -1).numpy(), **arrays)
    size = Ring(graph.num_nodes, adjacency.nnz // 2, graph.num_features)
    return _call(size, "fit", f"--nodes={path}", f"--out={folder / 'run'}", *options)


def _named(tables: list[Path]) -> list[str]:
    return [f"--{name}={path}" for name, path in zip(("nodes", "edges"), tables, strict=False)]


def pack(nodes: int, folder: Path, format: str) -> Run:
    """Pack tables of ten edges a node and 128 columns, half of the vectors missing."""
    ring = packed_ring(nodes)
    named = _named(ring.write(folder / f"pack-{nodes}", format))
    shutil.rmtree(folder / "graph", ignore_errors=True)
    return _call(
        ring, "pack", *named, "--id=id", "--label=label", f"--out={folder / 'graph'}", "--memory=6GB"
    )


def packed_ring(nodes: int) -> Ring:
    """Return what ``pack`` packs."""
    return Ring(nodes, 10 * nodes, 128, labeled=0.01)


def fit_packed(nodes: int, folder: Path, killed_after: float | None = None) -> Run:
    """Choose and learn an SGC-PN of depth 16 on the packed graph within 8 GB, and predict every node.

    Args:
        nodes: of the graph.
        folder: that holds it.
        killed_after: seconds after which the command is killed; the next call resumes.
    """
    chosen = ("--norm=PN", "--depth=16", "--impute=zero", "--memory=8GB")
    graph, out = folder / "graph", folder / "fitted"
    return _call(
        packed_ring(nodes), "fit", f"--graph={graph}", f"--out={out}", *chosen, killed_after=killed_after
    )


def describe(one: Run) -> str:
    """Return a line of figures."""
    accuracy = "" if one.accuracy is None else f", {one.accuracy}% of the held-out nodes right"
    return (
        f"{one.command}, {one.nodes:,} nodes, {one.edges:,} edges, {one.columns} columns"
        f"{', killed' if one.killed else ''}: {one.seconds:,.0f} s, {one.processor:,.0f} s of all cores, "
        f"{one.anonymous / GIBIBYTE:.1f} GiB of its own, {one.resident / GIBIBYTE:.1f} with what is mapped"
        f"{accuracy}"
    )


def _call(ring: Ring, command: str, *options: str, killed_after: float | None = None) -> Run:
    """Run a command and look at its memory until it ends."""
    start, peak = time.perf_counter(), [0, 0]
    process = subprocess.Popen(
        [sys.executable, "-m", "pairnorm", command, *options], stdout=subprocess.PIPE, text=True
    )
    message: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: message.extend(process.stdout), daemon=True)  # type: ignore[arg-type]
    reader.start()
    killed, seconds = False, 0.0
    while True:
        seconds = time.perf_counter() - start
        if killed_after is not None and seconds > killed_after and not killed:
            process.send_signal(signal.SIGKILL)
            killed = True
        peak = [max(pair) for pair in zip(peak, _memory(process.pid), strict=True)]
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(INTERVAL)
    reader.join()
    print("".join(message), end="")
    if status and not killed:
        raise RuntimeError(f"pairnorm {command} ended with {status}")
    right = re.findall(r"(\d+\.\d+)%", "".join(line for line in message if "held-out nodes" in line))
    return Run(
        command=command, nodes=ring.nodes, edges=ring.edges, columns=ring.columns, seconds=seconds,
        processor=usage.ru_utime + usage.ru_stime, anonymous=peak[0], resident=peak[1],
        accuracy=float(right[0]) if right else None, killed=killed,
    )  # fmt: skip


def _memory(pid: int) -> tuple[int, int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    result = (re.search(rf"^{name}:\s*(\d+) kB", status, re.MULTILINE) for name in ("RssAnon", "VmHWM"))
    anonymous, resident = (int(one[1]) * 1024 if one else 0 for one in result)
    return anonymous, resident
