"""``make fuzz``: an hour of damaged files of every format and of killed commands, and what came of it.

Then a test of a Ray cluster, of whose workers twenty are killed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpus import FORMATS, write_corpus
from watchdog import Tally, campaign

FILES = 0.75
"""The share of the time that goes to damaged files."""
KILLS = 20


def _summary(tally: Tally) -> str:
    return f"Files: {tally.tried:,} tried: {dict(tally.outcomes)}"


def _tell(tally: Tally) -> None:
    """Print a failure when it is found, and now and then how things stand: an hour may be cut short."""
    if tally.failures and tally.failures[-1] is tally.last:
        print(json.dumps(tally.last), flush=True)
    if tally.tried % 1000 == 0:
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
            tell=_tell,
        )
        print(_summary(tally), flush=True)
        stage = [sys.executable, str(Path(__file__).with_name("stage.py")), str(corpus), f"{folder}/stage"]
        words = [*stage, options.seed, str((1 - FILES) * seconds)]
        killed = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(f"Commands: {sum(killed['killed'].values()):,} tried: {killed['killed']}")
    for lost in killed["lost"]:
        print(lost)
    pool = str(Path(__file__).parents[1] / "train" / "test_ray_backend.py")
    words = [sys.executable, "-m", "pytest", "-n0", "-m", "", "-k", "killed", pool]  # slow ones too
    workers = subprocess.run(words, env=os.environ | {"PAIRNORM_KILLS": str(KILLS)}).returncode
    print(f"Workers of a Ray cluster: {KILLS} killed: {'something was lost' if workers else 'nothing lost'}")
    return bool(tally.failures or killed["lost"] or workers)


if __name__ == "__main__":
    sys.exit(main())
