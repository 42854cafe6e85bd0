"""Fixtures: a small graph, the features of a trial, store comparison, ends of processes, a Ray cluster."""

import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import pairnorm
from pairnorm.data import Graph, csbm, missing_vectors
from pairnorm.train import Spec, Store


@pytest.fixture(scope="session")
def graph() -> Graph:
    """Four classes that are hard to separate, so that accuracies change for many epochs."""
    return csbm(200, classes=4, features=60, words=8, signal=0.2, homophily=0.6, degree=4, seed=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store; its folder does not exist yet."""
    with Store(tmp_path / "folder" / "results.sqlite") as store:
        yield store


@pytest.fixture(scope="session")
def assert_same_trials() -> Callable[..., None]:
    """Compare the trials of two stores, up to the rounding of jobs of other sizes, which epochs amplify."""
    metrics = [f"{part}_{what}" for part in ("train", "validation", "test") for what in ("loss", "accuracy")]

    def check(left: Store, right: Store, rel: float = 1e-4) -> None:
        assert left.trials_by_spec().keys() == right.trials_by_spec().keys()
        for spec, trials in left.trials_by_spec().items():
            for ours, theirs in zip(trials, right.trials(spec), strict=True):
                assert (ours.seed, ours.best_epoch) == (theirs.seed, theirs.best_epoch)
                for name in metrics:
                    assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=rel)
                assert ours.measures == pytest.approx(dict(theirs.measures), rel=rel)

    return check


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Wait until a condition is true, at most 20 seconds, and return whether it is."""

    def wait(condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + 20
        while not condition() and time.monotonic() < end:
            time.sleep(0.05)
        return condition()

    return wait


def is_group_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def group_is_gone(eventually: Any) -> Callable[[int], bool]:
    """Wait until no process of a group is left."""
    return lambda group: eventually(lambda: is_group_gone(group))


@pytest.fixture
def children_are_gone(eventually: Any) -> Callable[[], bool]:
    """Wait until no child is left; one that a thread of an executor waits for, too, may seem to live."""
    return lambda: eventually(lambda: not multiprocessing.active_children())


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """A real cluster of two nodes, of one core each, on this machine; this process is its driver."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pairnorm[ray]'")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", str(Path(pairnorm.__file__).parents[1]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PAIRNORM_COMMIT", "the worker's")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        patch.delenv("PAIRNORM_COMMIT")
        patch.setenv("RAY_ADDRESS", cluster.address)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def kill_workers(cluster: Any) -> Callable[[int], Any]:
    """``with kill_workers(3) as killed``: kill three workers of the cluster while they have a task.

    The pauses grow with the count: a job that dies ten times without progress is given up.
    """
    raylets = {info.process.pid for node in cluster.list_all_nodes() for info in node.all_processes["raylet"]}

    @contextmanager
    def killing(count: int) -> Iterator[list[str]]:
        killed, done, draw = [], threading.Event(), random.Random(0)

        def kill() -> None:
            while not done.wait(0.02) and len(killed) < count:
                for pid in filter(str.isdigit, os.listdir("/proc")):
                    try:
                        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                        name = Path(f"/proc/{pid}/cmdline").read_bytes()
                    except (OSError, ValueError):
                        continue
                    if parent in raylets and name.startswith(b"ray::pairnorm"):
                        os.kill(int(pid), signal.SIGKILL)
                        killed.append(pid)
                        done.wait(draw.uniform(0, count / 4))
                        break

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield killed
        finally:
            done.set()
            thread.join()

    return killing


@pytest.fixture(scope="session")
def features() -> Callable[[Graph, Spec, int], Tensor]:
    """Return the features of a trial, dense: rows divided by their sum, then masked."""
    return plain_features


def plain_features(graph: Graph, spec: Spec, seed: int) -> Tensor:
    x = graph.features.to_dense()
    x = x / x.sum(1, keepdim=True).clamp(min=1e-12)
    x[missing_vectors(graph, spec.missing_rate, seed=seed).mask[:, 0]] = 0
    return x
