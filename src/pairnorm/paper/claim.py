"""What a claim is: a statement of the paper, read as a test on our numbers, case by case."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pairnorm.paper.experiment import Place
from pairnorm.paper.grids import EXPERIMENTS
from pairnorm.paper.layers import Layers
from pairnorm.paper.results import Chosen, Results, Summary
from pairnorm.paper.selection import Selection
from pairnorm.train import Spec

COMPARABLE = 0.02
"""Accuracies that differ by no more than this count as similar; a notable gain is larger."""


@dataclass(frozen=True)
class Case:
    """One graph, model or rate that a claim speaks about: whether it holds there, None where not run."""

    label: str
    holds: bool | None
    evidence: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything a claim may look at; what was not run, or not completely, is None."""

    results: Results
    layers: Mapping[Spec, Layers]
    selection: Selection

    def chosen(self, experiment: str, dataset: str, method: str, percent: int) -> Chosen | None:
        """Return what is reported at a place of an experiment."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or dataset not in narrowed.datasets or percent not in narrowed.missing:
            return None
        found = self.results.chosen(narrowed, Place(dataset, method, percent))
        return found if found is not None and found.complete else None

    def curve(self, experiment: str, dataset: str, method: str, percent: int) -> list[Summary] | None:
        """Return the best candidate of each depth at a place, with one scale for all of them in Figure 1."""
        if self.chosen(experiment, dataset, method, percent) is None:
            return None
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        assert narrowed is not None
        place = Place(dataset, method, percent)
        return self.results.by_depth(narrowed, place, one_scale=experiment == "figure1")

    def study(self, model: str, norm: str) -> Layers | None:
        """Return the case study of a model with a norm."""
        narrowed = self.selection.narrow(EXPERIMENTS["case-study"])
        places = [] if narrowed is None else list(narrowed.places())
        specs = [spec for place in places for spec in narrowed.candidates(place)]  # type: ignore[union-attr]
        found = [spec for spec in specs if (spec.model, spec.norm) == (model, norm)]
        return self.layers.get(found[-1]) if found else None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Args:
        place: where the paper says so.
        text: what it says.
        reading: what is tested in each case.
        cases: tests every case on the evidence.
        share: of the cases in which the test must pass for the claim to hold.
    """

    place: str
    text: str
    reading: str
    cases: Callable[[Evidence], Iterable[Case]]
    share: float = 1.0


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of its cases."""

    claim: Claim
    cases: Sequence[Case]

    @property
    def run(self) -> list[Case]:
        """The cases that have been run."""
        return [case for case in self.cases if case.holds is not None]

    @property
    def status(self) -> str:
        """``holds``, ``fails`` or ``not run``; ``so far`` where cases that have not been run decide."""
        if not self.run:
            return "not run"
        failed = sum(case.holds is False for case in self.run)
        if failed > (1 - self.claim.share) * len(self.cases) + 1e-9:
            return "fails"
        if len(self.run) == len(self.cases):
            return "holds"
        enough = failed <= (1 - self.claim.share) * len(self.run) + 1e-9
        return "holds so far" if enough else "fails so far"

    @property
    def counts(self) -> str:
        """Such as ``3 of 4``, and how many cases have yet to be run."""
        passed = sum(case.holds is True for case in self.run)
        absent = len(self.cases) - len(self.run)
        return f"{passed} of {len(self.run)}" + (f", {absent} not run" if absent else "")


def compare(
    label: str, one: Chosen | None, other: Chosen | None, test: Callable[[Chosen, Chosen], bool]
) -> Case:
    """Return the case in which ``test(one, other)`` must pass."""
    if one is None or other is None:
        return Case(label, None)
    return Case(label, test(one, other), f"{show(one)} against {show(other)}")


def show(chosen: Chosen) -> str:
    """Return accuracy and layers, such as ``0.794 @ 40``."""
    return f"{chosen.accuracy:.3f} @ {chosen.layers}"
