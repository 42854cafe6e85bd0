"""``make fuzz``: an hour of damaged files of every format, and what came of it."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpus import FORMATS, write_corpus
from watchdog import campaign


def main() -> int:
    """Fuzz, print a line per failure and the totals, and return 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--kinds", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        write_corpus(corpus)
        tally = campaign(
            corpus, Path(folder) / "scratch", options.kinds, options.seed, seconds=60 * options.minutes
        )
    for failure in tally.failures:
        print(json.dumps(failure))
    print(f"{tally.tried:,} tried: {dict(tally.outcomes)}")
    return bool(tally.failures)


if __name__ == "__main__":
    sys.exit(main())
