"""Run the command line: ``pairnorm`` or ``python -m pairnorm``."""

import gc
import os
import sys

NEED_COLLECTION = {"triton", "duckdb"}
"""Libraries that print errors if their objects are not collected before the process ends."""


def main() -> int:
    """Run a command and return its exit code; see ``pairnorm.cli.main``."""
    # If a standard stream is closed, the next file would take its place, and messages would go into it.
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(opened)
    # Set before torch is imported: large tensors on huge pages are faster to touch first.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        from pairnorm.cli import main as run

        code = run()
        for name in [name for name in sys.modules if name.partition(".")[0] == "duckdb_engine"]:
            vars(sys.modules.pop(name)).clear()  # next to torch, it would keep objects of DuckDB at exit
        if not NEED_COLLECTION & sys.modules.keys():
            gc.freeze()  # a collection at exit takes up to a second after torch
        return code
    except KeyboardInterrupt:  # also while modules are imported
        sys.stderr.write("\nStopped.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
