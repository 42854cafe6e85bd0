"""The numbers that the paper reports in its Tables 1 to 3."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from pairnorm.paper.experiment import Place


class Reported(NamedTuple):
    """Mean test accuracy over 5 runs, and the number of layers chosen by validation."""

    accuracy: float
    layers: int


@cache
def reported() -> dict[Place, Reported]:
    """Return the numbers of all three tables, which share no place.

    >>> reported()[Place("cora", "SGC-PN", 100)]
    Reported(accuracy=0.745, layers=40)
    """
    folder = files("pairnorm.paper") / "reported"
    tables = [(folder / f"table{number}.csv").read_text(encoding="utf-8") for number in (1, 2, 3)]
    return {
        Place(row["dataset"], row["method"], int(row["missing_percent"])): Reported(
            float(row["accuracy"]), int(row["layers"])
        )
        for text in tables
        for row in csv.DictReader(text.splitlines())
    }
