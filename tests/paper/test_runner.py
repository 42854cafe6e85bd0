import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import run_python
from pairnorm.measure import MEASURES
from pairnorm.paper import runner as module
from pairnorm.paper.evidence import PAIRS, Layers, read_layers
from pairnorm.paper.experiments import CASE_STUDY, TUNED, Selection
from pairnorm.paper.runner import BINS, PaperSweep
from pairnorm.report.paper_report import write_outputs
from pairnorm.sweep.grid import Experiment
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.runner import Outcome
from pairnorm.train import Spec, Store, run
from pairnorm.train.schedule import Running

SMALL = {"datasets": ("cora",), "runs": 2, "epochs": 30, "depths": (1,), "missing": (0, 100)}
TINY = Selection(("table1",), **SMALL)  # type: ignore[arg-type]
TRIALS = 2 * 2 * 6  # runs, missing rates, SGC and 5 scales of SGC-PN


def train(path: Path, *experiments: Experiment, **options: Any) -> Outcome:
    with Store(path) as store:
        return PaperSweep(experiments).reproduce(store, Running("cpu", **options))


def count(path: Path) -> int:
    if not path.exists() or not path.stat().st_size:  # the file is there a moment before its tables are
        return 0
    with Store(path, read_only=True) as store:
        return len(store)


@pytest.mark.slow
def test_killed_sweep_resumes_to_identical_tables(tmp_path):
    killed, whole = tmp_path / "killed.sqlite", tmp_path / "whole.sqlite"
    program = f"""
from pairnorm.paper.experiments import Selection
from pairnorm.paper.runner import PaperSweep
from pairnorm.train import Store
from pairnorm.train.schedule import Running
with Store({str(killed)!r}) as store:
    PaperSweep(Selection(("table1",), **{SMALL!r}).experiments()).reproduce(store, Running("cpu", workers=2))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not count(killed):
        assert process.poll() is None, "finished before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = count(killed)
    assert 0 < kept < TRIALS
    # The workers notice that their parent has died: no process of the group remains.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("workers outlive the process that was killed")

    assert train(killed, *TINY.experiments(), workers=1) == Outcome(TRIALS - kept, 0)
    assert train(whole, *TINY.experiments(), workers=1) == Outcome(TRIALS, 0)
    assert count(killed) == count(whole) == TRIALS
    for path in (killed, whole):
        write_outputs(["table1"], ResultIndex.read(path), {}, TINY, tmp_path / path.stem)
    for name in ("table1.csv", "table1.tex"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_zero_time_limit_trains_nothing(tmp_path):
    assert train(tmp_path / "s.sqlite", *TINY.experiments(), minutes=0) == Outcome(0, TRIALS)


def test_search_continues_with_second_stage(tmp_path):
    smaller = {"SGC-tuned": {"model": "SGC", "depth": 1, "learning_rate": (0.005, 0.2)}}
    search = Selection(datasets=["cora"], missing=[100], runs=3, epochs=2).narrow(
        replace(TUNED, methods=smaller)
    )
    assert search is not None
    # Two settings once, then the two other runs of the better one.
    assert train(tmp_path / "s.sqlite", search, workers=1) == Outcome(4, 0)
    with Store(tmp_path / "s.sqlite") as store:
        assert PaperSweep([search]).count_pending(store) == 0
        assert PaperSweep([replace(search, missing={100: 5})]).count_pending(store) == 2


def test_figure_1_trials_have_measures(tmp_path, monkeypatch):
    for name in ("row_diff", "col_diff"):  # the true ones take seconds
        quick = MEASURES[name]._replace(function=lambda state: state.abs().amax((0, -1)))
        monkeypatch.setitem(MEASURES, name, quick)
    path = tmp_path / "s.sqlite"
    both = Selection(("figure1", "table1"), ("cora",), runs=1, epochs=2, depths=(1,), missing=(0,))
    train(path, *both.experiments(), workers=1)
    with Store(path) as store:
        cells = store.trials_by_spec()
    assert len(cells) == 12
    for spec, [trial] in cells.items():
        assert set(trial.measures) == ({"row_diff", "col_diff"} if spec.split == "random" else set())


def test_case_study_is_measured_once(tmp_path, monkeypatch):
    calls: list[Spec] = []

    def fake(graph: object, spec: Spec, *_: object) -> Layers:
        calls.append(spec)
        return Layers(
            0.5,
            *({kind: [1.0] for kind in PAIRS} for _ in range(2)),
            edges={kind: [float(edge) for edge in range(BINS + 1)] for kind in PAIRS},
            histograms={kind: [[3] * BINS] for kind in PAIRS},
        )

    monkeypatch.setattr(module, "measure_layers", fake)
    path = tmp_path / "s.sqlite"
    assert [train(path, CASE_STUDY), train(path, CASE_STUDY)] == [Outcome(6, 0), Outcome(0, 0)]
    with Store(path, read_only=True) as store:
        assert len(calls) == len(read_layers(store)) == 6


def test_sweep_and_report_need_no_optional_library(tmp_path):
    """The machine with the accelerator has no terminal library, no pandas and no matplotlib."""
    blocked = ["typer", "rich", "pandas", "matplotlib", "pyarrow", "tensorboard", "networkx", "platformdirs",
               "sklearn", "torch_geometric"]  # fmt: skip
    program = f"""
import sys
from pathlib import Path
sys.modules.update(dict.fromkeys({blocked!r}))
from pairnorm.paper.experiments import Selection
from pairnorm.report.paper_report import write_outputs, write_report
from pairnorm.sweep.index import ResultIndex
from pairnorm.paper.runner import PaperSweep
from pairnorm.sweep.tables import terminal
from pairnorm.train import Store
from pairnorm.train.schedule import Running
selection = Selection(("table1",), ("cora",), runs=1, epochs=1, depths=(1,), missing=(100,))
path, out = Path({str(tmp_path)!r}) / "s.sqlite", Path({str(tmp_path)!r}) / "out"
with Store(path) as store:
    PaperSweep(selection.experiments()).reproduce(store, Running("cpu", workers=1))
outputs = write_outputs(["table1"], ResultIndex.read(path), {{}}, selection, out)
print(terminal(outputs.tables["table1"]))
write_report(path, out, selection)
"""
    done = run_python("-c", program)
    assert "SGC-PN" in done.stdout
    assert {"table1.csv", "table1.tex", "report.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert not (tmp_path / "out" / "figures").exists()
    assert (
        "There are no figures: matplotlib is not installed." in (tmp_path / "out" / "report.md").read_text()
    )


def test_unsure_claims_get_more_runs(tmp_path, monkeypatch):
    spec = Spec("cora", "SGC", 1, epochs=2)

    def requested(results: ResultIndex, experiment: Experiment) -> list[tuple[Spec, int]]:
        assert results.all_runs(spec).trials[0].seed == 0  # it sees what the store has
        return [(spec, seed) for seed in range(experiment.missing[0])]

    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        run([(spec, 0)], store, device="cpu")
    monkeypatch.setattr(module, "requested_runs", requested)
    [calls] = Selection(("claims",), runs=3).experiments()
    assert train(path, calls, workers=1) == Outcome(trained=2, pending=0)
