"""Blocks that tasks of a real cluster compute equal those of this process."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'pairnorm[ray]'")
pytest.importorskip("numba")
sys.path.insert(0, str(Path(__file__).parent))
from test_propagation import packed_graph

from pairnorm import __version__, cli
from pairnorm.data import PackedGraph
from pairnorm.train import pools
from pairnorm.train import propagation as module
from pairnorm.train.propagation import BlockEvent, Propagation, RayBlocks, _propagate_block

NEED, ROWS, DEPTHS = 3 * 10**8, np.arange(0, 2000, 7), (1, 4)


@pytest.fixture
def packed(tmp_path: Path) -> PackedGraph:
    return packed_graph(tmp_path / "graph", degree=16)


def assert_same(propagations: list[Propagation], folder: Path) -> None:
    for propagation in propagations:
        assert propagation.pending() == []
        here = replace(propagation, folder=folder)
        here.run()
        for depth in propagation.depths:
            np.testing.assert_array_equal(propagation.state(depth), here.state(depth))


def test_cluster_computes_same_blocks(cluster: Any, packed: PackedGraph, tmp_path: Path) -> None:
    messages: list[str] = []
    propagations = [
        Propagation(packed, tmp_path / "kept", ROWS, DEPTHS, 5, imputation, norm, messages.append)
        for imputation, norm in (("zero", "PN"), ("fp", "PN"), ("mass", "none"), ("zero", "PN-SI"))
    ]
    RayBlocks().run(propagations, NEED)
    independent = propagations[:3]
    assert len(messages) == sum(propagation.steps for propagation in independent)
    assert propagations[3].pending() == [0, 1, 2]  # PN-SI, whose blocks depend on each other
    assert_same(independent, tmp_path / "here")


@pytest.mark.slow
def test_killed_worker_loses_one_block(
    cluster: Any, packed: PackedGraph, tmp_path: Path, kill_workers: Any
) -> None:
    messages: list[str] = []
    propagation = Propagation(packed, tmp_path / "kept", ROWS, (300,), 5, on_progress=messages.append)
    with kill_workers(2) as killed:
        RayBlocks().run([propagation], NEED)
    assert killed
    assert len(messages) == len(set(messages)) == propagation.steps
    assert_same([propagation], tmp_path / "here")


def test_block_that_kills_its_workers_raises(
    raises: Any, cluster: Any, packed: PackedGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(version: str, propagation: Propagation, number: int, *_: Any) -> Iterator[BlockEvent]:
        yield "columns 1 to 5, depth 0"
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"squares": np.zeros(2), "units": np.ones(2)}

    monkeypatch.setattr(module, "_propagate_block", crash)
    monkeypatch.setattr(pools, "MAX_DEATHS", 2)
    propagation = Propagation(packed, tmp_path / "kept", ROWS, (1,), 7)
    with raises("worker-died", value="block 2"):
        RayBlocks().run([propagation], NEED)
    assert propagation.pending() == [1]


@pytest.mark.slow
def test_fit_on_cluster_equals_local_fit(
    cluster: Any, packed: PackedGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["fit", "--graph", str(packed.folder), "--depth", "1,2", "--out"]
    assert cli.main([*fit, str(tmp_path / "here")]) == 0
    assert cli.main([*fit, str(tmp_path / "there"), "--backend", "ray"]) == 0
    assert "Blocks are computed on 2 cores" in capsys.readouterr().out
    here, there = ((tmp_path / name / "predictions.csv") for name in ("here", "there"))
    pandas.testing.assert_frame_equal(pandas.read_csv(here), pandas.read_csv(there), atol=1e-5)
    assert not list(tmp_path.glob(".*"))


def test_worker_of_other_version_or_without_graph_raises(
    raises: Any, packed: PackedGraph, tmp_path: Path
) -> None:
    propagation = Propagation(packed, tmp_path, ROWS, DEPTHS, 5)
    with raises("version-mismatch", value="0.0"):
        next(_propagate_block("0.0", propagation, 0, 1))
    elsewhere = replace(propagation, graph=PackedGraph(Path("nowhere"), packed.facts))
    with raises("file-missing", value="nowhere"):
        next(_propagate_block(__version__, elsewhere, 0, 1))
