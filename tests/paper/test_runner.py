import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pairnorm import cli
from pairnorm.measure import MEASURES
from pairnorm.paper import runner as module
from pairnorm.paper.case_study import Layers, file_beside, read_layers
from pairnorm.paper.experiments import EXPERIMENTS, TUNED
from pairnorm.paper.runner import Lines, main
from pairnorm.train import Progress, Spec, Store

TINY = ["--dataset", "cora", "--runs", "2", "--epochs", "30", "--depths", "1", "--missing", "0,100"]
TRIALS = 2 * 2 * 6  # runs, missing rates, SGC and 5 scales of SGC-PN


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", *map(str, words)]


def count(path: Path) -> int:
    if not path.exists():
        return 0
    with Store(path, read_only=True) as store:
        return len(store)


def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed.sqlite", tmp_path / "whole.sqlite"
    words = ["pairnorm.paper.runner", "table1", *TINY, "--workers", "2", "--store"]
    process = subprocess.Popen(
        command(*words, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not count(killed):
        assert process.poll() is None, "finished before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = count(killed)
    assert 0 < kept < TRIALS
    # The workers see that their parent is gone: nobody of the group is left.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("workers outlive the process that was killed")

    resumed = subprocess.run(command(*words, killed), capture_output=True, text=True, check=True)
    assert f"{TRIALS - kept} trials trained, 0 left" in resumed.stdout
    assert main(["table1", *TINY, "--workers", "1", "--store", str(whole)]) == 0
    assert count(killed) == count(whole) == TRIALS

    report = command("pairnorm", "report", "--store", killed, "--out", tmp_path / "a", *TINY)
    printed = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    assert "table1: 4 of 4 places filled" in printed
    assert cli.main(["report", "--store", str(whole), "--out", str(tmp_path / "b"), *TINY]) == 0
    for name in ("table1.csv", "table1.tex"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_no_time_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "s.sqlite"
    assert main(["table1", *TINY, "--minutes", "0", "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    assert f"0 trials trained, {TRIALS} left" in printed
    assert "The same command goes on from here." in printed


def test_a_search_goes_on_to_its_second_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = {"SGC-tuned": {"model": "SGC", "depth": 1, "learning_rate": (0.005, 0.2)}}
    monkeypatch.setitem(EXPERIMENTS, "tuned", replace(TUNED, methods=smaller))
    words = ["tuned", "--dataset", "cora", "--missing", "100", "--runs", "3", "--epochs", "2"]
    assert main([*words, "--workers", "1", "--store", str(tmp_path / "s.sqlite")]) == 0
    # Two settings once, then the two other runs of the better one.
    assert "4 trials trained, 0 left" in capsys.readouterr().out


def test_measures_are_taken_for_figure_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("row_diff", "col_diff"):  # the true ones take seconds
        quick = MEASURES[name]._replace(function=lambda state: state.abs().amax((0, -1)))
        monkeypatch.setitem(MEASURES, name, quick)
    path = tmp_path / "s.sqlite"
    words = ["--dataset", "cora", "--runs", "1", "--epochs", "2", "--depths", "1", "--workers", "1"]
    assert main(["figure1", "table1", *words, "--missing", "0", "--store", str(path)]) == 0
    with Store(path) as store:
        cells = store.cells()
    assert len(cells) == 12
    for spec, [trial] in cells.items():
        assert set(trial.measures) == ({"row_diff", "col_diff"} if spec.split == "random" else set())


def test_the_case_study_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Spec] = []

    def fake(graph: object, spec: Spec, *_: object) -> Layers:
        asked.append(spec)
        return Layers(0.5, {}, {}, {}, {})

    monkeypatch.setattr(module, "measure_layers", fake)
    words = ["case-study", "--store", str(tmp_path / "s.sqlite"), "--device", "cpu"]
    assert main(words) == main(words) == 0
    assert len(asked) == len(read_layers(file_beside(tmp_path / "s.sqlite"))) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1"], "Did you mean 'table1'"),
        (["table1", "--dataset", "corra"], "Did you mean 'cora'"),
        (["table1", "--depths", "two"], "depths is 'two'"),
        (["table1", "--device", "tpu3"], "expected 'auto', 'cpu' or 'cuda'"),
    ],
)
def test_errors_are_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main([*words, "--store", str(tmp_path / "s.sqlite")]) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_ctrl_c_says_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "reproduce", stop)
    assert main(["table1", "--store", str(tmp_path / "s.sqlite")]) == 130
    assert "goes on" in capsys.readouterr().out


def test_it_needs_little_but_torch(tmp_path: Path) -> None:
    """The machine with the accelerator has no terminal library, no pandas and no matplotlib."""
    blocked = ["typer", "rich", "pandas", "matplotlib", "pyarrow", "tensorboard", "networkx", "platformdirs"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from pairnorm.paper.runner import main
words = ["table1", "--dataset", "cora", "--missing", "100", "--runs", "1", "--epochs", "1", "--depths", "1"]
sys.exit(main([*words, "--workers", "1", "--store", {str(tmp_path / "s.sqlite")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_imported_to_begin_with() -> None:
    program = """
import json, sys
import pairnorm.paper.runner
heavy = ("typer", "rich", "pandas", "matplotlib", "scipy", "torch_geometric")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(printed) == []


def test_lines_tell_the_rate_and_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 20.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    lines = Lines()
    for done in (0, 10, 400):
        lines("table1", Progress(done, 1000, 50, "cora GCN depth=2"))
    assert capsys.readouterr().out.splitlines() == [
        "table1: 50 trials to train",
        "table1: 40.0%, 20 layer-epochs a second, 0.5 min left; cora GCN depth=2",
    ]
