import copy
import pickle
from dataclasses import FrozenInstanceError, fields
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.errors import PairNormError
from pairnorm.nn.models import ORDERS
from pairnorm.nn.propagate import KINDS
from pairnorm.train.spec import HIDDEN, MISSING_KINDS, NORMS, Spec

names = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1).filter(str.isprintable)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
specs = st.builds(
    Spec,
    names,
    st.sampled_from(tuple(HIDDEN)),
    st.integers(1, 100),
    hidden=st.integers(0, 512),
    heads=st.integers(1, 8),
    norm=st.sampled_from(NORMS),
    scale=positive,
    order=st.sampled_from(ORDERS),
    skip=st.integers(0, 3),
    dropout=st.floats(0, 1, exclude_max=True),
    adjacency=st.sampled_from(KINDS),
    missing_rate=st.floats(0, 1),
    missing_kind=st.sampled_from(MISSING_KINDS),
    split=names,
    learning_rate=positive,
    weight_decay=st.floats(0, allow_infinity=False),
    epochs=st.integers(1, 10_000),
)


@given(specs)
def test_texts_round_trip(spec: Spec) -> None:
    assert Spec.parse(spec.text) == spec
    assert Spec.parse(str(spec)) == spec
    assert eval(repr(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert spec.hash == sha256(spec.text.encode()).hexdigest()[:16]


@given(specs, specs, st.sampled_from([field.name for field in fields(Spec)]))
def test_equal_specs_and_equal_texts_are_the_same_thing(one: Spec, donor: Spec, name: str) -> None:
    other = one.replace(**{name: getattr(donor, name)})
    assert (one == other) == (one.text == other.text) == (one.hash == other.hash)


@given(specs)
def test_normalising_twice_changes_nothing(spec: Spec) -> None:
    assert Spec(**{field.name: getattr(spec, field.name) for field in fields(spec)}) == spec


def test_a_later_field_is_in_the_text_only_where_it_was_changed() -> None:
    plain, raw = Spec("cora", "GCN", 2), Spec("cora", "GCN", 2, scaling="none")
    assert plain.text.endswith("epochs=1000")
    assert raw.text == f"{plain.text} scaling=none"
    assert Spec.parse(raw.text) == raw
    assert plain == Spec("cora", "GCN", 2, scaling="rows")
    assert plain.hash != raw.hash


def test_text_and_hash_are_pinned() -> None:
    # Whoever changes these loses every result computed before.
    spec = Spec("cora", "GCN", 10, norm="PN-SI", missing_rate=1.0)
    assert spec.text == (
        "cora GCN depth=10 hidden=32 heads=1 norm=PN-SI scale=1.0 order=after skip=0 dropout=0.6 "
        "adjacency=rw missing_rate=1.0 missing_kind=vectors split=default "
        "learning_rate=0.005 weight_decay=0.0005 epochs=1000"
    )
    assert spec.hash == "209a94b365837d22"
    assert Spec("my graph", "SGC", 2).text.startswith("'my graph' SGC depth=2 hidden=0 ")


def test_people_see_what_is_not_default() -> None:
    assert str(Spec("cora", "GAT", 2)) == "cora GAT depth=2"
    assert str(Spec("cora", "GAT", 2, hidden=32, epochs=5)) == "cora GAT depth=2 hidden=32 epochs=5"


@pytest.mark.parametrize(
    ("model", "given_", "same_as"),
    [
        ("SGC", {"hidden": 16, "heads": 4, "skip": 2, "order": "before"}, {}),
        ("SGC", {"norm": "PN", "order": "before"}, {"norm": "PN"}),
        ("GCN", {"heads": 8}, {"hidden": 32}),
        ("GAT", {"adjacency": "sym"}, {"hidden": 64}),
        ("GCN", {"scale": 10.0, "order": "before"}, {"norm": "none"}),
        ("GCN", {"missing_kind": "nodes"}, {"missing_rate": 0.0}),
        ("GCN", {"missing_kind": "given", "missing_rate": 0.3}, {"missing_kind": "given"}),
        ("GCN", {"missing_rate": -0.0, "weight_decay": 0}, {"weight_decay": -0.0}),
    ],
)
def test_fields_without_meaning_do_not_tell_cells_apart(
    model: str, given_: dict[str, object], same_as: dict[str, object]
) -> None:
    one, other = Spec("cora", model, 4, **given_), Spec("cora", model, 4, **same_as)
    assert one == other
    assert one.hash == other.hash
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("SGC", {"norm": "PN"}),
        ("SGC", {"dropout": 0.0}),
        ("SGC", {"adjacency": "sym"}),
        ("GCN", {"adjacency": "sym"}),
        ("GCN", {"skip": 1}),
        ("GAT", {"heads": 2}),
        ("GAT", {"missing_rate": 0.2}),
        ("GCN", {"missing_kind": "given"}),
        ("GCN", {"split": "random"}),
        ("GCN", {"learning_rate": 0.2}),
    ],
)
def test_fields_with_meaning_tell_cells_apart(model: str, change: dict[str, object]) -> None:
    assert Spec("cora", model, 4, **change).hash != Spec("cora", model, 4).hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": ""}, "dataset is ''; expected a name"),
        ({"dataset": "two\nlines"}, "dataset is 'two.nlines'; expected a name"),
        ({"split": None}, "split is None; expected a name"),
        ({"model": "gcn"}, "model is 'gcn'; expected one of 'SGC', 'GCN', 'GAT'"),
        ({"norm": "PNSI"}, "norm is 'PNSI'; .* Did you mean 'PN-SI'"),
        ({"order": 1}, "order is 1; expected one of 'after', 'before'"),
        ({"adjacency": "row"}, "adjacency is 'row'; expected one of 'rw', 'sym'"),
        ({"missing_kind": "rows"}, "missing_kind is 'rows'; expected one of"),
        ({"depth": 0}, "depth is 0; expected a whole number, 1 or more"),
        ({"depth": True}, "depth is True; expected a whole number"),
        ({"depth": 2.0}, "depth is 2.0; expected a whole number"),
        ({"hidden": -1}, "hidden is -1; expected a whole number, 0 or more"),
        ({"epochs": "10"}, "epochs is '10'; expected a whole number"),
        (
            {"missing_rate": 20},
            "missing_rate is 20; expected a number from 0 to 1 .a fraction, not a percentage",
        ),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number from 0 up to, but not including, 1"),
        ({"scale": 0}, "scale is 0; expected a number above 0"),
        ({"scale": float("nan")}, "scale is nan; expected a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; expected a number above 0"),
        ({"weight_decay": "none"}, "weight_decay is 'none'; expected a number of 0 or more"),
    ],
)
def test_values_are_checked_when_given(change: dict[str, object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Spec(**({"dataset": "cora", "model": "GCN", "depth": 2} | change))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "spec is ''; expected dataset, model and options"),
        ("cora", "spec is 'cora'; expected dataset, model and options"),
        ("'cora GCN", "expected dataset, model and options"),
        ("cora GCN", "has no depth; add for example depth=2"),
        ("cora GCN depth", "expected depth=value"),
        ("cora GCN depth=2 depth=4", "depth=4.* depth once"),
        ("cora GCN depth=2 dataset=citeseer", "dataset once"),
        ("cora GCN depth=two", "depth is 'two'; expected a whole number"),
        ("cora GCN depht=2", "field is 'depht'; .* Did you mean 'depth'"),
        ("cora GCN depth=2 scale=big", "scale is 'big'; expected a number above 0"),
    ],
)
def test_bad_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Spec.parse(text)


def test_replace() -> None:
    spec = Spec("cora", "SGC", 2)
    assert spec.replace(model="GCN", skip=1) == Spec("cora", "GCN", 2, hidden=32, skip=1)
    with pytest.raises(PairNormError, match="Did you mean 'depth'"):
        spec.replace(depths=3)
    with pytest.raises(FrozenInstanceError):
        spec.depth = 3  # type: ignore[misc]
