"""Processes that read damaged files, many each, watched for time and memory.

A worker gets a case a line and answers with what came of it. One that dies, or does not answer in time, has
crashed or hung at that case; another takes its place.
"""

import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SECONDS, LONGEST, MEMORY = 20.0, 300.0, 3 << 30
"""How long a case may compute, how long it may take on a busy machine, and how many bytes of address space a
worker may add to what it began with."""


@dataclass
class Tally:
    """Outcomes of the cases: read, refused with a PairNormError, or failed."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        return self.outcomes.total()

    def add(self, answer: dict[str, Any]) -> None:
        self.last = answer
        self.outcomes[answer["outcome"]] += 1
        if answer["outcome"] not in ("read", "refused"):
            self.failures.append(answer)


class Worker:
    """A process for cases of any format."""

    def __init__(self, corpus: Path, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._command = [sys.executable, "-W", "ignore", __file__, str(corpus), str(scratch)]
        self._errors = scratch.with_suffix(".stderr")
        self._start()

    def _start(self) -> None:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        assert self._answers.get(timeout=600) == "ready\n", self._errors.read_text()

    def _listen(self, stream: Any) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")

    def attempt(self, kind: str, seed: str) -> dict[str, Any]:
        """Run a case and return its outcome: read, refused, fault, crash or hang."""
        case = {"kind": kind, "seed": seed}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        try:
            answer = self._wait()
        except queue.Empty:
            self.close()
            self._start()
            return case | {"outcome": "hang"}
        if answer:
            return case | json.loads(answer)
        code = self._process.wait()
        self.close()
        errors = self._errors.read_text()[-2000:]
        self._start()
        return case | {"outcome": "crash", "detail": f"exit code {code}\n{errors}"}

    def _wait(self) -> str:
        computed, end = self._computed(), time.monotonic() + LONGEST
        while True:
            try:
                return self._answers.get(timeout=1)
            except queue.Empty:
                if self._computed() - computed > SECONDS or time.monotonic() > end:
                    raise

    def _computed(self) -> float:
        """Return the seconds that the worker has computed."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended, which its answer reports
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # unwritten data are dropped
                    stream.close()


def campaign(
    corpus: Path,
    scratch: Path,
    kinds: list[str],
    seed: object,
    cases: int | None = None,
    seconds: float = 1e9,
    on_progress: Callable[[Tally], object] = lambda tally: None,
) -> Tally:
    """Run cases of all kinds in turn up to a number or a time limit; report the tally after each."""
    tally, worker, start, number = Tally(), Worker(corpus, scratch), time.monotonic(), 0
    try:
        while (cases is None or number < cases) and time.monotonic() - start < seconds:
            tally.add(worker.attempt(kinds[number % len(kinds)], f"{seed}/{number}"))
            on_progress(tally)
            number += 1
    finally:
        worker.close()
    return tally


def _serve(corpus: Path, scratch: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from corpus import FORMATS
    from mutate import mutated

    from pairnorm.base.errors import PairNormError

    shutil.copytree(corpus, scratch / "undamaged", dirs_exist_ok=True)
    for format_ in (
        FORMATS.values()
    ):  # read undamaged files, so that all libraries are imported before memory is limited
        format_.read(scratch / "undamaged")
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not an answer
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        format_ = FORMATS[case["kind"]]
        folder = scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(corpus, folder)
        random = Random(f"{case['kind']} {case['seed']}")
        files = format_.files
        victim = folder / (files if isinstance(files, str) else random.choice(files))
        victim.write_bytes(mutated(victim.read_bytes(), random))
        answer = {"outcome": "read", "detail": ""}
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                format_.read(folder)
        except PairNormError as error:
            answer = {"outcome": "refused", "detail": error.code}
            if len(str(error)) > 1500 or error.code == "too-large":
                answer = {"outcome": "fault", "detail": str(error)[:2000]}
        except Exception:
            answer = {"outcome": "fault", "detail": traceback.format_exc()[-3000:]}
        print(json.dumps(answer | {"seconds": time.monotonic() - start}), file=answers, flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))
