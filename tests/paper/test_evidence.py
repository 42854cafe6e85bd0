from dataclasses import replace

import pytest
from synthetic import fill

from pairnorm.paper.evidence import Case, Claim, Evidence, Verdict, compare
from pairnorm.paper.experiments import TABLE1, Selection
from pairnorm.sweep.grid import TableCell
from pairnorm.sweep.index import ResultIndex
from pairnorm.train import Spec


def verdict(share: float, *cases: bool | None) -> Verdict:
    claim = Claim("1", "text", "reading", lambda evidence: (), share)
    return Verdict(claim, [Case(str(number), holds) for number, holds in enumerate(cases)])


@pytest.mark.parametrize(
    ("share", "cases", "status", "counts"),
    [
        (1.0, (True, True), "holds", "2 of 2"),
        (1.0, (True, False), "fails", "1 of 2"),
        (1.0, (True, None), "holds so far", "1 of 1, 1 not run"),
        (1.0, (None, None), "not run", "0 of 0, 2 not run"),
        (0.75, (True, True, True, False), "holds", "3 of 4"),
        (0.75, (True, True, False, False), "fails", "2 of 4"),
        (0.75, (False, None, None, None), "fails so far", "0 of 1, 3 not run"),
        (0.5, (False, True, None, None), "holds so far", "1 of 2, 2 not run"),
        (0.9, (True,) * 9 + (False,), "holds", "9 of 10"),
    ],
)
def test_verdict_status_and_counts(share, cases, status, counts):
    result = verdict(share, *cases)
    assert (result.status, result.counts) == (status, counts)
    only = "only " if status.startswith("fails") else ""
    assert result.answer == ("not run" if status == "not run" else f"holds in {only}{counts}")


def test_evidence_requires_complete_results(tmp_path):
    small = Selection(datasets=("cora",), runs=1, epochs=3, depths=(2, 4), missing=(0,))
    wider = Selection(datasets=("cora",), runs=1, epochs=3, depths=(2, 4, 8), missing=(0,))
    experiment = small.narrow(TABLE1)
    assert experiment is not None
    results = ResultIndex.read(fill(tmp_path / "s.sqlite", [experiment]))
    cell = TableCell("cora", "SGC", 0)
    result = Evidence(results, {}, small).chosen("table1", *cell)
    assert result is not None
    assert replace(result, all_runs=None) == results.chosen(experiment, cell)
    curve = Evidence(results, {}, small).curve("table1", *cell)
    assert curve is not None
    assert [one.spec.depth for one in curve] == [2, 4]
    assert Evidence(results, {}, wider).chosen("table1", *cell) is None  # depth 8 is missing
    assert Evidence(results, {}, wider).curve("table1", *cell) is None
    assert Evidence(results, {}, small).chosen("table1", "cora", "SGC", 100) is None  # not asked for
    assert Evidence(results, {}, small).chosen("table1", "pubmed", "SGC", 0) is None
    assert Evidence(results, {}, small).study("GCN", "PN") is None
    other = Evidence(results, {}, small).chosen("table1", "cora", "SGC-PN", 0)
    case = compare("label", "better", result, other)
    assert case.holds is True
    assert case.evidence == "0.803 @ 2 against 0.789 @ 2"
    assert compare("label", "better", result, None) == Case("label", None)


@pytest.mark.parametrize(
    ("share", "cases", "deciding"),
    [
        (1.0, (True, True), "1"),  # the second is unsure, and could make it fail
        (1.0, (False, True), ""),  # it fails anyway
        (1.0, (True, False), "1"),
        (0.5, (True, True), ""),  # it holds anyway
        (0.5, (False, True), "1"),
        (1.0, (None, True), ""),
    ],
)
def test_unsure_cases_are_those_that_change_the_verdict(share, cases, deciding):
    result = verdict(share, *cases)
    unsure = [replace(case, unsure=(Spec("cora", "GCN", 2),) * (case.label == "1")) for case in result.cases]
    result = Verdict(result.claim, unsure)
    assert [case.label for case in result.unsure] == list(deciding)
    assert result.answer.endswith(", within noise") == bool(deciding)
