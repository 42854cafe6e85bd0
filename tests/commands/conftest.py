"""A user's files are written by a module of another folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "classify"))  # for written.py
