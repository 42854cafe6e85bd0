import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from pairnorm.data import Graph, csbm, load
from pairnorm.train import Progress, Spec, Store, run, train
from pairnorm.train.jobs import CACHE_BYTES, SGC_BYTES, Job, Pair, plan
from pairnorm.train.pools import Workers
from pairnorm.train.schedule import Running

PROGRAM = """
import resource, torch
from pairnorm.train.pools import keep_freed_memory
def epoch():
    states = [torch.ones(2**20) for _ in range(20)]
for prepare in (lambda: None, keep_freed_memory):
    prepare()
    epoch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        epoch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is the C library of Linux")
def test_memory_that_was_freed_comes_without_page_faults():
    given_back, kept = map(int, subprocess.check_output([sys.executable, "-c", PROGRAM]).split())
    pages = 5 * 20 * 2**20 * 4 // 4096
    assert kept < pages / 10
    assert kept < given_back


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIBIBYTE = 2**30
CORES = 2


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much memory a pretended CUDA device has free."""
    free = [80 * GIBIBYTE]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free[0], free[0]))
    return free


def pairs_of(specs: list[Spec], seeds: range) -> list[Pair]:
    return list(product(specs, seeds))


def check_covers(jobs: list[Job], pairs: list[Pair]) -> None:
    planned = [pair for job in jobs for pair in job.pairs]
    assert len(planned) == len(set(planned)) == len(pairs)
    assert set(planned) == set(pairs)


def test_pairs_of_one_architecture_run_side_by_side_whatever_is_missing(
    graph: Graph, memory: list[int]
) -> None:
    specs = [
        Spec("csbm", "GCN", 2, norm=norm, missing_rate=rate)
        for norm in ("none", "PN-SI")
        for rate in (0, 0.5, 1)
    ]
    pairs = pairs_of(specs, range(3))
    jobs = plan(graph, pairs, CUDA)
    check_covers(jobs, pairs)
    assert sorted(len(job.pairs) for job in jobs) == [9, 9]
    for job in jobs:
        assert len({spec.norm for spec, _ in job.pairs}) == 1
        assert {spec.missing_rate for spec, _ in job.pairs} == {0, 0.5, 1}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "GAT", "hidden": 32},
        {"depth": 4},
        {"hidden": 16},
        {"norm": "PN"},
        {"scale": 2.0},
        {"order": "before"},
        {"skip": 1},
        {"dropout": 0.5},
        {"adjacency": "sym"},
        {"epochs": 7},
        {"missing_kind": "entries", "missing_rate": 0.5},
    ],
    ids=str,
)
def test_different_architectures_and_protocols_are_jobs_of_their_own(
    graph: Graph, memory: list[int], change: dict[str, object]
) -> None:
    spec = Spec("csbm", "GCN", 3, norm="PN-SI", hidden=32)
    jobs = plan(graph, [(spec, 0), (spec.replace(**change), 0)], CUDA)
    assert len(jobs) == 2


@pytest.mark.parametrize("model", ["GCN", "SGC"])
@pytest.mark.parametrize("change", [{"learning_rate": 0.1}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize(("device", "count"), [(CUDA, 1), (CPU, 2), (None, 2)], ids=str)
def test_optimizers_share_a_job_on_cuda(
    graph: Graph,
    memory: list[int],
    model: str,
    change: dict[str, float],
    device: torch.device | None,
    count: int,
) -> None:
    spec = Spec("csbm", model, 2, norm="PN")
    assert len(plan(graph, [(spec, 0), (spec.replace(**change), 0)], device, cores=1)) == count


def test_every_trial_of_an_sgc_has_just_its_own_optimizers(graph: Graph, memory: list[int]) -> None:
    def pairs_at(rate: float, rates: tuple[float, ...], seed: int) -> list[Pair]:
        specs = [
            Spec("csbm", "SGC", depth, norm="PN", scale=scale, missing_rate=rate, learning_rate=learning_rate)
            for depth in (3, 5)
            for scale in (0.1, 10)
            for learning_rate in rates
        ]
        return [(spec, seed) for spec in specs]

    search = [*pairs_at(0, (0.2, 0.05), 0), *pairs_at(1, (0.2, 0.05), 0)]
    best = [*pairs_at(0, (0.2,), 1), *pairs_at(1, (0.05,), 2)]
    jobs = plan(graph, search + best, CUDA)
    check_covers(jobs, search + best)
    assert {frozenset(job.pairs) for job in jobs} == {frozenset(search), frozenset(best)}
    (job,) = (job for job in jobs if set(job.pairs) == set(best))
    own = [[(spec.learning_rate, spec.scale, seed) for spec, seed in variants] for variants in job.variants]
    assert own == [[(0.05, 0.1, 2), (0.05, 10, 2)], [(0.2, 0.1, 1), (0.2, 10, 1)]]


def test_a_trial_that_wants_fewer_variants_has_its_last_repeated() -> None:
    specs = [Spec("csbm", "SGC", 2, norm="PN", scale=scale) for scale in (0.1, 10)]
    job = Job(((specs[1], 0), (specs[0].replace(depth=4), 0), (specs[0], 1)))
    scales = [[(spec.scale, seed) for spec, seed in own] for own in job.variants]
    assert scales == [[(0.1, 0), (10, 0)], [(0.1, 1), (0.1, 1)]]


def test_the_weights_of_many_variants_take_room_from_trials(graph: Graph, memory: list[int]) -> None:
    spec = Spec("csbm", "SGC", 2, norm="PN")
    memory[0] = 2**26
    counts = []
    for variants in (1, 8, 64):
        specs = [spec.replace(learning_rate=0.01 * (number + 1)) for number in range(variants)]
        counts.append(max(len(job.trials) for job in plan(graph, pairs_of(specs, range(200)), CUDA)))
    assert counts[0] > counts[1] > counts[2]


def test_all_depths_and_scales_of_an_sgc_share_a_job_and_a_propagation(
    graph: Graph, memory: list[int]
) -> None:
    specs = [
        Spec("csbm", "SGC", depth, norm="PN", scale=scale, missing_rate=rate)
        for depth in (1, 5, 9)
        for scale in (0.1, 10)
        for rate in (0, 1)
    ]
    pairs = pairs_of(specs, range(2))
    [job] = plan(graph, pairs, CUDA)
    assert len(job.pairs) == len(pairs) == 24
    assert (job.depths, len(job.trials)) == ([1, 5, 9], 4)
    assert [[spec.scale for spec, _ in own] for own in job.variants] == [[0.1, 10.0]] * 4
    scs = [Spec("csbm", "SGC", 2, norm="PN-SCS", scale=scale) for scale in (0.1, 10)]
    assert len(plan(graph, pairs_of(scs, range(2)), CUDA)) == 2


@pytest.mark.parametrize(
    ("model", "count", "room"), [("GCN", 7, CACHE_BYTES), ("GAT", 5, CACHE_BYTES), ("SGC", 150, SGC_BYTES)]
)
def test_on_a_cpu_the_state_of_a_job_has_its_room_and_jobs_are_even(
    model: str, count: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: CORES)
    graph = csbm(1200, features=100, seed=0)
    pairs = pairs_of([Spec("csbm", model, 2, norm="PN")], range(count))
    jobs = plan(graph, pairs, CPU)
    check_covers(jobs, pairs)
    sizes = [len(job.trials) for job in jobs]
    width = 100 if model == "SGC" else pairs[0][0].hidden
    most = min(room // (4 * 1200 * width), -(-count // CORES))
    assert 1 < max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(jobs) == -(-count // most), "fewer jobs would do"


def test_a_graph_larger_than_the_cache_still_gets_a_job_per_trial() -> None:
    graph = csbm(20_000, features=20, degree=3, seed=0)
    pairs = pairs_of([Spec("csbm", "GCN", 2)], range(3))
    assert [len(job.pairs) for job in plan(graph, pairs, CPU)] == [1, 1, 1]


def test_on_cuda_as_many_trials_run_side_by_side_as_the_free_memory_holds(
    graph: Graph, memory: list[int]
) -> None:
    pairs = pairs_of([Spec("csbm", "GCN", 20, norm="PN-SI")], range(40))
    counts = []
    for free in (80 * GIBIBYTE, 2**26, 2**25, 2**20):
        memory[0] = free
        jobs = plan(graph, pairs, CUDA)
        check_covers(jobs, pairs)
        counts.append(len(jobs))
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[1] < counts[2] < counts[3] == 40


def test_costs_add_up_and_long_jobs_come_first(graph: Graph, memory: list[int]) -> None:
    gnn = [Spec("csbm", "GCN", depth, epochs=10) for depth in (2, 30, 7)]
    sgc = [Spec("csbm", "SGC", depth, norm="PN", scale=s, epochs=10) for depth in (1, 40) for s in (1, 10)]
    jobs = plan(graph, pairs_of(gnn + sgc, range(3)), CUDA)
    costs = [job.cost for job in jobs]
    assert costs == sorted(costs, reverse=True)
    # A GCN costs its depth per trial and epoch; an SGC one for each depth, whatever the scales.
    assert costs == [10 * 3 * 30, 10 * 3 * 7, 10 * 3 * 2, 10 * 3 * 2]


@pytest.mark.parametrize("model", ["GCN", "SGC"])
def test_halves_share_out_the_trials_until_one_is_left(model: str) -> None:
    specs = [
        Spec("cora", model, 2, norm="PN", scale=scale) for scale in ((1, 10) if model == "SGC" else (1,))
    ]
    job = Job(tuple(pairs_of(specs, range(5))))
    halves = job.halves()
    check_covers(halves, list(job.pairs))
    assert sorted(len(half.trials) for half in halves) == [2, 3]
    assert sum(half.cost for half in halves) == job.cost
    single = Job(tuple(pairs_of(specs, range(1))))
    assert single.halves() == [single]


def test_nothing_to_do_is_no_job(graph: Graph) -> None:
    assert plan(graph, [], CPU) == []


def test_no_core_waits_while_another_has_all_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = pairs_of([Spec("csbm", "SGC", 2)], range(5))
    graph = csbm(100, features=20, seed=0)
    for cores, sizes in ((1, [5]), (2, [3, 2]), (16, [1] * 5), (None, [5])):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert sorted((len(job.trials) for job in plan(graph, pairs, CPU)), reverse=True) == sizes


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_a_graph_without_features_is_refused(raises: Any, graph: Graph, model: str) -> None:
    bare = graph.replace(features=torch.zeros(graph.num_nodes, 0))
    with raises("no-features"):
        plan(bare, [(Spec("csbm", model, 2), 0)], CPU)


GRAPH = {"nodes": 200, "classes": 4, "features": 60, "seed": 1}  # of runs.py
GCN = Spec("csbm", "GCN", 2, norm="PN-SI", epochs=30)
SPECS = [
    GCN,
    GCN.replace(missing_rate=1),
    GCN.replace(depth=4),
    *(Spec("csbm", "SGC", depth, norm="PN", scale=scale, epochs=30) for depth in (1, 3) for scale in (1, 10)),
]
METRICS = [f"{part}_{what}" for part in ("train", "validation", "test") for what in ("loss", "accuracy")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "results.sqlite") as store:
        yield store


def pairs_of_run(specs: list[Spec], seeds: range) -> list[tuple[Spec, int]]:
    return [(spec, seed) for spec in specs for seed in seeds]


def same_numbers(left: Store, right: Store) -> None:
    assert left.trials_by_spec().keys() == right.trials_by_spec().keys()
    for spec, trials in left.trials_by_spec().items():
        for ours, theirs in zip(trials, right.trials(spec), strict=True):
            assert (ours.seed, ours.best_epoch) == (theirs.seed, theirs.best_epoch)
            for name in METRICS:
                assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4)
            assert ours.measures == pytest.approx(dict(theirs.measures), rel=1e-4)


def test_only_what_is_missing_is_trained(graph: Graph, store: Store) -> None:
    options = {"device": "cpu", "graphs": {"csbm": graph}, "workers": 1}
    assert run(pairs_of_run(SPECS, range(2)), store, **options) == 2 * len(SPECS)
    assert len(store) == 2 * len(SPECS)
    before = store.trials_by_spec()
    assert run(pairs_of_run(SPECS, range(2)), store, **options) == 0
    assert run(pairs_of_run([*SPECS, GCN.replace(depth=3)], range(3)), store, **options) == len(SPECS) + 3
    assert all(store.trials(spec)[:2] == trials for spec, trials in before.items())
    for trial, alone in zip(store.trials(GCN.on(graph)), train(graph, GCN, range(3), "cpu"), strict=True):
        assert trial.test_loss == pytest.approx(alone.test_loss, rel=1e-4)


def test_a_depth_of_sgc_is_written_before_the_next_is_trained(graph: Graph, store: Store) -> None:
    specs = [Spec("csbm", "SGC", depth, epochs=30) for depth in (1, 2, 3)]

    def interrupt(progress: Progress) -> None:
        if progress.done > progress.total / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(pairs_of_run(specs, range(1)), store, device="cpu", graphs={"csbm": graph}, progress=interrupt)
    assert [spec.depth for spec in store.trials_by_spec()] == [1]


def test_progress_rises_to_the_total(graph: Graph, store: Store) -> None:
    told: list[Progress] = []
    pairs = pairs_of_run(SPECS, range(2))
    run(pairs, store, device="cpu", graphs={"csbm": graph}, workers=1, progress=told.append)
    total = sum(job.cost for job in plan(graph, pairs, torch.device("cpu")))
    done = [progress.done for progress in told]
    assert done[0] == 0
    assert done == sorted(done)
    assert done[-1] == total
    assert {(progress.total, progress.trials) for progress in told} == {(total, len(pairs))}
    assert {Spec.parse(progress.label) for progress in told[1:]} <= {spec.on(graph) for spec in SPECS}


def test_processes_give_the_numbers_of_this_one_and_their_origin_and_say_nothing(
    graph: Graph,
    store: Store,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAIRNORM_COMMIT", "the worker's")
    told: list[Progress] = []
    pairs = pairs_of_run(SPECS, range(2))
    options = {"device": "cpu", "graphs": {"csbm": graph}, "measures": ["row_diff"], "curves": True}
    assert run(pairs, store, workers=2, progress=told.append, **options) == len(pairs)
    done = [progress.done for progress in told]
    assert done == sorted(done)
    assert done[-1] == told[-1].total
    assert capfd.readouterr() == ("", "")
    origins = [result.origin for result in store.results()]
    assert {origin.git_commit for origin in origins} == {"the worker's"}
    assert sum(1 / origin.shared_by for origin in origins) == pytest.approx(len(set(origins)))
    with Store(tmp_path / "here.sqlite") as here:
        run(pairs, here, workers=1, **options)
        same_numbers(store, here)
    assert len(store.trials(GCN.on(graph))[0].curves["train_loss"]) == 30


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_fails_fails_the_run_and_what_had_finished_is_kept(
    raises: Any, graph: Graph, store: Store, workers: int
) -> None:
    broken = graph.replace(validation=torch.zeros_like(graph.validation))
    good = pairs_of_run([GCN.replace(epochs=1), GCN.replace(epochs=2)], range(2))
    bad = [(GCN.replace(dataset="broken"), 0)]
    with raises("no-split"):
        run([*good, *bad], store, device="cpu", graphs={"csbm": graph, "broken": broken}, workers=workers)
    kept = sum(len(trials) for trials in store.trials_by_spec(dataset=GCN.on(graph).dataset).values())
    assert kept == len(store) >= (len(good) if workers == 1 else 2)
    assert run(good, store, device="cpu", graphs={"csbm": graph}, workers=1) == len(good) - kept


def test_a_stop_that_is_asked_for_comes_after_the_jobs_under_way(graph: Graph, store: Store) -> None:
    options = {"device": "cpu", "graphs": {"csbm": graph}, "workers": 1}
    assert run(pairs_of_run(SPECS, range(2)), store, should_stop=lambda: len(store) > 0, **options) == len(
        store
    )
    assert 0 < len(store) < 2 * len(SPECS)
    left = 2 * len(SPECS) - len(store)
    assert run(pairs_of_run(SPECS, range(2)), store, **options) == left


def test_a_named_graph_is_loaded_with_the_split_of_the_spec(
    graph: Graph, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(name: str, root: object, split: str | None) -> Graph:
        asked.append((name, root, split))
        return graph

    monkeypatch.setattr(sys.modules[run.__module__], "load", load)
    spec = Spec("cora", "GCN", 1, epochs=2)
    run([(spec, 0), (spec.replace(split="random"), 0)], store, device="cpu", root="here", workers=1)
    assert asked == [("cora", "here", None), ("cora", "here", "random")]


def test_a_given_graph_is_split_as_the_spec_says(graph: Graph, store: Store) -> None:
    spec = GCN.replace(epochs=2, split="per-class-5")
    run([(GCN.replace(epochs=2), 0), (spec, 0)], store, device="cpu", graphs={"csbm": graph}, workers=1)
    [expected] = train(graph.with_split("per-class-5"), spec, [0], "cpu")
    assert store.trials(spec.on(graph)) == [expected]
    assert store.trials(GCN.on(graph).replace(epochs=2)) not in ([], [expected])


def test_the_path_of_a_store_will_do(graph: Graph, tmp_path: Path) -> None:
    path, options = tmp_path / "own" / "results.sqlite", {"device": "cpu", "graphs": {"csbm": graph}}
    assert run([(SPECS[0], 0)], path, **options, workers=1) == 1
    assert run([(SPECS[0], 0)], str(path), **options, workers=1) == 0
    with Store(path, read_only=True) as store:
        assert len(store) == 1


def test_two_graphs_of_one_name_have_trials_of_their_own(graph: Graph, store: Store) -> None:
    other = csbm(**GRAPH | {"seed": 2})
    for name in ("csbm", "cora", "mine"):
        spec = Spec(name, "SGC", 2, epochs=3)
        for one in (graph, other):
            assert run([(spec, 0)], store, device="cpu", graphs={name: one}, workers=1) == 1
            assert store.trials(spec.on(one)) == train(one, spec, [0], "cpu")
        assert store.trials(spec) == []


def test_a_named_graph_that_is_passed_keeps_its_plain_name(store: Store) -> None:
    spec, cora = Spec("cora", "SGC", 2, epochs=2), load("cora")
    assert run([(spec, 0)], store, device="cpu", graphs={"cora": cora}, workers=1) == 1
    assert run([(spec, 0)], store, device="cpu", workers=1) == 0
    assert spec.on(cora) == spec
    assert spec.on(cora.with_split("random")) != spec
    assert Spec("csbm", "SGC", 2).on(load("csbm")) == Spec("csbm", "SGC", 2)


@pytest.mark.parametrize("pairs", [SPECS[0], SPECS, [("csbm", 0)], 3])
def test_what_is_no_pair_of_spec_and_seed_is_named(raises: Any, store: Store, pairs: Any) -> None:
    with raises("wrong-type"):
        run(pairs, store)


def test_what_is_no_store_and_what_has_no_name_is_said(raises: Any, graph: Graph, store: Store) -> None:
    with raises("wrong-type", "store is 3", value=3):
        run([(SPECS[0], 0)], 3)  # type: ignore[arg-type]
    with raises("wrong-type", "graphs is a Graph"):
        run([(SPECS[0], 0)], store, graphs=graph)  # type: ignore[arg-type]
    with raises("wrong-type", "graphs['mine'] is a str"):
        run([(SPECS[0], 0)], store, graphs={"mine": "mine.npz"})  # type: ignore[dict-item]


def test_a_graph_of_ones_own_is_asked_for_by_its_name(raises: Any, store: Store) -> None:
    spec = SPECS[0]
    with raises("unknown-choice", "the dataset of a spec is 'mine'", value="mine") as caught:
        run([(spec.replace(dataset="mine"), 0)], store)
    assert "graphs={'mine': graph}" in str(caught.value)
    with raises("unknown-choice", value="halves") as caught:
        run([(spec.replace(split="halves"), 0)], store)
    assert "graphs=" not in str(caught.value)


def test_no_workers_are_refused(raises: Any, graph: Graph, store: Store) -> None:
    with raises("not-a-whole-number", value=0):
        run([(GCN, 0)], store, device="cpu", graphs={"csbm": graph}, workers=0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"device": "gpu"}, "unknown-device"),
        ({"measures": ["blur"]}, "unknown-choice"),
        ({"workers": 0}, "not-a-whole-number"),
        ({"pairs": [(GCN, 2**64)]}, "not-a-whole-number"),
    ],
)
def test_wrong_arguments_leave_no_file(
    raises: Any, graph: Graph, store: Store, change: dict[str, Any], code: str
) -> None:
    options = {"pairs": [(GCN, 0)], "device": "cpu", "graphs": {"csbm": graph}, "workers": 1}
    with raises(code):
        run(store=store, **options | change)
    assert not store.path.exists()


def test_a_store_that_cannot_be_written_is_found_before_training(
    raises: Any, graph: Graph, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(GCN, [], seconds=0.0)
    monkeypatch.setattr("pairnorm.train.pools.train_job", lambda *words, **options: 1 / 0)
    with Store(store.path, read_only=True) as reader, raises("read-only"):
        run([(GCN, 0)], reader, device="cpu", graphs={"csbm": graph}, workers=1)


def test_a_worker_that_is_killed_ends_the_run_and_says_what_helps(
    raises: Any, graph: Graph, store: Store
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
def started(path: Path, workers: int) -> Iterator[subprocess.Popen[str]]:
    """A long run in a process group of its own, as under a terminal, past its short jobs."""
    program = Path(__file__).with_name("runs.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(path), str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts what runs in the background deaf to Ctrl-C, and so may these tests have been started.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_long_jobs(process: subprocess.Popen[str], *, under_way: bool) -> None:
    """Read the progress until the long jobs are under way, or workers have been started for them."""
    assert process.stdout is not None
    told = 0
    for line in process.stdout:
        done, total, *_ = line.split()
        told += int(total) > 1_000_000
        if told and (int(done) > 0 if under_way else told == 2):
            return
    raise AssertionError(process.stderr and process.stderr.read())


def children_are_gone(seconds: float = 20) -> bool:
    """Asked again and again: where a thread of the executor waits for it too, a child may seem to live."""
    end = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.05)
    return not multiprocessing.active_children()


def group_is_gone(group: int, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("workers", "under_way"), [(1, True), (2, True), (2, False)])
def test_an_interrupt_stops_a_run_at_once_and_keeps_all_that_finished(
    tmp_path: Path, workers: int, under_way: bool
) -> None:
    path = tmp_path / "results.sqlite"
    with started(path, workers) as process:
        wait_for_long_jobs(process, under_way=under_way)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)  # of hours
    assert process.returncode == -signal.SIGINT
    assert said.count("Traceback") == said.count("KeyboardInterrupt") == 1, said  # the parent's own
    assert group_is_gone(process.pid)
    with Store(path) as store:
        assert len(store) == 4
        assert {spec.epochs for spec in store.trials_by_spec()} == {20}


def test_a_killed_run_leaves_no_process_behind_and_is_taken_up_again(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with started(path, 2) as process:
        wait_for_long_jobs(process, under_way=True)
        os.kill(process.pid, signal.SIGKILL)  # the parent alone
        process.wait()
        assert group_is_gone(process.pid)
    with Store(path) as store:
        specs = list(store.trials_by_spec())
        assert len(store) == 2 * len(specs) == 4
        wanted = [*specs, specs[0].replace(depth=3)]
        graphs = {"csbm": csbm(**GRAPH)}
        assert run(pairs_of_run(wanted, range(2)), store, device="cpu", graphs=graphs, workers=1) == 2


def test_workers_of_any_kind_end_with_a_parent_that_is_killed() -> None:
    program = """
import time
from pairnorm.train.pools import Workers
with Workers(2) as pool:
    pool.submit(print, "working", flush=True).result()
    for _ in range(2):
        pool.submit(time.sleep, 600)
    print("begun", flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["working\n", "begun\n"]
        os.kill(process.pid, signal.SIGKILL)
    assert group_is_gone(process.pid)


def test_workers_finish_but_end_at_once_where_there_was_an_error() -> None:
    with Workers(1) as pool:
        done = pool.submit(torch.get_num_threads)
    assert done.result() == 1

    def fail() -> None:
        with Workers(1) as pool:
            pool.submit(time.sleep, 600)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert children_are_gone()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_jobs_beside_one_another_on_cuda_give_what_they_give_alone(graph: Graph, store: Store) -> None:
    specs = [Spec("csbm", "GCN", depth, norm="PN-SI", epochs=100) for depth in (2, 3, 4, 5, 6)]
    run(pairs_of_run(specs, range(3)), store, device="cuda", graphs={"csbm": graph})
    for spec in specs:
        alone = train(graph, spec, range(3), "cuda")
        assert [trial.test_loss for trial in store.trials(spec)] == [trial.test_loss for trial in alone]


def test_another_graph_of_the_same_name_is_trained_anew(tmp_path: Path) -> None:
    """Its trials were once taken for those of the first graph."""
    first, second = (csbm(100, classes=2, seed=seed).with_split("per-class-5") for seed in (0, 1))
    spec = Spec("mine", "SGC", 2, epochs=2)
    with Store(tmp_path / "s.sqlite") as store:
        for graph, trained in ((first, 1), (first, 0), (second, 1), (first, 0)):
            assert run([(spec, 0)], store, device="cpu", graphs={"mine": graph}, workers=1) == trained
        assert store.trials(spec) == []
        assert [len(store.trials(spec.on(graph))) for graph in (first, second)] == [1, 1]
        assert run([(spec.on(first), 0)], store, device="cpu", graphs={"mine": first}, workers=1) == 0


def test_a_spec_of_one_graph_is_not_trained_on_another(tmp_path: Path, raises) -> None:
    first, second = (csbm(100, classes=2, seed=seed).with_split("per-class-5") for seed in (0, 1))
    spec = Spec("mine", "SGC", 2).on(first)
    with Store(tmp_path / "s.sqlite") as store, raises("other-graph", value=spec.dataset):
        run([(spec, 0)], store, device="cpu", graphs={"mine": second}, workers=1)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"device": "gpu7"}, "unknown-device"),
        ({"workers": 0}, "not-a-whole-number"),
        ({"minutes": float("nan")}, "not-a-number"),
        ({"on": "moon"}, "unknown-choice"),
    ],
)
def test_where_nothing_can_be_run_is_an_error_at_once(wrong: dict[str, Any], code: str, raises: Any) -> None:
    (value,) = wrong.values()
    with raises(code) as caught:
        Running(**wrong)
    assert caught.value.value is value


def test_on_a_cluster_a_device_is_for_others_to_find() -> None:
    assert Running("gpu7", on="ray").where == {"device": "gpu7", "root": None, "workers": None, "on": "ray"}


def test_minutes_count_from_the_clocks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    never, after_two = Running().clock(), Running(minutes=2).clock()
    now += 119
    assert (never(), after_two()) == (False, False)
    now += 2
    assert (never(), after_two()) == (False, True)
