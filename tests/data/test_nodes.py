from collections.abc import Callable
from typing import Any

import pandas
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Encoder
from pairnorm.data import nodes as module
from pairnorm.data.encoder import Options
from pairnorm.data.nodes import read_nodes
from pairnorm.data.tables import Source

Cell = st.one_of(st.none(), st.integers(-9, 9))
Word = st.one_of(st.none(), st.sampled_from(["red", "green", "NA"]))


def table(frame: pandas.DataFrame) -> Source:
    return Source("nodes.csv", tuple(frame.columns), frame)


def read(frame: pandas.DataFrame, known: Encoder | None = None, **told: Any) -> dict[str, Any]:
    """Read a frame whose rows get ids of their own."""
    named = frame.assign(id=[f"n{row}" for row in range(len(frame))])
    return read_nodes([table(named)], Options(id="id", **told), known)


@given(st.lists(st.tuples(Cell, Cell, Word), min_size=1, max_size=12), st.booleans())
def test_features_are_those_written_by_hand_dense_and_sparse(
    rows: list[tuple[int | None, int | None, str | None]], sparse: bool
) -> None:
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"]).astype({"a": float, "b": float, "c": object})
    words = sorted({word for *_, word in rows if word is not None})
    kept = module.SPARSE_BELOW
    module.SPARSE_BELOW = 2.0 if sparse else 0.0
    try:
        found = read(frame, categorical=["c"])
    finally:
        module.SPARSE_BELOW = kept
    assert found["encoder"].feature_names == ("a", "b", *(f"c={word}" for word in words))
    expected = [[a or 0, b or 0, *(float(c == word) for word in words)] for a, b, c in rows]
    assert found["features"].to_dense().tolist() == expected

    empty = [[a is None, b is None, *(c is None for _ in words)] for a, b, c in rows]
    whole = [(a, b, c) == (None, None, None) for a, b, c in rows]
    partly = any(None in row for row, all_empty in zip(rows, whole, strict=True) if not all_empty)
    assert found["missing"].tolist() == (empty if partly else whole)

    again = read(frame, known=found["encoder"])
    assert torch.equal(again["features"].to_dense(), found["features"].to_dense())
    assert torch.equal(again["missing"], found["missing"])


def test_wide_and_empty_features_are_kept_sparse() -> None:
    frame = pandas.DataFrame({f"w{i}": [float(i == row) for row in range(20)] for i in range(20)})
    assert read(frame)["features"].layout == torch.sparse_csr
    assert read(frame[["w1", "w2"]])["features"].layout == torch.sparse_csr
    assert read(frame[["w1", "w2"]][:4])["features"].layout == torch.strided


def test_numbers_can_be_categories() -> None:
    found = read(pandas.DataFrame({"zip": ["007", "7", None]}), categorical=["zip"])
    assert found["encoder"].feature_names == ("zip=007", "zip=7")
    assert found["missing"].tolist() == [False, False, True]


def test_more_categories_than_the_cap_are_refused(raises: Callable) -> None:
    frame = pandas.DataFrame({"city": [f"n{i % 1001}" for i in range(2002)]})
    with raises("too-many-categories", value="city", expected="at most 1,000 categories"):
        read(frame)
    assert read(frame, keep=["city"])["features"].shape == (2002, 1001)
    assert read(frame, categorical=["city"])["features"].shape == (2002, 1001)


def test_no_columns_are_no_features() -> None:
    found = read(pandas.DataFrame(index=range(2)))
    assert found["features"].shape == (2, 0)
    assert found["missing"].tolist() == [False, False]
    assert found["notes"] == ("there are no feature columns: fit takes degrees and other structure instead",)
