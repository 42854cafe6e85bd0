import copy
import os
import pickle
from dataclasses import FrozenInstanceError, fields
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph, datasets, load
from pairnorm.nn.models import ORDERS
from pairnorm.nn.propagate import NORMALIZATIONS
from pairnorm.train import train
from pairnorm.train.spec import FINGERPRINTS, HIDDEN, MISSING_KINDS, NORMS, Spec

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
    adjacency=st.sampled_from(NORMALIZATIONS),
    missing_rate=st.floats(0, 1),
    missing_kind=st.sampled_from(MISSING_KINDS),
    split=names,
    learning_rate=positive,
    weight_decay=st.floats(0, allow_infinity=False),
    epochs=st.integers(1, 10_000),
    method=st.sampled_from(("none", "mine@1")),
    strength=st.floats(0, allow_infinity=False),
)


@given(specs)
def test_texts_round_trip(spec: Spec) -> None:
    assert Spec.parse(spec.text) == spec
    assert Spec.parse(str(spec)) == spec
    assert eval(repr(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert spec.hash == sha256(spec.text.encode()).hexdigest()[:16]


@given(specs, specs, st.sampled_from([field.name for field in fields(Spec)]))
def test_specs_are_equal_if_texts_are(one: Spec, donor: Spec, name: str) -> None:
    other = one.replace(**{name: getattr(donor, name)})
    assert (one == other) == (one.text == other.text) == (one.hash == other.hash)


@given(specs)
def test_canonical_fields_are_idempotent(spec: Spec) -> None:
    assert Spec(**{field.name: getattr(spec, field.name) for field in fields(spec)}) == spec


def test_added_field_is_in_the_text_only_if_changed() -> None:
    plain, raw = Spec("cora", "GCN", 2), Spec("cora", "GCN", 2, scaling="none")
    assert plain.text.endswith("epochs=1000")
    assert raw.text == f"{plain.text} scaling=none"
    assert Spec.parse(raw.text) == raw
    assert plain == Spec("cora", "GCN", 2, scaling="rows", imputation="zero")
    assert plain.hash != raw.hash


def test_imputation_applies_only_to_missing_features() -> None:
    whole = Spec("cora", "GCN", 2)
    assert whole == Spec("cora", "GCN", 2, imputation="fp")
    gaps, given = (
        Spec("cora", "GCN", 2, missing_rate=1, imputation="fp"),
        Spec("cora", "GCN", 2, missing_kind="given", imputation="fp"),
    )
    assert gaps.text == f"{Spec('cora', 'GCN', 2, missing_rate=1).text} fill=fp"
    assert given.imputation == "fp"


def test_precision_applies_only_to_layers() -> None:
    assert Spec("cora", "GCN", 2, precision="bfloat16").text.endswith("epochs=1000 precision=bfloat16")
    assert Spec("cora", "SGC", 2, precision="bfloat16") == Spec("cora", "SGC", 2)
    gcnii = Spec("cora", "GCN", 8, method="GCNII")
    assert gcnii == Spec("cora", "GCN", 8, method="GCNII", precision="bfloat16")


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


def test_str_omits_defaults() -> None:
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
def test_fields_without_effect_do_not_change_the_spec(
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
def test_fields_with_effect_change_the_spec(model: str, change: dict[str, object]) -> None:
    assert Spec("cora", model, 4, **change).hash != Spec("cora", model, 4).hash


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("not-a-name", {"dataset": ""}),
        ("not-a-name", {"dataset": "two\nlines"}),
        ("not-a-name", {"split": None}),
        ("unknown-choice", {"model": "gcn"}),
        ("unknown-choice", {"norm": "PNSI"}),
        ("unknown-choice", {"order": 1}),
        ("unknown-choice", {"adjacency": "row"}),
        ("unknown-choice", {"missing_kind": "rows"}),
        ("not-a-whole-number", {"depth": 0}),
        ("not-a-whole-number", {"depth": True}),
        ("not-a-whole-number", {"depth": 2**70}),
        ("not-a-whole-number", {"depth": 2.0}),
        ("not-a-whole-number", {"hidden": -1}),
        ("not-a-whole-number", {"epochs": "10"}),
        ("not-a-number", {"missing_rate": 20}),
        ("not-a-number", {"dropout": 1.0}),
        ("not-a-number", {"scale": 0}),
        ("not-a-number", {"scale": float("nan")}),
        ("not-a-number", {"learning_rate": float("inf")}),
        ("not-a-number", {"weight_decay": "none"}),
    ],
)
def test_invalid_values_raise(raises: Any, code: str, change: dict[str, object]) -> None:
    [(name, value)] = change.items()
    with raises(code) as caught:
        Spec(**({"dataset": "cora", "model": "GCN", "depth": 2} | change))
    assert caught.value.problem == f"{name} is {value!r}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "malformed-spec"),
        ("cora", "malformed-spec"),
        ("'cora GCN", "malformed-spec"),
        ("cora GCN", "malformed-spec"),
        ("cora GCN depth", "malformed-spec"),
        ("cora GCN depth=2 depth=4", "malformed-spec"),
        ("cora GCN depth=2 dataset=citeseer", "malformed-spec"),
        ("cora GCN depth=two", "not-a-whole-number"),
        ("cora GCN depht=2", "unknown-choice"),
        ("cora GCN depth=2 scale=big", "not-a-number"),
    ],
)
def test_malformed_texts_raise(raises: Any, text: str, code: str) -> None:
    with raises(code):
        Spec.parse(text)


def test_replace(raises: Any) -> None:
    spec = Spec("cora", "SGC", 2)
    assert spec.replace(model="GCN", skip=1) == Spec("cora", "GCN", 2, hidden=32, skip=1)
    with raises("unknown-choice", value="depths", hint="Did you mean 'depth'?"):
        spec.replace(depths=3)
    with pytest.raises(FrozenInstanceError):
        spec.depth = 3  # type: ignore[misc]


@pytest.mark.skipif("PAIRNORM_DATA" not in os.environ, reason="PAIRNORM_DATA is not set")
def test_fingerprints_of_named_graphs() -> None:
    named = [dataset.name for dataset in datasets()]
    assert {name: load(name).fingerprint for name in named} == {name: FINGERPRINTS[name] for name in named}


def test_skip_longer_than_the_model_is_removed() -> None:
    deep = Spec("cora", "GCN", 8, skip=2)
    assert [deep.replace(depth=depth).skip for depth in (8, 4, 3, 1)] == [2, 2, 0, 0]


def changed(spec: Spec, **fields: Any) -> Spec:
    """Return a copy with other fields, also those that the constructor resets."""
    spec = copy.copy(spec)
    vars(spec).update(fields)
    return spec


@pytest.mark.parametrize(
    ("text", "idle", "depth"),
    [
        ("csbm GCN depth=1 epochs=3", {"norm": "PN", "scale": 5.0, "order": "before"}, 2),
        ("csbm GAT depth=1 epochs=3", {"norm": "PN-SI"}, 2),
        ("csbm GCN depth=1 epochs=3", {"precision": "bfloat16"}, 2),
        ("csbm GCN depth=1 epochs=3", {"hidden": 7}, 2),
        ("csbm GCN depth=1 epochs=3", {"method": "BatchNorm"}, 2),
        ("csbm GCN depth=2 epochs=3", {"skip": 1}, 3),
        ("csbm GAT depth=3 epochs=3", {"skip": 2}, 4),
        ("csbm GCN depth=3 norm=PN epochs=3", {"skip": 3}, 5),
    ],
)
def test_field_without_effect_at_a_depth_changes_neither_spec_nor_result(
    graph: Graph, text: str, idle: dict[str, Any], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec.parse(text)
    assert spec.replace(**idle) == spec
    with monkeypatch.context() as patch:
        patch.setattr(Spec, "replace", changed)
        assert train(graph, changed(spec, **idle), [0], "cpu") == train(graph, spec, [0], "cpu")
    deep = spec.replace(depth=depth)  # where the field can act
    assert train(graph, deep.replace(**idle), [0], "cpu") != train(graph, deep, [0], "cpu")
    assert deep.replace(**idle).replace(depth=spec.depth) == spec
