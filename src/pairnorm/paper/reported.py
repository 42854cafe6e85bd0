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
def reported(table: str) -> dict[Place, Reported]:
    """Return the numbers of ``table1``, ``table2`` or ``table3``; of any other name, none.

    >>> reported("table1")[Place("cora", "SGC-PN", 100)]
    Reported(accuracy=0.745, layers=40)
    """
    source = files("pairnorm.paper") / "reported" / f"{table}.csv"
    if not source.is_file():
        return {}
    return {
        Place(row["dataset"], row["method"], int(row["missing_percent"])): Reported(
            float(row["accuracy"]), int(row["layers"])
        )
        for row in csv.DictReader(source.read_text(encoding="utf-8").splitlines())
    }
