"""Run as a program: commands that are killed at random moments, and what is then found on the disk.

Everything is imported once, also what commands import late; a command is a fork of this process.
"""

import importlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pandas
from corpus import NODES

from pairnorm import cli
from pairnorm.base.files import locked_folder
from pairnorm.classify import NodeClassifier
from pairnorm.classify.persistence import OUTPUT_FILES
from pairnorm.classify.predictions import prediction_table, write_table
from pairnorm.data import Graph, PackedGraph
from pairnorm.train import Store

LONGEST = 300.0
LATE = (
    *("torch._dynamo", "numba", "matplotlib.pyplot", "sklearn.metrics", "sklearn.preprocessing", "pandas"),
    *("sqlalchemy", "psycopg", "duckdb", "pyarrow.parquet", "lightgbm"),
)
SAME = {".csv", ".md", ".png", ".tex", ".html"}
"""Suffixes of files that a command writes with the same bytes; ``fit`` has its own check."""
RESULTS = {"", ".csv", ".parquet", ".safetensors"}
ENDS = {signal.SIGKILL: None, signal.SIGTERM: 143, signal.SIGINT: 130}
"""Exit codes after signals."""


class DataLoss(Exception):
    """Results are missing or incomplete."""


def forked(
    work: Callable[[], int], seconds: float = LONGEST, quiet: bool = True, sent: int = signal.SIGKILL
) -> int | None:
    """Do work in a fork and return its exit code; None if it had to be killed.

    All work is done so, checks too: this process must have no threads, which a fork would wait for.

    Args:
        work: returns the exit code.
        seconds: after which the fork is sent a signal.
        quiet: whether to drop what it prints.
        sent: the signal. After another than SIGKILL, the fork has some time to end by itself.
    """
    child = os.fork()
    if not child:
        code = 99
        try:
            if quiet:
                sink = os.open(os.devnull, os.O_WRONLY)
                os.dup2(sink, 1)
                os.dup2(sink, 2)
            code = work()
        except KeyboardInterrupt:  # as in ``pairnorm.__main__``
            code = 130
        finally:
            os._exit(code)
    for number, limit in ((sent, seconds), (signal.SIGKILL, LONGEST)):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended = os.waitstatus_to_exitcode(status)
                return None if ended == -signal.SIGKILL else ended
            time.sleep(0.002)
        os.kill(child, number)
    os.waitpid(child, 0)
    return None


def run(words: list[str], seconds: float = LONGEST, sent: int = signal.SIGKILL) -> int | None:
    """Run a command."""
    return forked(lambda: cli.main(words), seconds, sent=sent)


def examine(check: Callable[[Path, Path], None], corpus: Path, folder: Path) -> None:
    """Check what a command left behind."""

    def work() -> int:
        try:
            check(corpus, folder)
        except Exception as error:
            print(repr(error), file=sys.stderr, flush=True)
            return 1
        return 0

    if forked(work, quiet=False) != 0:
        raise DataLoss(f"{folder.name}: see what was printed")


def graph_of(corpus: Path) -> list[str]:
    return ["--nodes", str(corpus / "nodes.csv"), "--edges", str(corpus / "edges.csv")]


def fit(corpus: Path, folder: Path, number: int) -> list[str]:
    settings = ["--depth", "2", "--norm", "PN", "--scale", "1", "--seed", str(number)]
    return ["fit", *graph_of(corpus), "--label", "risk", *settings, "--out", str(folder / "run")]


def check_fit(corpus: Path, folder: Path) -> None:
    """Model and predictions must be from one run; the report, written later, from the same run or absent."""
    out = folder / "run"
    with locked_folder(out):
        names = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.exists() else ()
    if not names:
        return
    if not {"model.json", "model.safetensors", "predictions.csv"} <= set(names) <= OUTPUT_FILES:
        raise DataLoss(f"{sorted(names)}")
    written = [(out / name).stat().st_mtime_ns for name in ("model.json", "report.md") if name in names]
    if written != sorted(written):
        raise DataLoss("the report is of another model")
    classifier = NodeClassifier.load(out)
    graph = Graph.from_files(corpus / "nodes.csv", corpus / "edges.csv", encoder=classifier.encoder_)
    write_table(prediction_table(graph, classifier.predict_proba(graph), classifier), folder / "again.csv")
    columns = ["id", "predicted", "p_low", "p_high"]
    result, again = (
        pandas.read_csv(path)[columns] for path in (out / "predictions.csv", folder / "again.csv")
    )
    if not result.equals(again):
        raise DataLoss("the predictions are of another model")


def predict(corpus: Path, folder: Path, number: int) -> list[str]:
    words = ["predict", "--run", str(corpus / "run"), *graph_of(corpus)]
    return [*words, "--out", str(folder / "predictions.csv")]


def content(path: Path) -> object:
    """Return the content of a file without training times."""
    if path.suffix != ".csv":
        return path.read_bytes()
    return pandas.read_csv(path, dtype=str).drop(columns="seconds_per_epoch", errors="ignore").to_csv()


def check_whole(corpus: Path, folder: Path) -> None:
    """Existing files must be complete and equal those of an uninterrupted run, bit for bit."""
    for path in folder.rglob("*"):
        whole = corpus / "whole" / path.relative_to(folder.parent)
        is_result = path.suffix in SAME and ".partial" not in str(path) and path.is_file()
        if is_result and content(path) != content(whole):
            raise DataLoss(f"half of {path.name}")


def diagnose(corpus: Path, folder: Path, number: int) -> list[str]:
    return ["diagnose", *graph_of(corpus), "--out", str(folder / "diagnosis.png")]


def compare(corpus: Path, folder: Path, number: int) -> list[str]:
    settings = ["--method", "none", "--depth", "2", "--runs", "1", "--epochs", "20", "--workers", "1"]
    return ["compare", *graph_of(corpus), "--label", "risk", *settings, "--out", str(folder / "comparison")]


SMALL = ["--dataset", "cora", "--runs", "2", "--epochs", "5", "--depth", "1,2,3", "--missing", "0,100"]


def reproduce(corpus: Path, folder: Path, number: int) -> list[str]:
    where = ["--out", str(folder / "out"), "--store", str(folder / "store.sqlite")]
    return ["reproduce", "table1", *SMALL, "--workers", "1", *where]


def check_reproduce(corpus: Path, folder: Path) -> None:
    """Stored trials stay in the store, and equal those of a run that was not killed, bit for bit."""
    path, seen = folder / "store.sqlite", folder / "seen.json"
    if not path.exists() or not path.stat().st_size:
        return
    with Store(path) as store:
        trials = {
            f"{spec} {trial.seed}": vars(trial)
            for spec, result in store.trials_by_spec().items()
            for trial in result
        }
    with sqlite3.connect(path) as connection:
        (state,) = connection.execute("PRAGMA integrity_check").fetchone()
    before = json.loads(seen.read_text()) if seen.exists() else {}
    if state != "ok" or any(trials.get(name) != trial for name, trial in before.items()):
        raise DataLoss(f"trials of the store ({state})")
    seen.write_text(json.dumps(trials))
    if (reference := corpus / "paper.sqlite").exists():
        with Store(reference, read_only=True) as store:
            whole = {
                f"{spec} {trial.seed}": vars(trial)
                for spec, result in store.trials_by_spec().items()
                for trial in result
            }
        if different := [name for name, trial in trials.items() if whole.get(name) != trial]:
            raise DataLoss(f"{len(different)} trials differ from those of a run that was not killed")


def report(corpus: Path, folder: Path, number: int) -> list[str]:
    return ["report", "--store", str(corpus / "paper.sqlite"), *SMALL, "--out", str(folder / "report")]


def pack(corpus: Path, folder: Path, number: int) -> list[str]:
    return [
        "pack",
        *graph_of(corpus),
        "--label",
        "risk",
        "--memory",
        "300MB",
        "--out",
        str(folder / "packed"),
    ]


def check_pack(corpus: Path, folder: Path) -> None:
    """An existing folder must be a complete graph; it is removed, since pack does not overwrite graphs."""
    if (folder / "packed").exists():
        graph = PackedGraph.open(folder / "packed")
        graph.check()
        if sum(map(len, graph.ids())) != graph.facts.nodes:
            raise DataLoss("ids of the packed graph")
        shutil.rmtree(folder / "packed")


def fit_packed(corpus: Path, folder: Path, number: int) -> list[str]:
    settings = ["--depth", "1,2", "--norm", "none,PN,PN-SI", "--seed", str(number)]
    return ["fit", "--graph", str(corpus / "packed"), *settings, "--out", str(folder / "run")]


def check_fit_packed(corpus: Path, folder: Path) -> None:
    """Both tables of predictions must be complete and from one run."""
    out = folder / "run"
    if not out.exists():
        return
    with locked_folder(out):
        names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
        result = [pandas.read_csv(out / "predictions.csv"), pandas.read_parquet(out / "predictions.parquet")]
    if names - {"report.html"} != {"report.md", "predictions.csv", "predictions.parquet"} or {
        *map(len, result)
    } != {NODES}:
        raise DataLoss(f"{sorted(names)}")
    if not (result[0]["predicted"] == result[1]["predicted"]).all():
        raise DataLoss("the predictions of two runs")


Command = Callable[[Path, Path, int], list[str]]
COMMANDS: dict[str, tuple[Command, Callable[[Path, Path], None]]] = {
    "fit": (fit, check_fit),
    "predict": (predict, check_whole),
    "reproduce": (reproduce, check_reproduce),
    "report": (report, check_whole),
    "pack": (pack, check_pack),
    "fit packed": (fit_packed, check_fit_packed),
    "diagnose": (diagnose, check_whole),
    "compare": (compare, check_whole),
}


def prepare(corpus: Path, scratch: Path) -> dict[str, float]:
    """Run each command without interruption; keep its results as reference and return its time."""
    times = {}
    for name, (words, check) in COMMANDS.items():
        folder = scratch / name
        folder.mkdir(parents=True)
        if name == "report":
            shutil.copy(scratch / "paper.sqlite", corpus / "paper.sqlite")
        start = time.monotonic()
        code = run(words(corpus, folder, 0))
        times[name] = time.monotonic() - start
        assert code == 0, (name, code)
        if name == "reproduce":
            shutil.copy(folder / "store.sqlite", scratch / "paper.sqlite")
        shutil.copytree(folder, corpus / "whole" / name)
        examine(check, corpus, folder)
    return times


def campaign(corpus: Path, scratch: Path, seed: str, seconds: float) -> dict[str, Any]:
    """Interrupt commands in turn until time is up; then run each to its end, after which no draft remains."""
    random, tally, failures = Random(seed), Counter[str](), []
    times, number, end = prepare(corpus, scratch), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        name = list(COMMANDS)[number % len(COMMANDS)]
        words, check = COMMANDS[name]
        folder, sent = scratch / name, random.choice(list(ENDS))
        code = run(words(corpus, folder, number), random.uniform(0.01, 1.1 * times[name]), sent)
        result = "ended" if code == 0 else "killed" if code == ENDS[sent] else f"failed with {code}"
        tally[f"{name} {result}"] += 1
        if result.startswith("failed"):
            failures.append(f"{name} {number}: after {signal.Signals(sent).name} it {result}")
        if sent != signal.SIGKILL:
            failures += [f"{path} is left by {name} {number}" for path in folder.rglob("*.partial")]
        try:
            examine(check, corpus, folder)
        except Exception as error:
            failures.append(f"{name} {number}: {error!r}")
        if name in ("reproduce", "compare") and code == 0:  # all trials are trained: start again
            shutil.rmtree(folder)
            folder.mkdir()
    for name, (words, check) in COMMANDS.items():
        folder = scratch / name
        if (code := run(words(corpus, folder, 0))) != 0:
            failures.append(f"{name} does not run any more: {code}")
        failures += [f"{path} is left" for kind in ("*.partial", "*.work") for path in folder.rglob(kind)]
        failures += [f"{path} differs" for path in different(corpus / "whole" / name, folder)]
        examine(check, corpus, folder)
    return {"killed": dict(tally), "lost": failures}


def different(whole: Path, folder: Path) -> list[Path]:
    """Return the results that differ from those of an uninterrupted run, except reports and stores."""
    results = [path for path in whole.rglob("*") if path.is_file() and path.suffix in RESULTS]
    return [path for path in results if content(path) != content(folder / path.relative_to(whole))]


def import_late() -> None:
    """Import the libraries that commands import lazily, before forking."""
    for name in LATE:
        importlib.import_module(name)


if __name__ == "__main__":
    import_late()
    where, work, seed, limit = sys.argv[1:]
    print(json.dumps(campaign(Path(where), Path(work), seed, float(limit))))
