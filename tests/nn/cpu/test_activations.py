import numpy as np
from numba import njit

from pairnorm.nn.cpu.activations import CODES, activated, exp
from pairnorm.nn.cpu.simd import LANES, load, store


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


def test_exp_far_below_is_next_to_nothing():
    assert (applied(exponentials, [-88, -1e4, -1e30, -np.inf]) < 1e-37).all()
    assert np.isnan(applied(exponentials, [np.nan]))


def test_elu_is_accurate_next_to_zero_too():
    x = -np.logspace(-30, 1.9, 10_001)
    result = applied(activations, x, CODES["elu"])
    np.testing.assert_allclose(result, np.expm1(x.astype(np.float32).astype(np.float64)), rtol=2e-7)


def test_what_no_activation_changes():
    for name in CODES:
        x = np.array([0.0, 1e-30, 1.0, 1e30, np.inf, np.nan], np.float32)
        np.testing.assert_array_equal(applied(activations, x, CODES[name]), x)
