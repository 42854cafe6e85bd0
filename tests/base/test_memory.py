import gc

import pytest

from pairnorm.base.memory import parse_memory, size, without_collection


@pytest.mark.parametrize(
    ("text", "count"), [(5, 5), ("8GB", 8 * 10**9), ("1.5 mb", 1_500_000), ("2GiB", 2**31)]
)
def test_parse_memory_reads_units(text, count):
    assert parse_memory(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "8XB", None, 1e99])
def test_invalid_size_raises(text, raises):
    with raises("not-a-size", value=text):
        parse_memory(text)


def test_size_round_trips():
    for count in (17, 4_000, 8 * 10**6, 9 * 10**9):
        assert parse_memory(size(count)) == count


def test_garbage_collection_is_restored():
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), without_collection():
        1 / 0
    assert gc.isenabled()


def test_disabled_collection_stays_disabled():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
