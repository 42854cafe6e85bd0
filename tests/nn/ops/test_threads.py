import threading

import pytest
import torch

from pairnorm.nn import SparseMatrix, pair_norm
from pairnorm.nn.ops._numba import pair_norm as pair_norm_kernels
from pairnorm.nn.ops._numba import sparse_product
from pairnorm.nn.ops._numba.vectors import share_out


@pytest.fixture
def with_threads():
    """Do it with a number of threads; afterwards there are as many as before."""
    usual = torch.get_num_threads()

    def done(count, work):
        torch.set_num_threads(count)
        return work()

    yield done
    torch.set_num_threads(usual)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranges_cover_rows_once_for_any_number_of_threads(with_threads, count):
    ranges, busy = [], set()

    def work(start, stop):
        ranges.append((start, stop))
        busy.add(threading.get_ident())

    with_threads(count, lambda: share_out(10, 4, work))
    assert sorted(ranges) == [(0, 4), (4, 8), (8, 10)]
    assert len(busy) <= count


def test_error_in_a_thread_is_raised(with_threads):
    with pytest.raises(ZeroDivisionError):
        with_threads(2, lambda: share_out(4, 1, lambda start, stop: 1 // start))


@pytest.mark.parametrize("trials", [1, 2])
def test_products_do_not_depend_on_threads(with_threads, monkeypatch, trials):
    dense = torch.randn(50, 50) * (torch.rand(50, 50) < 0.3)
    matrix, x = SparseMatrix.from_torch(dense), torch.randn(50, trials, 33)
    expected = torch.einsum("ij,jtf->itf", dense, x)
    whole = matrix @ x
    monkeypatch.setattr(sparse_product, "MIN_WORK_FOR_THREADS", 0)
    monkeypatch.setattr(sparse_product, "NUMBERS_PER_TASK", 7 * 33 * trials)
    for count in (1, 2, 3):
        actual = with_threads(count, lambda: matrix @ x)
        assert torch.equal(actual, whole)
        torch.testing.assert_close(actual, expected)


def test_propagation_and_centering_do_not_depend_on_threads(with_threads, monkeypatch):
    monkeypatch.setattr(sparse_product, "ROWS_PER_TASK", 6)
    crow, column = torch.arange(0, 81, 2), torch.randint(0, 40, (80,), dtype=torch.int32)
    x = torch.randn(40, 5) + 100

    def propagate_and_center():
        y = torch.empty_like(x)
        sparse_product.propagate(crow, column, None, None, x, y)
        return y, sparse_product.center(y)

    first, *others = (with_threads(count, propagate_and_center) for count in (1, 2, 3))
    for other in others:
        assert torch.equal(first[0], other[0])
        assert first[1] == other[1]


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_large_pair_norm_does_not_depend_on_threads(with_threads, mode):
    x = torch.randn(3 * pair_norm_kernels.MIN_ELEMENTS_FOR_THREADS // 64, 64, requires_grad=True)

    def both():
        y = pair_norm(x, mode=mode)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    first, second = (with_threads(count, both) for count in (1, 2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
