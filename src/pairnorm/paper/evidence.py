"""What decides a claim: the cases it speaks about, the evidence they look at, and the verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pairnorm.paper.case_study import Layers, studied
from pairnorm.paper.experiments import CASE_STUDY, EXPERIMENTS, Selection
from pairnorm.sweep.grid import Summary, TableCell
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.train import Spec


@dataclass(frozen=True)
class Case:
    """One graph, model or rate that a claim speaks about.

    Args:
        label: names it.
        holds: whether the claim does there, None where not run.
        evidence: the numbers that say so.
        unsure: where they would say the opposite but for the noise of their runs, the specs of these.
    """

    label: str
    holds: bool | None
    evidence: str = ""
    unsure: tuple[Spec, ...] = ()


CASES = (
    "A case that lacks some of its trials counts as not run. Where a verdict hangs on less than the noise of "
    "the paper's number of runs, `pairnorm reproduce claims` makes more of what validation has chosen; once "
    "made, they decide."
)


@dataclass(frozen=True)
class Evidence:
    """Everything a claim may look at; what was not run, or not completely, is None.

    Args:
        results: the trials.
        layers: what the case study has measured.
        selection: how much of the experiments is wanted.
        every_run: compare what validation chose by all the runs that the store has of both, not by those of
            their table alone.
    """

    results: ResultIndex
    layers: Mapping[Spec, Layers]
    selection: Selection
    every_run: bool = True

    def chosen(self, experiment: str, dataset: str, method: str, percent: int) -> Chosen | None:
        """Return what is reported at a cell of an experiment."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or dataset not in narrowed.datasets or percent not in narrowed.missing:
            return None
        found = self.results.chosen(narrowed, TableCell(dataset, method, percent))
        if found is None or not found.complete:
            return None
        return replace(found, every=self.results.every_run(found.best.spec)) if self.every_run else found

    def curve(self, experiment: str, dataset: str, method: str, percent: int) -> list[Summary] | None:
        """Return the best candidate of each depth at a cell, with one scale for all of them in Figure 1."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or self.chosen(experiment, dataset, method, percent) is None:
            return None
        cell = TableCell(dataset, method, percent)
        return self.results.by_depth(narrowed, cell, one_scale=experiment == "figure1")

    def study(self, model: str, norm: str) -> Layers | None:
        """Return the case study of a model with a norm."""
        narrowed = self.selection.narrow(CASE_STUDY)
        return None if narrowed is None else studied(self.layers, narrowed, model).get(norm)


Cases = Callable[[Evidence], Iterable[Case]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Args:
        section: of the paper.
        text: what it says.
        reading: what is tested in each case.
        cases: tests every case on the evidence.
        share: of the cases in which the test must pass for the claim to hold.
    """

    section: str
    text: str
    reading: str
    cases: Cases
    share: float = 1.0


STATUSES = {
    "holds": "hold",
    "holds so far": "hold so far",
    "fails so far": "fail so far",
    "fails": "fail",
    "not run": "have not been run",
}
"""What may become of a claim, and what of several."""


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

    @property
    def unsure(self) -> list[Case]:
        """The cases within noise that decide the verdict: with all of them the other way it would change."""
        holds = self.status == "holds"
        cases = [case for case in self.run if case.unsure and case.holds is holds]
        turned = [replace(case, holds=not holds) if case in cases else case for case in self.cases]
        changes = Verdict(self.claim, turned).status != self.status
        return cases if self.status in ("holds", "fails") and changes else []

    @property
    def hedge(self) -> str:
        """What follows the status: that it may be due to noise."""
        return ", within noise" if self.unsure else ""
