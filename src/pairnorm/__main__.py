"""The command ``pairnorm``, also ``python -m pairnorm``: Ctrl-C is as welcome while modules are imported."""

import gc
import os
import sys

COMPLAIN = {"triton", "duckdb"}
"""Libraries that complain of all that is not collected when a process ends."""


def main() -> int:
    """Run a command and return its exit code; see ``pairnorm.cli.main``."""
    # Before torch is there: large tensors on huge pages, which take far less time to be touched first.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        from pairnorm.cli import main as run

        code = run()
        # A process that ends need not look for garbage: after torch that takes half a second, after a report
        # one.
        if not COMPLAIN & sys.modules.keys():
            gc.freeze()
        return code
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
