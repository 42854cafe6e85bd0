"""With a real cluster of two nodes, of one core each, on this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairnorm.data import Graph
from pairnorm.train import Progress, Spec, Store, pools, run
from pairnorm.train.engine import Job
from pairnorm.train.pools import RayPool

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pairnorm[ray]'")

KILLS = int(os.environ.get("PAIRNORM_KILLS", 4))
"""Number of workers to kill; `make fuzz` kills twenty, in longer trainings."""
EPOCHS = 50 * KILLS
SPECS = [
    Spec("csbm", "GCN", 2, norm="PN-SI", epochs=EPOCHS),
    # Dropout over four layers would amplify the rounding of other batches until a best epoch differs.
    Spec("csbm", "GCN", 4, norm="PN-SI", dropout=0.0, epochs=EPOCHS),
    *(
        Spec("csbm", "SGC", depth, norm="PN", scale=scale, epochs=EPOCHS)
        for depth in (1, 3)
        for scale in (1, 10)
    ),
]
PAIRS = [(spec, seed) for spec in SPECS for seed in range(3)]


@pytest.fixture(scope="module")
def expected(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return the trials of a run in this process."""
    with Store(tmp_path_factory.mktemp("here") / "results.sqlite") as store:
        run(PAIRS, store, device="cpu", graphs={"csbm": graph}, workers=1)
        yield store


def test_cluster_equals_local_run(
    cluster: Any, graph: Graph, store: Store, expected: Store, assert_same_trials: Any
) -> None:
    reports: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        reports.append(progress)
        if progress.done > progress.total / 4 and len(store):
            raise KeyboardInterrupt

    options = {"device": "cpu", "graphs": {"csbm": graph}, "on": "ray"}
    with pytest.raises(KeyboardInterrupt):
        run(PAIRS, store, progress=interrupt, **options)
    before = store.results()
    assert 0 < len(before) < len(PAIRS)
    assert run(PAIRS, store, progress=reports.append, **options) == len(PAIRS) - len(before)
    assert reports[-1].done == reports[-1].total
    assert {result.origin.git_commit for result in store.results()} == {"the worker's"}
    assert [result for result in store.results() if result in before] == before
    assert_same_trials(store, expected, rel=0.01)


@pytest.mark.slow
def test_killed_workers_lose_no_finished_trial(
    cluster: Any, graph: Graph, store: Store, expected: Store, kill_workers: Any, assert_same_trials: Any
) -> None:
    reports: list[Progress] = []
    with kill_workers(KILLS) as killed:
        run(PAIRS, store, device="cpu", graphs={"csbm": graph}, on="ray", progress=reports.append)
    assert len(killed) == KILLS
    assert reports[-1].done == reports[-1].total
    assert_same_trials(store, expected, rel=0.01)


@pytest.mark.parametrize("deaths", [1, 2])
def test_job_of_dead_worker_restarts_until_limit(
    cluster: Any,
    graph: Graph,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raises: Any,
    deaths: int,
) -> None:
    trained = pools._train_job

    def run_out_of_memory(version: str, graph: Graph, job: Job, *rest: Any) -> Iterator[Any]:
        before = tmp_path / str(len(list(tmp_path.glob("death-*"))))
        if int(before.name) < deaths:
            before.with_name(f"death-{before.name}").touch()
            raise ray.exceptions.OutOfMemoryError("as Ray's memory monitor raises it")
        yield from trained(version, graph, job, *rest)

    monkeypatch.setattr(pools, "MAX_DEATHS", 2)
    monkeypatch.setattr(pools, "_train_job", run_out_of_memory)
    options = {"device": "cpu", "graphs": {"csbm": graph}, "on": "ray"}
    if deaths == 1:
        assert run([(SPECS[0], 0)], store, **options) == 1
    else:
        with raises("worker-died"):
            run([(SPECS[0], 0)], store, **options)


def test_error_of_a_task_ends_the_run(raises: Any, cluster: Any, graph: Graph, store: Store) -> None:
    with raises("version-mismatch", value="0.0"):
        list(pools._train_job("0.0", graph, Job(()), False, {}))
    with raises("unknown-choice", value="nothing"):
        RayPool("cpu").train_all(
            [(graph, Job(((SPECS[0], 0),)))], {"measures": ("nothing",)}, lambda event: None
        )


@pytest.mark.slow
def test_failing_driver_reports_its_error(cluster: Any, tmp_path: Path) -> None:
    """Ray ends a process that disconnects while it still refers to a stream."""
    script = (
        "import sys\nfrom pairnorm.data import csbm\nfrom pairnorm.train import Spec, Store, run\n"
        "pairs = [(Spec('csbm', 'GCN', 2, epochs=2000), seed) for seed in range(2)]\n"
        "graphs = {'csbm': csbm(100, classes=2, seed=0)}\n"
        "def stop(progress):\n"
        "    if progress.done: raise ArithmeticError('as asked')\n"
        "run(pairs, Store(sys.argv[1]), device='cpu', graphs=graphs, on='ray', progress=stop)\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "store.sqlite")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, "ArithmeticError: as asked")


def test_cluster_without_gpus_raises(raises: Any, cluster: Any) -> None:
    with raises("unknown-device", value="cuda"):
        RayPool("cuda")


class TestWithoutCluster:
    @pytest.fixture(autouse=True)
    def _disconnected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "is_initialized", lambda: False)

    @pytest.mark.parametrize("address", ["ray://somewhere:10001", "127.0.0.1:1"])
    def test_missing_cluster_raises(self, raises: Any, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setattr(ray, "init", lambda **_: (_ for _ in ()).throw(ConnectionError(address)))
        with raises("no-cluster", value=address):
            RayPool("cpu")

    def test_other_versions_raise(self, raises: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def init(**_: Any) -> None:
            raise RuntimeError("Version mismatch: The cluster was started with: Ray: 2.9 ...")

        monkeypatch.setattr(ray, "init", init)
        with raises("version-mismatch"):
            RayPool("cpu")


def test_unknown_backend_raises(raises: Any, graph: Graph, store: Store) -> None:
    with raises("unknown-choice", value="rya"):
        run(PAIRS, store, on="rya")
