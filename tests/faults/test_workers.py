"""Workers that run out of memory end the run with a message with a hint."""

import pytest

from pairnorm.data import csbm
from pairnorm.train import Spec, Store, pools, run

STARVED = (
    MemoryError(),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: 12 bytes"
    ),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
)


@pytest.mark.parametrize("error", STARVED, ids=["python", "torch", "cuda"])
def test_out_of_memory_worker_hints_fewer_workers(raises, tmp_path, monkeypatch, error):
    def starve(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pools, "train_job", starve)
    graph = csbm(200, classes=2, seed=0)
    with Store(tmp_path / "store.sqlite") as store, raises("worker-died") as caught:
        run([(Spec("csbm", "SGC", 1), 0)], store, graphs={"csbm": graph}, device="cpu", workers=1)
    assert "--workers 1" in caught.value.typed()


def test_out_of_memory_command_is_not_a_bug(fails, corpus, tmp_path, monkeypatch):
    from pairnorm.classify import NodeClassifier

    monkeypatch.setattr(NodeClassifier, "predict_proba", lambda *_: (_ for _ in ()).throw(MemoryError()))
    graph = ["--nodes", corpus / "nodes.csv", "--edges", corpus / "edges.csv"]
    message = fails("predict", "--run", corpus / "run", *graph, "--out", tmp_path / "p.csv")
    assert "memory" in message
    assert not list(tmp_path.iterdir())
