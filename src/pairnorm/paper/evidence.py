"""What decides a claim: numbers and measured layers, the cases they are compared in, and the verdict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.paper.experiments import CASE_STUDY, EXPERIMENTS, TABLE1, Selection, reported
from pairnorm.sweep.grid import Experiment, Summary, TableCell
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.significance import Difference, paired_difference, significant
from pairnorm.train import Spec, Store, Trial
from pairnorm.train.result import UNEXPECTED

COMPARABLE = 0.02
"""Accuracies that differ by no more than this count as similar; a notable gain is larger."""
DEEP_GCN_ACCURACIES = {"GCN": 0.3109, "GCN-PN": 0.7777, "GCN-PN-SI": 0.7509}
"""Test accuracies of the 12-layer GCNs, from the caption of the paper's appendix."""


RECORDS = "case-study"
"""Collection of a store with the measured layers."""
PAIRS = ("connected", "random")


@dataclass(frozen=True)
class Layers:
    """Distances of node pairs in every layer of one model, by kind of pairs; lists run over the layers.

    APD and APSD are the average distance and squared distance. Histograms have the same edges in all layers.
    The test accuracy is None for SGC, whose states do not depend on training.
    """

    test_accuracy: float | None
    apd: dict[str, list[float]]
    apsd: dict[str, list[float]]
    edges: dict[str, list[float]]
    histograms: dict[str, list[list[int]]]


def read_layers(store: Store) -> dict[Spec, Layers]:
    """Read the layers of every spec that has been measured."""
    try:
        records = store.records(RECORDS)
        return {Spec.parse(text): _validated(Layers(**values)) for text, values in records.items()}
    except UNEXPECTED as error:
        problem = f"the case study in {store.path} is damaged ({quoted(str(error))})"
        hint = "Restore a copy of the store."
        raise PairNormError(problem, code="file-damaged", value=store.path, hint=hint) from None


def _validated(layers: Layers) -> Layers:
    """Return layers, or raise an error unless their numbers are finite and their lengths agree."""
    numbers = [0.0 if layers.test_accuracy is None else layers.test_accuracy]
    for kind in PAIRS:
        bins = np.array(layers.histograms[kind], dtype=float)
        by_layer, edges = (layers.apd[kind], layers.apsd[kind]), layers.edges[kind]
        if bins.shape != (len(by_layer[0]), len(edges) - 1) or len(by_layer[0]) != len(by_layer[1]):
            raise ValueError("lengths of lists do not agree")
        numbers += [*bins.flat, *by_layer[0], *by_layer[1], *edges]
    if not np.isfinite(numbers).all():
        raise ValueError("finite numbers are expected")
    return layers


def write_layers(store: Store, layers: Mapping[Spec, Layers]) -> None:
    """Write the layers of specs to a store atomically."""
    store.write_records(RECORDS, {spec.text: asdict(measured) for spec, measured in layers.items()})


def studied(layers: Mapping[Spec, Layers], experiment: Experiment, model: str) -> dict[str, Layers]:
    """Return the measured layers of a model in the case study, by norm."""
    specs = [spec for cell in experiment.cells() for spec in experiment.candidates(cell)]
    return {spec.norm: layers[spec] for spec in specs if spec.model == model and spec in layers}


@dataclass(frozen=True)
class Case:
    """One graph, model or rate that a claim covers.

    Args:
        label: its name.
        holds: whether the claim does there, None where not run.
        evidence: the numbers that decide.
        unsure: specs to train with more runs, where the interval of the margin contains zero.
        margin: by how much the test is passed, or failed where negative; None where no accuracy decides.
    """

    label: str
    holds: bool | None
    evidence: str = ""
    unsure: tuple[Spec, ...] = ()
    margin: Difference | None = field(default=None, compare=False)


CASES = (
    "Each claim is read as a test, which is applied twice: to the paper's own numbers, where its tables "
    "report them, and to ours; it is a claim about all cases unless it says otherwise. A claim that fails "
    "on the paper's own numbers is a finding about its text, not about the reproduction. *How strongly*: "
    "the median and range of the margins in accuracy by which the test is passed (+) or failed (-), and how "
    "many cases are significant for and against the claim (Student's t, paired over runs, 5% for all cases "
    "of a claim, Holm), of those with several runs. The intervals of the margins are with the cases below. "
    "Where a verdict is within the noise of the paper's number of runs, `pairnorm reproduce claims` adds "
    "runs of the selected candidates, which then decide."
)


class Test(NamedTuple):
    """What a claim states about one method compared with another.

    With sign 1 the first must be more accurate by the threshold, with -1 less; if ``strict``, the threshold
    itself fails. With sign 0 the least difference in the number of layers decides.
    """

    sign: int
    threshold: float = 0.0
    strict: bool = True
    layers: int = 0

    def passes(self, gain: float, deeper: int) -> bool:
        """Decide by the difference in accuracy and in layers."""
        if not self.sign:
            return deeper >= self.layers
        margin = self.sign * (gain - self.threshold)
        return margin > 0 if self.strict else margin >= 0


TESTS = {
    "better": Test(1),
    "worse": Test(-1),
    "notably better": Test(1, COMPARABLE),
    "not notably better": Test(-1, COMPARABLE, strict=False),
    "not worse": Test(1, -COMPARABLE, strict=False),
    "deeper": Test(0, layers=1),
    "not shallower": Test(0, layers=0),
}


def compare(label: str, test: str, first: Chosen | None, *others: Chosen | None) -> Case:
    """Test one candidate against others, by one of the ``TESTS``.

    Of several others, the one with the highest validation accuracy is compared.
    """
    known = [other for other in others if other is not None]
    if first is None or len(known) < len(others):
        return Case(label, None)
    other = max(known, key=lambda chosen: chosen.best.validation)
    first, other = first.among((other,)), other.among((first,))
    rule, deeper = TESTS[test], first.layers - other.layers
    runs, other_runs = (chosen.best.values("test_accuracy") for chosen in (first, other))
    difference = paired_difference(runs, other_runs)
    unsure = rule.passes(difference.low, deeper) != rule.passes(difference.high, deeper)
    shown = " against ".join(f"{chosen.accuracy:.3f} @ {chosen.layers}" for chosen in (first, other))
    if len(runs) > max(TABLE1.missing.values()):  # the paper's number
        shown += f", {len(runs)} runs"
    margin = None
    if rule.sign and difference.runs > 1:
        target = {seed: value + rule.threshold for seed, value in other_runs.items()}
        margin = paired_difference(runs, target) if rule.sign > 0 else paired_difference(target, runs)
    specs = tuple(chosen.best.spec for chosen in (first, *known))
    holds = rule.passes(first.accuracy - other.accuracy, deeper)
    return Case(label, holds, shown, specs if unsure else (), margin)


@dataclass(frozen=True)
class Evidence:
    """The results that claims are tested on; None for cells whose trials are incomplete.

    With ``all_runs``, selected candidates are compared over all runs in the store, not those of their table.
    """

    results: ResultIndex
    layers: Mapping[Spec, Layers]
    selection: Selection
    all_runs: bool = True

    def chosen(self, experiment: str, dataset: str, method: str, percent: int) -> Chosen | None:
        """Return the selected candidate of a cell of an experiment; None if it is incomplete."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or dataset not in narrowed.datasets or percent not in narrowed.missing:
            return None
        chosen = self.results.chosen(narrowed, TableCell(dataset, method, percent))
        if chosen is None or not chosen.complete:
            return None
        return replace(chosen, all_runs=self.results.all_runs(chosen.best.spec)) if self.all_runs else chosen

    def curve(self, experiment: str, dataset: str, method: str, percent: int) -> list[Summary] | None:
        """Return the best candidate of each depth in a cell; in Figure 1, all with the same scale."""
        narrowed = self.selection.narrow(EXPERIMENTS[experiment])
        if narrowed is None or self.chosen(experiment, dataset, method, percent) is None:
            return None
        cell = TableCell(dataset, method, percent)
        return self.results.by_depth(narrowed, cell, one_scale=experiment == "figure1")

    def study(self, model: str, norm: str) -> Layers | None:
        """Return the case study of a model with a norm."""
        narrowed = self.selection.narrow(CASE_STUDY)
        return None if narrowed is None else studied(self.layers, narrowed, model).get(norm)


class PaperEvidence(Evidence):
    """The numbers that the paper reports: means without runs, and no curves."""

    def __init__(self) -> None:
        super().__init__(ResultIndex({}), {}, Selection())

    def chosen(self, experiment: str, dataset: str, method: str, percent: int) -> Chosen | None:
        """Return a reported number as a candidate with one run."""
        entry = reported().get(TableCell(dataset, method, percent))
        accuracy, layers = entry if entry and EXPERIMENTS[experiment].in_tables else (None, 0)
        if experiment == "deep-gcn":
            accuracy, layers = DEEP_GCN_ACCURACIES.get(method), 12
        if accuracy is None:
            return None
        names = ("train_loss", "train_accuracy", "validation_loss", "test_loss")
        unknown: dict[str, Any] = dict.fromkeys(names, nan)
        trial = Trial(seed=0, best_epoch=0, validation_accuracy=accuracy, test_accuracy=accuracy, **unknown)
        model = method.split("-")[0].split(" ")[0]
        return Chosen(Summary(Spec(dataset, model, layers), (trial,)), True)

    def curve(self, experiment: str, dataset: str, method: str, percent: int) -> None:
        """Return None: the paper's figures have no numbers."""


Cases = Callable[[Evidence], Iterable[Case]]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper; it holds if its test passes in a ``share`` of the cases."""

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
"""Status of one claim, and the verb for several."""


@dataclass(frozen=True)
class Verdict:
    """A claim and its cases, in our runs and in the paper's numbers."""

    claim: Claim
    cases: Sequence[Case]
    paper_cases: Sequence[Case] = ()

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
    def answer(self) -> str:
        """Such as ``holds in 3 of 3``, or ``holds in only 2 of 3`` for a claim that fails."""
        if not self.run:
            return "not run"
        only = "only " if self.status.startswith("fails") else ""
        return f"holds in {only}{self.counts}{', within noise' if self.unsure else ''}"

    @property
    def in_paper(self) -> "Verdict | None":
        """The verdict on the paper's own numbers, among the cases that its tables report; None for none."""
        known = [case for case in self.paper_cases if case.holds is not None]
        return Verdict(self.claim, [replace(case, unsure=()) for case in known]) if known else None

    @property
    def strength(self) -> str:
        """Median and range of the margins, and how many are significant for and against the claim."""
        margins = [case.margin for case in self.run if case.margin is not None]
        if not margins:
            return ""
        means = [margin.mean for margin in margins]
        size = f"{means[0]:+.3f}"
        if len(means) > 1:
            size = f"{median(means):+.3f} ({min(means):+.3f} to {max(means):+.3f})"
        sure = [margin.mean for margin, is_sure in zip(margins, significant(margins), strict=True) if is_sure]
        supporting = sum(mean > 0 for mean in sure)
        return f"{size}; {supporting} for, {len(sure) - supporting} against of {len(margins)}"

    @property
    def unsure(self) -> list[Case]:
        """The cases within noise that decide the verdict: with all of them the other way it would change."""
        holds = self.status == "holds"
        cases = [case for case in self.run if case.unsure and case.holds is holds]
        turned = [replace(case, holds=not holds) if case in cases else case for case in self.cases]
        changes = Verdict(self.claim, turned).status != self.status
        return cases if self.status in ("holds", "fails") and changes else []
