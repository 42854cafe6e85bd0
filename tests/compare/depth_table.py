"""A comparison by depth that nobody ran: three methods, two depths, numbers that can be followed by hand."""

from typing import Any

from pairnorm.compare.depth import DepthComparison, Table
from pairnorm.train import Trial
from pairnorm.train.result import Origin, Result

ORIGIN = Origin.here(seconds=1.0, shared_by=1, device="cpu")
ACCURACY = {
    ("none", 0): (0.80, 0.30),
    ("PN-SI", 0): (0.70, 0.65),
    ("APPNP", 0): (0.79, 0.90),
    ("none", 100): (0.50, 0.30),
    ("PN-SI", 100): (0.60, 0.75),
    ("APPNP", 100): (0.55, 0.60),
}
"""Of two depths; runs differ by 0.01."""


def a_table(without: tuple[str, int] | None = None, **more: Any) -> Table:
    """Return the comparison above, all of whose settings are as good; one method and depth may be lacking."""
    more = {"datasets": ["cora"], **more}
    wanted = DepthComparison(
        models=["GCN"], methods=["none", "PN-SI", "APPNP"], depths=[2, 16], runs=2, **more
    )
    results = []
    for place in wanted.places():
        if (place.method, place.depth) == without:
            continue
        accuracy = ACCURACY[place.method, place.missing_percent][place.depth == 16]
        accuracy -= 0.1 * (place.dataset == "pubmed")
        for spec in wanted.candidates(place):
            for seed in range(2):
                values = {"test_accuracy": accuracy + 0.01 * seed, "validation_accuracy": accuracy}
                losses = {f"{part}_loss": 1.0 for part in ("train", "validation", "test")}
                measures = {"effective_rank": 10.0 * accuracy}
                trial = Trial(
                    seed=seed, best_epoch=1, train_accuracy=1.0, measures=measures, **values, **losses
                )
                results.append(Result(spec, trial, ORIGIN))
    return Table(wanted, results)


def line(text: str, start: str) -> list[str]:
    (found,) = [one for one in text.splitlines() if one.startswith(start)]
    return [cell.strip() for cell in found.strip("|").split("|")]
