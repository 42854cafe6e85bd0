from dataclasses import replace

import pytest

from pairnorm.errors import PairNormError
from pairnorm.paper.experiment import Experiment, Place
from pairnorm.train import Spec

TINY = Experiment(
    "tiny",
    "An example",
    {"GCN": {"model": "GCN", "depth": (4, 2)}, "SGC": {"model": "SGC", "depth": 3, "dropout": (0.0, 0.6)}},
    missing={0: 2, 100: 1},
    datasets=("cora", "citeseer"),
)


def test_candidates_span_what_is_listed_the_shallow_first() -> None:
    assert TINY.candidates(Place("cora", "GCN", 100)) == [
        Spec("cora", "GCN", 2, missing_rate=1.0),
        Spec("cora", "GCN", 4, missing_rate=1.0),
    ]
    assert TINY.candidates(Place("citeseer", "SGC", 0)) == [
        Spec("citeseer", "SGC", 3, dropout=0.0),
        Spec("citeseer", "SGC", 3),
    ]


def test_pairs_are_all_runs_of_all_candidates_of_all_places() -> None:
    pairs = list(TINY.pairs())
    # 2 graphs x 2 methods x 2 candidates x (2 runs at 0% + 1 at 100%)
    assert len(pairs) == len(set(pairs)) == 24
    assert {seed for spec, seed in pairs if spec.missing_rate == 1} == {0}


def test_a_search_starts_with_fewer_runs() -> None:
    search = replace(TINY, missing={0: 5}, search_runs=1, searched=("dropout",))
    assert {seed for _, seed in search.pairs()} == {0}


def test_what_values_without_meaning_share_is_one_candidate() -> None:
    plain = Experiment("x", "x", {"GCN": {"model": "GCN", "depth": 2, "scale": (1.0, 10.0)}}, {0: 1})
    assert len(plain.candidates(Place("cora", "GCN", 0))) == 1


def test_narrowed() -> None:
    small = TINY.narrowed(datasets=["cora"], runs=3, epochs=9, depths=[8, 6, 8], missing=[100, 20])
    assert small is not None
    assert (small.datasets, small.missing) == (("cora",), {100: 3})
    specs = small.candidates(Place("cora", "GCN", 100))
    assert [(spec.depth, spec.epochs) for spec in specs] == [(6, 9), (8, 9)]
    assert TINY.narrowed() == TINY


def test_nothing_is_left() -> None:
    assert TINY.narrowed(missing=[20]) is None
    assert TINY.narrowed(datasets=["pubmed"]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "runs is 0; expected 1 or more"),
        ({"epochs": -1}, "epochs is -1"),
        ({"depths": [2, 0]}, "depths is 0"),
        ({"datasets": ["corra"]}, "Did you mean 'cora'"),
    ],
)
def test_what_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        TINY.narrowed(**options)  # type: ignore[arg-type]
