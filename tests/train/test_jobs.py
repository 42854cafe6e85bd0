from itertools import product
from typing import Any

import pytest
import torch

from pairnorm.data import Graph, csbm
from pairnorm.train import Spec
from pairnorm.train.engine import CACHE_BYTES, SGC_BYTES, Job, Pair, plan

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIBIBYTE = 2**30
CORES = 2


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free bytes of a simulated CUDA device, in a list."""
    free = [80 * GIBIBYTE]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free[0], free[0]))
    return free


def pairs_of(specs: list[Spec], seeds: range) -> list[Pair]:
    return list(product(specs, seeds))


def check_covers(jobs: list[Job], pairs: list[Pair]) -> None:
    planned = [pair for job in jobs for pair in job.pairs]
    assert len(planned) == len(set(planned)) == len(pairs)
    assert set(planned) == set(pairs)


def test_pairs_of_one_architecture_share_a_job_at_any_missing_rate(graph: Graph, memory: list[int]) -> None:
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
def test_architectures_and_protocols_have_separate_jobs(
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


def test_last_variant_of_a_trial_is_repeated() -> None:
    specs = [Spec("csbm", "SGC", 2, norm="PN", scale=scale) for scale in (0.1, 10)]
    job = Job(((specs[1], 0), (specs[0].replace(depth=4), 0), (specs[0], 1)))
    scales = [[(spec.scale, seed) for spec, seed in own] for own in job.variants]
    assert scales == [[(0.1, 0), (10, 0)], [(0.1, 1), (0.1, 1)]]


def test_memory_of_variants_reduces_trials_per_job(graph: Graph, memory: list[int]) -> None:
    spec = Spec("csbm", "SGC", 2, norm="PN")
    memory[0] = 2**26
    counts = []
    for variants in (1, 8, 64):
        specs = [spec.replace(learning_rate=0.01 * (number + 1)) for number in range(variants)]
        counts.append(max(len(job.trials) for job in plan(graph, pairs_of(specs, range(200)), CUDA)))
    assert counts[0] > counts[1] > counts[2]


def test_depths_and_scales_of_sgc_share_a_job(graph: Graph, memory: list[int]) -> None:
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
def test_cpu_jobs_fit_the_cache_and_are_even(
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


def test_graph_larger_than_cache_has_a_job_per_trial() -> None:
    graph = csbm(20_000, features=20, degree=3, seed=0)
    pairs = pairs_of([Spec("csbm", "GCN", 2)], range(3))
    assert [len(job.pairs) for job in plan(graph, pairs, CPU)] == [1, 1, 1]


def test_cuda_jobs_fit_free_memory(graph: Graph, memory: list[int]) -> None:
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


def test_costs_sum_and_long_jobs_come_first(graph: Graph, memory: list[int]) -> None:
    gnn = [Spec("csbm", "GCN", depth, epochs=10) for depth in (2, 30, 7)]
    sgc = [Spec("csbm", "SGC", depth, norm="PN", scale=s, epochs=10) for depth in (1, 40) for s in (1, 10)]
    jobs = plan(graph, pairs_of(gnn + sgc, range(3)), CUDA)
    costs = [job.cost for job in jobs]
    assert costs == sorted(costs, reverse=True)
    # A GCN costs its depth per trial and epoch; an SGC one for each depth, whatever the scales.
    assert costs == [10 * 3 * 30, 10 * 3 * 7, 10 * 3 * 2, 10 * 3 * 2]


@pytest.mark.parametrize("model", ["GCN", "SGC"])
def test_split_halves_trials_until_one_is_left(model: str) -> None:
    specs = [
        Spec("cora", model, 2, norm="PN", scale=scale) for scale in ((1, 10) if model == "SGC" else (1,))
    ]
    job = Job(tuple(pairs_of(specs, range(5))))
    halves = job.split()
    check_covers(halves, list(job.pairs))
    assert sorted(len(half.trials) for half in halves) == [2, 3]
    assert sum(half.cost for half in halves) == job.cost
    single = Job(tuple(pairs_of(specs, range(1))))
    assert single.split() == [single]


def test_no_pairs_give_no_job(graph: Graph) -> None:
    assert plan(graph, [], CPU) == []


def test_trials_are_divided_among_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = pairs_of([Spec("csbm", "SGC", 2)], range(5))
    graph = csbm(100, features=20, seed=0)
    for cores, sizes in ((1, [5]), (2, [3, 2]), (16, [1] * 5), (None, [5])):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert sorted((len(job.trials) for job in plan(graph, pairs, CPU)), reverse=True) == sizes


@pytest.mark.parametrize("model", ["SGC", "GCN", "GAT"])
def test_graph_without_features_raises(raises: Any, graph: Graph, model: str) -> None:
    bare = graph.replace(features=torch.zeros(graph.num_nodes, 0))
    with raises("no-features"):
        plan(bare, [(Spec("csbm", model, 2), 0)], CPU)
