import re
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from pairnorm.nn.ops._numba.vectors import (
    LANES,
    MIN_HUGE_BYTES,
    activated,
    bits,
    empty,
    exp,
    fill,
    load,
    store,
    total,
    where_less,
    widen,
)
from pairnorm.nn.ops.sparse_product import CODES

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
widths = pytest.mark.parametrize("width", [1, LANES - 1, LANES, LANES + 1, 3 * LANES + 5])


@njit
def combine(a, b, result):
    for row in range(len(a)):
        for start in range(0, a.shape[1], LANES):
            left, right = load(a, row, start), load(b, row, start)
            store(result, row, start, left * right + left - right * np.float32(2))


@njit
def sums(a, result):
    for row in range(len(a)):
        for start in range(0, a.shape[1], LANES):
            result[row] += total(widen(load(a, row, start)))


@njit
def smaller(a, b, result):
    for start in range(0, a.shape[1], LANES):
        one, other = load(a, 0, start), load(b, 0, start)
        store(result, 0, start, where_less(one, other, one, fill(np.float32(7))))


@njit
def scramble(a, result):
    for start in range(0, a.shape[1], LANES):
        x = load(a, 0, start)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B) + ((x & np.uint32(255)) << np.uint32(3))
        store(result, 0, start, x)


@njit
def there_and_back(a, result):
    for start in range(0, a.shape[1], LANES):
        store(result, 0, start, bits(bits(load(a, 0, start))))


def drawn(rows, width, padding=0):
    return np.random.default_rng(0).standard_normal((rows, width + padding), np.float32)[:, :width]


@widths
@pytest.mark.parametrize("padding", [0, 3])
def test_arithmetic_covers_every_column_and_no_other(width, padding):
    a, b = drawn(3, width, padding), drawn(3, width, padding)[::-1]
    whole = np.full((3, width + padding), 5, np.float32)
    combine(a, b, whole[:, :width])
    np.testing.assert_allclose(whole[:, :width], a * b + a - 2 * b, rtol=1e-5, atol=1e-6)
    assert (whole[:, width:] == 5).all()


@widths
def test_sums(width):
    a, result = drawn(4, width), np.zeros(4)
    sums(a, result)
    np.testing.assert_allclose(result, a.sum(1, dtype=np.float64), rtol=1e-12)


@widths
def test_choices(width):
    a, b = drawn(2, width)
    a[0] = np.nan
    result = np.empty((1, width), np.float32)
    smaller(a[None], b[None], result)
    np.testing.assert_array_equal(result[0], np.where(a < b, a, np.float32(7)))


@widths
def test_integers(width):
    a = np.random.default_rng(1).integers(0, 2**32, (1, width), np.uint32)
    result = np.empty_like(a)
    scramble(a, result)
    np.testing.assert_array_equal(result, (a ^ (a >> 15)) * np.uint32(0x846CA68B) + ((a & 255) << 3))


def test_bits():
    a = np.array([[0.0, -0.0, np.inf, -1.5, 1e-40]], np.float32)
    result = np.empty_like(a)
    there_and_back(a, result)
    np.testing.assert_array_equal(result.view(np.uint32), a.view(np.uint32))


@njit
def exponentials(x, result):
    for start in range(0, x.shape[1], LANES):
        store(result, 0, start, exp(load(x, 0, start)))


@njit
def activations(x, code, result):
    for start in range(0, x.shape[1], LANES):
        store(result, 0, start, activated(load(x, 0, start), code))


def applied(function, x, *settings):
    x = np.asarray(x, np.float32).reshape(1, -1)
    result = np.empty_like(x)
    function(x, *settings, result)
    return result[0]


def test_exp_has_the_accuracy_of_single_precision():
    x = np.linspace(-87, 88, 100_001, dtype=np.float32)
    np.testing.assert_allclose(applied(exponentials, x), np.exp(x.astype(np.float64)), rtol=2e-7)


def test_exp_of_very_negative_numbers_is_tiny():
    assert (applied(exponentials, [-88, -1e4, -1e30, -np.inf]) < 1e-37).all()
    assert np.isnan(applied(exponentials, [np.nan]))


def test_elu_is_accurate_near_zero():
    x = -np.logspace(-30, 1.9, 10_001)
    result = applied(activations, x, CODES["elu"])
    np.testing.assert_allclose(result, np.expm1(x.astype(np.float32).astype(np.float64)), rtol=2e-7)


def test_nan_and_positive_numbers_pass_activations():
    for name in CODES:
        x = np.array([0.0, 1e-30, 1.0, 1e30, np.inf, np.nan], np.float32)
        np.testing.assert_array_equal(applied(activations, x, CODES[name]), x)


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="the system has no huge pages")
def test_large_memory_is_on_huge_pages():
    room = empty(MIN_HUGE_BYTES // 4, 2)
    inside, flags = room.data_ptr() + room.nbytes // 2, ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            actual = int(span[1], 16) <= inside < int(span[2], 16)
        elif actual and line.startswith("VmFlags:"):
            flags = line
    assert "hg" in flags.split()
