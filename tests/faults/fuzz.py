"""``make fuzz``: an hour of damaged files, hostile surroundings and killed commands, and what came of it.

Then a test of a Ray cluster, of whose workers twenty are killed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from corpus import FORMATS, write_corpus
from watchdog import Tally, campaign

FILES, SURROUNDINGS, KILLED = 0.5, 0.25, 0.25
"""Shares of time for damaged files, hostile environments and killed commands."""
KILLS = 20
"""Workers of a Ray cluster that are killed in an hour; a shorter run kills fewer."""
FAILURES = {
    "crashed": ("crash",),
    "hung": ("hang",),
    "traceback": ("fault", "traceback"),
    "lost": ("lost", "draft left"),
    "bad message": ("password shown", "long message"),
}
"""Outcomes by their name in the summary."""


def _summary(tally: Tally) -> str:
    return f"Files: {tally.attempts:,} tried: {dict(tally.outcomes)}"


def _run(program: str, *words: object) -> Any:
    """Run a program next to this one, and return what it printed as JSON."""
    words = (sys.executable, "-W", "ignore", Path(__file__).with_name(program), *words)
    done = subprocess.run([*map(str, words)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _print_progress(tally: Tally) -> None:
    """Print each failure at once, and a summary after every 1000 cases."""
    if tally.failures and tally.failures[-1] is tally.last:
        print(json.dumps(tally.last), flush=True)
    if tally.attempts % 1000 == 0:
        print(_summary(tally), flush=True)


def main() -> int:
    """Fuzz, print a line per failure and the totals, and return 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kinds", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    options = parser.parse_args()
    seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        corpus, scratch = Path(folder) / "corpus", Path(folder) / "scratch"
        corpus.mkdir()
        write_corpus(corpus)
        tally = campaign(
            *(corpus, scratch, options.kinds, options.seed),
            seconds=FILES * seconds,
            on_progress=_print_progress,
        )
        print(_summary(tally), flush=True)
        around = _run("hostile.py", corpus, f"{folder}/case", options.seed, 10**9, SURROUNDINGS * seconds)
        print(f"Surroundings: {sum(around['outcomes'].values()):,} tried: {around['outcomes']}", flush=True)
        killed = _run("stage.py", corpus, f"{folder}/stage", options.seed, KILLED * seconds)
    print(f"Commands: {sum(killed['killed'].values()):,} tried: {killed['killed']}")
    for failure in (*around["failures"], *killed["lost"]):
        print(failure if isinstance(failure, str) else json.dumps(failure))
    kills = max(2, round(KILLS * min(1.0, options.minutes / 60)))
    pool = str(Path(__file__).parents[1] / "train" / "test_ray_backend.py")
    words = [sys.executable, "-m", "pytest", "-n0", "-m", "", "-k", "killed", pool]  # slow ones too
    workers = subprocess.run(words, env=os.environ | {"PAIRNORM_KILLS": str(kills)}).returncode
    print(f"Workers of a Ray cluster: {kills} killed: {'something was lost' if workers else 'nothing lost'}")
    total = tally.outcomes + Counter(around["outcomes"])
    total["lost"] += len(killed["lost"]) + bool(workers)
    counts = {word: sum(total[outcome] for outcome in outcomes) for word, outcomes in FAILURES.items()}
    print("Summary: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    return bool(any(counts.values()))


if __name__ == "__main__":
    sys.exit(main())
