import gc
import mmap

import numpy as np
import pytest

from pairnorm.base.memory import anonymous_memory, free_memory, parse_memory, size, without_collection


@pytest.mark.parametrize(
    ("text", "count"), [(5, 5), ("8GB", 8 * 10**9), ("1.5 mb", 1_500_000), ("2GiB", 2**31)]
)
def test_sizes(text, count):
    assert parse_memory(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "8XB", None, 1e99])
def test_what_is_no_size(text, raises):
    with raises("not-a-size", value=text):
        parse_memory(text)


def test_size_is_read_back():
    for count in (17, 4_000, 8 * 10**6, 9 * 10**9):
        assert parse_memory(size(count)) == count


def test_anonymous_memory_is_what_is_allocated_not_what_is_mapped(tmp_path):
    np.zeros(2**23).tofile(tmp_path / "zeros")
    before = anonymous_memory()
    mapped = np.memmap(tmp_path / "zeros", mode="r")
    assert mapped.sum() == 0
    # Not from malloc, which may have kept as much from a test before this one.
    with mmap.mmap(-1, 2**26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for _ in range(2**10):  # in pieces, of which malloc keeps little
            held.write(bytes(2**16))
        assert 0.9 < (anonymous_memory() - before) / 2**26 < 1.2
    assert free_memory() > 10**7


def test_garbage_is_collected_again_afterwards():
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), without_collection():
        1 / 0
    assert gc.isenabled()


def test_who_collects_none_is_left_alone():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
