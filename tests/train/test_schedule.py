import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pairnorm.data import Graph, csbm, load
from pairnorm.train import Progress, Spec, Store, run, train
from pairnorm.train.engine import plan
from pairnorm.train.schedule import Running, _plan_tasks

GRAPH = {"nodes": 200, "classes": 4, "features": 60, "seed": 1}  # of runs.py
GCN = Spec("csbm", "GCN", 2, norm="PN-SI", epochs=30)
SPECS = [
    GCN,
    GCN.replace(missing_rate=1),
    GCN.replace(depth=4),
    *(Spec("csbm", "SGC", depth, norm="PN", scale=scale, epochs=30) for depth in (1, 3) for scale in (1, 10)),
]


def pairs_of(specs: list[Spec], seeds: range) -> list[tuple[Spec, int]]:
    return [(spec, seed) for spec in specs for seed in seeds]


@pytest.fixture
def options(graph: Graph) -> dict[str, Any]:
    """Arguments of ``run`` for one worker in this process."""
    return {"device": "cpu", "graphs": {"csbm": graph}, "workers": 1}


def test_only_pending_trials_are_trained(graph: Graph, store: Store, options: dict[str, Any]) -> None:
    assert run(pairs_of(SPECS, range(2)), store, **options) == 2 * len(SPECS)
    assert len(store) == 2 * len(SPECS)
    before = store.trials_by_spec()
    assert run(pairs_of(SPECS, range(2)), store, **options) == 0
    assert run(pairs_of([*SPECS, GCN.replace(depth=3)], range(3)), store, **options) == len(SPECS) + 3
    assert all(store.trials(spec)[:2] == trials for spec, trials in before.items())
    for trial, alone in zip(store.trials(GCN.on(graph)), train(graph, GCN, range(3), "cpu"), strict=True):
        assert trial.test_loss == pytest.approx(alone.test_loss, rel=1e-4)


def test_each_depth_of_sgc_is_written_when_finished(graph: Graph, store: Store) -> None:
    specs = [Spec("csbm", "SGC", depth, epochs=30) for depth in (1, 2, 3)]

    def interrupt(progress: Progress) -> None:
        if progress.done > progress.total / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(pairs_of(specs, range(1)), store, device="cpu", graphs={"csbm": graph}, progress=interrupt)
    assert [spec.depth for spec in store.trials_by_spec()] == [1]


def test_resumed_run_has_the_jobs_of_a_complete_run(graph: Graph) -> None:
    """The trials that share a job decide the last bits of their losses."""
    pairs = [(spec.on(graph), seed) for spec, seed in pairs_of(SPECS, range(5))]
    graphs = {pairs[0][0].dataset: graph}

    def compositions(pending: set[tuple[Spec, int]]) -> list[tuple[tuple[Spec, int], ...]]:
        return [job.pairs for _, job in _plan_tasks(pairs, pending, torch.device("cpu"), None, graphs, 2)]

    complete = compositions(set(pairs))
    assert {pair for job in complete for pair in job} == set(pairs)
    assert len(complete) > 2
    for finished in range(len(complete) + 1):
        pending = {pair for job in complete[finished:] for pair in job}
        assert compositions(pending) == complete[finished:]
    [kept] = compositions({pairs[0]})
    assert kept == (pairs[0],)


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_resumed_run_equals_complete_run_bit_for_bit(
    tmp_path: Path, jobs: int, options: dict[str, Any]
) -> None:
    pairs = pairs_of(SPECS, range(5))
    calls = iter(range(100))
    run(pairs, tmp_path / "a.sqlite", **options)
    stopped = run(pairs, tmp_path / "b.sqlite", **options, should_stop=lambda: next(calls) >= jobs)
    assert 0 < stopped < len(pairs)
    run(pairs, tmp_path / "b.sqlite", **options)
    with Store(tmp_path / "a.sqlite") as complete, Store(tmp_path / "b.sqlite") as resumed:
        assert complete.trials_by_spec() == resumed.trials_by_spec()


def test_progress_rises_to_the_total(graph: Graph, store: Store, options: dict[str, Any]) -> None:
    reports: list[Progress] = []
    pairs = pairs_of(SPECS, range(2))
    run(pairs, store, **options, progress=reports.append)
    total = sum(job.cost for job in plan(graph, pairs, torch.device("cpu")))
    done = [progress.done for progress in reports]
    assert done[0] == 0
    assert done == sorted(done)
    assert done[-1] == total
    assert {(progress.total, progress.trials) for progress in reports} == {(total, len(pairs))}
    assert {Spec.parse(progress.label) for progress in reports[1:]} <= {spec.on(graph) for spec in SPECS}


def test_processes_equal_this_process_and_print_nothing(
    graph: Graph,
    store: Store,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    assert_same_trials: Any,
) -> None:
    monkeypatch.setenv("PAIRNORM_COMMIT", "the worker's")
    reports: list[Progress] = []
    pairs = pairs_of(SPECS, range(2))
    options = {"device": "cpu", "graphs": {"csbm": graph}, "measures": ["row_diff"], "curves": True}
    assert run(pairs, store, workers=2, progress=reports.append, **options) == len(pairs)
    done = [progress.done for progress in reports]
    assert done == sorted(done)
    assert done[-1] == reports[-1].total
    assert capfd.readouterr() == ("", "")
    origins = [result.origin for result in store.results()]
    assert {origin.git_commit for origin in origins} == {"the worker's"}
    assert sum(1 / origin.shared_by for origin in origins) == pytest.approx(len(set(origins)))
    with Store(tmp_path / "here.sqlite") as here:
        run(pairs, here, workers=1, **options)
        assert_same_trials(store, here)
    assert len(store.trials(GCN.on(graph))[0].curves["train_loss"]) == 30


@pytest.mark.parametrize("workers", [1, 2])
def test_failing_job_ends_the_run_and_keeps_finished_trials(
    raises: Any, graph: Graph, store: Store, workers: int, options: dict[str, Any]
) -> None:
    broken = graph.replace(validation=torch.zeros_like(graph.validation))
    good = pairs_of([GCN.replace(epochs=1), GCN.replace(epochs=2)], range(2))
    bad = [(GCN.replace(dataset="broken"), 0)]
    with raises("no-split"):
        run([*good, *bad], store, device="cpu", graphs={"csbm": graph, "broken": broken}, workers=workers)
    kept = sum(len(trials) for trials in store.trials_by_spec(dataset=GCN.on(graph).dataset).values())
    assert kept == len(store) >= (len(good) if workers == 1 else 2)
    assert run(good, store, **options) == len(good) - kept


def test_should_stop_waits_for_running_jobs(store: Store, options: dict[str, Any]) -> None:
    assert run(pairs_of(SPECS, range(2)), store, should_stop=lambda: len(store) > 0, **options) == len(store)
    assert 0 < len(store) < 2 * len(SPECS)
    left = 2 * len(SPECS) - len(store)
    assert run(pairs_of(SPECS, range(2)), store, **options) == left


def test_named_graph_has_the_split_of_the_spec(
    graph: Graph, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def load(name: str, root: object, split: str | None) -> Graph:
        calls.append((name, root, split))
        return graph

    monkeypatch.setattr(sys.modules[run.__module__], "load", load)
    spec = Spec("cora", "GCN", 1, epochs=2)
    run([(spec, 0), (spec.replace(split="random"), 0)], store, device="cpu", root="here", workers=1)
    assert calls == [("cora", "here", None), ("cora", "here", "random")]


def test_passed_graph_has_the_split_of_the_spec(graph: Graph, store: Store, options: dict[str, Any]) -> None:
    spec = GCN.replace(epochs=2, split="per-class-5")
    run([(GCN.replace(epochs=2), 0), (spec, 0)], store, **options)
    [expected] = train(graph.with_split("per-class-5"), spec, [0], "cpu")
    assert store.trials(spec.on(graph)) == [expected]
    assert store.trials(GCN.on(graph).replace(epochs=2)) not in ([], [expected])


def test_store_may_be_a_path(graph: Graph, tmp_path: Path) -> None:
    path, options = tmp_path / "own" / "results.sqlite", {"device": "cpu", "graphs": {"csbm": graph}}
    assert run([(SPECS[0], 0)], path, **options, workers=1) == 1
    assert run([(SPECS[0], 0)], str(path), **options, workers=1) == 0
    with Store(path, read_only=True) as store:
        assert len(store) == 1


@pytest.mark.parametrize("name", ["csbm", "cora", "mine"])
def test_graphs_of_one_name_have_separate_trials(graph: Graph, store: Store, name: str) -> None:
    other, spec = csbm(**GRAPH | {"seed": 2}), Spec(name, "SGC", 2, epochs=3)
    for one, trained in ((graph, 1), (graph, 0), (other, 1), (graph, 0)):
        assert run([(spec, 0)], store, device="cpu", graphs={name: one}, workers=1) == trained
        assert store.trials(spec.on(one)) == train(one, spec, [0], "cpu")
    assert store.trials(spec) == []
    assert run([(spec.on(graph), 0)], store, device="cpu", graphs={name: graph}, workers=1) == 0


def test_passed_named_graph_keeps_its_name(store: Store) -> None:
    spec, cora = Spec("cora", "SGC", 2, epochs=2), load("cora")
    assert run([(spec, 0)], store, device="cpu", graphs={"cora": cora}, workers=1) == 1
    assert run([(spec, 0)], store, device="cpu", workers=1) == 0
    assert spec.on(cora) == spec.replace(dataset=f"cora@{cora.fingerprint}").on(cora) == spec
    assert spec.on(cora.with_split("random")) != spec
    assert Spec("csbm", "SGC", 2).on(load("csbm")) == Spec("csbm", "SGC", 2)


@pytest.mark.parametrize("pairs", [SPECS[0], SPECS, [("csbm", 0)], 3])
def test_invalid_pairs_raise(raises: Any, store: Store, pairs: Any) -> None:
    with raises("wrong-type"):
        run(pairs, store)


def test_invalid_store_and_graphs_raise(raises: Any, graph: Graph, store: Store) -> None:
    with raises("wrong-type", "store is 3", value=3):
        run([(SPECS[0], 0)], 3)  # type: ignore[arg-type]
    with raises("wrong-type", "graphs is a Graph"):
        run([(SPECS[0], 0)], store, graphs=graph)  # type: ignore[arg-type]
    with raises("wrong-type", "graphs['mine'] is a str"):
        run([(SPECS[0], 0)], store, graphs={"mine": "mine.npz"})  # type: ignore[dict-item]


def test_unknown_graph_hint_names_graphs_argument(raises: Any, store: Store) -> None:
    spec = SPECS[0]
    with raises("unknown-choice", "the dataset of a spec is 'mine'", value="mine") as caught:
        run([(spec.replace(dataset="mine"), 0)], store)
    assert "graphs={'mine': graph}" in str(caught.value)
    with raises("unknown-choice", value="Cora") as caught:  # else "cora" would have trials under two names
        run([(spec.replace(dataset="Cora"), 0)], store)
    assert "Did you mean 'cora'?" in str(caught.value)
    with raises("unknown-choice", value="halves") as caught:
        run([(spec.replace(split="halves"), 0)], store)
    assert "graphs=" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"device": "gpu"}, "unknown-device"),
        ({"measures": ["blur"]}, "unknown-choice"),
        ({"workers": 0}, "not-a-whole-number"),
        ({"pairs": [(GCN, 2**64)]}, "not-a-whole-number"),
    ],
)
def test_wrong_arguments_create_no_file(
    raises: Any, graph: Graph, store: Store, change: dict[str, Any], code: str
) -> None:
    options = {"pairs": [(GCN, 0)], "device": "cpu", "graphs": {"csbm": graph}, "workers": 1}
    with raises(code):
        run(store=store, **options | change)
    assert not store.path.exists()


def test_unwritable_store_raises_before_training(
    raises: Any, store: Store, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    store.add(GCN, [], seconds=0.0)
    monkeypatch.setattr("pairnorm.train.pools.train_job", lambda *words, **options: 1 / 0)
    with Store(store.path, read_only=True) as reader, raises("read-only"):
        run([(GCN, 0)], reader, **options)


def test_killed_worker_ends_the_run_with_a_hint(
    raises: Any, graph: Graph, store: Store, children_are_gone: Any
) -> None:
    long = [(GCN.replace(depth=depth, epochs=500_000), 0) for depth in (2, 3)]
    children: list[int] = []

    def kill(progress: Progress) -> None:
        if progress.done and not children:
            children.extend(child.pid for child in multiprocessing.active_children() if child.pid)
            os.kill(children[0], signal.SIGKILL)

    with raises("worker-died", options={"workers": 1}):
        run(long, store, device="cpu", graphs={"csbm": graph}, workers=2, progress=kill)
    assert len(children) == 2
    assert children_are_gone()


@contextmanager
def start_run(path: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    """Start a long run in its own process group, as under a terminal."""
    program = Path(__file__).with_name("runs.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(path), str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts background processes so that they ignore Ctrl-C; these tests may be one of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_long_jobs(process: subprocess.Popen[str], *, is_running: bool) -> None:
    """Read the progress until the long jobs run, or their workers have started."""
    assert process.stdout is not None
    num_reports = 0
    for line in process.stdout:
        done, total, *_ = line.split()
        num_reports += int(total) > 1_000_000
        if num_reports and (int(done) > 0 if is_running else num_reports == 2):
            return
    raise AssertionError(process.stderr and process.stderr.read())


@pytest.mark.parametrize(("workers", "is_running"), [(1, True), (2, True), (2, False)])
def test_interrupt_stops_at_once_and_keeps_finished_trials(
    tmp_path: Path, workers: int, is_running: bool, group_is_gone: Any
) -> None:
    path = tmp_path / "results.sqlite"
    with start_run(path, workers) as process:
        wait_for_long_jobs(process, is_running=is_running)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)  # of hours
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1, errors  # the parent's own
    assert group_is_gone(process.pid)
    with Store(path) as store:
        assert len(store) == 4
        assert {spec.epochs for spec in store.trials_by_spec()} == {20}


def test_killed_run_leaves_no_process_and_resumes(tmp_path: Path, group_is_gone: Any) -> None:
    path = tmp_path / "results.sqlite"
    with start_run(path, 2) as process:
        wait_for_long_jobs(process, is_running=True)
        os.kill(process.pid, signal.SIGKILL)  # the parent alone
        process.wait()
        assert group_is_gone(process.pid)
    with Store(path) as store:
        specs = list(store.trials_by_spec())
        assert len(store) == 2 * len(specs) == 4
        requested = [*specs, specs[0].replace(depth=3)]
        graphs = {"csbm": csbm(**GRAPH)}
        assert run(pairs_of(requested, range(2)), store, device="cpu", graphs=graphs, workers=1) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_concurrent_cuda_jobs_equal_separate_jobs(graph: Graph, store: Store) -> None:
    specs = [Spec("csbm", "GCN", depth, norm="PN-SI", epochs=100) for depth in (2, 3, 4, 5, 6)]
    run(pairs_of(specs, range(3)), store, device="cuda", graphs={"csbm": graph})
    for spec in specs:
        alone = train(graph, spec, range(3), "cuda")
        stored = store.trials(spec.on(graph))
        assert [trial.test_loss for trial in stored] == [trial.test_loss for trial in alone]


def test_spec_of_another_graph_raises(graph: Graph, store: Store, raises: Any) -> None:
    spec = Spec("mine", "SGC", 2).on(graph)
    with raises("other-graph", value=spec.dataset):
        run([(spec, 0)], store, device="cpu", graphs={"mine": csbm(**GRAPH | {"seed": 2})}, workers=1)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"device": "gpu7"}, "unknown-device"),
        ({"workers": 0}, "not-a-whole-number"),
        ({"minutes": float("nan")}, "not-a-number"),
        ({"on": "moon"}, "unknown-choice"),
    ],
)
def test_invalid_options_raise_at_once(wrong: dict[str, Any], code: str, raises: Any) -> None:
    (value,) = wrong.values()
    with raises(code) as caught:
        Running(**wrong)
    assert caught.value.value is value


def test_device_on_cluster_is_not_checked_here() -> None:
    assert Running("gpu7", on="ray").where == {"device": "gpu7", "root": None, "workers": None, "on": "ray"}


def test_time_limit_counts_from_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    never, after_two = Running().clock(), Running(minutes=2).clock()
    now += 119
    assert (never(), after_two()) == (False, False)
    now += 2
    assert (never(), after_two()) == (False, True)
