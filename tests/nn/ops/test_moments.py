import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pairnorm.nn.ops.pair_norm import Groups, Moments

BATCH = torch.tensor([3, 0, 3, 1, 0, 3])


def groups(x, batch):
    return Groups.of(x, batch, None if batch is None else 5)


@pytest.mark.parametrize("batch", [None, BATCH, BATCH.int()], ids=["one graph", "batch", "int32"])
@pytest.mark.parametrize("middle", [(), (2,), (2, 3)])
def test_sums_and_means_equal_a_loop(batch, middle):
    x = torch.randn(6, *middle, 4, dtype=torch.float64)
    graph = torch.zeros(6, dtype=torch.long) if batch is None else batch
    total, mean = groups(x, batch).sum(x), groups(x, batch).mean(x)
    assert total.shape == mean.shape == (1 if batch is None else 5, *middle, 4)
    for number in range(len(total)):
        rows = x[graph == number]
        torch.testing.assert_close(total[number], rows.sum(0))
        torch.testing.assert_close(
            mean[number], rows.mean(0) if len(rows) else torch.zeros(*middle, 4).double()
        )


@pytest.mark.parametrize("batch", [None, BATCH])
def test_centering_is_a_projection_that_is_its_own_adjoint(batch):
    x, y = torch.randn(2, 6, 3, dtype=torch.float64)
    center = groups(x, batch).center
    torch.testing.assert_close(center(center(x)), center(x))
    torch.testing.assert_close((center(x) * y).sum(), (x * center(y)).sum())
    assert groups(x, batch).sum(center(x)).abs().max() < 1e-12


@pytest.mark.parametrize("batch", [None, BATCH])
def test_to_nodes_returns_the_statistic_of_each_graph(batch):
    x = torch.randn(6, 2, 3)
    statistic = groups(x, batch).mean(x)
    of_nodes = groups(x, batch).to_nodes(statistic).expand(6, 2, 3)
    for node in range(6):
        assert torch.equal(of_nodes[node], statistic[0 if batch is None else batch[node]])


def test_sums_are_additive_over_parts():
    x = torch.randn(6, 4, dtype=torch.float64)
    parts = [groups(x[part], BATCH[part]).sum(x[part]) for part in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(sum(parts), groups(x, BATCH).sum(x))


@pytest.mark.parametrize("operation", ["sum", "mean", "center"])
def test_gradients(operation):
    x = torch.randn(6, 2, 2, dtype=torch.float64, requires_grad=True)
    function = getattr(groups(x, BATCH), operation)
    assert gradcheck(function, x)
    assert gradgradcheck(lambda x: function(x).pow(2), x)


def test_batch_size_defaults_to_largest_graph_plus_one():
    assert Groups.of(torch.randn(6, 2), BATCH, None).size == 4
    assert Groups.of(torch.randn(0, 2), BATCH[:0], None).size == 0
    assert Groups.of(torch.randn(6, 2), None, 7).size == 1


def test_large_mean_keeps_small_differences():
    x = 1e6 + torch.randn(1000, 4)
    expected = x.double() - x.double().mean(0)
    torch.testing.assert_close(Groups(1000).center(x).double(), expected, rtol=0, atol=1e-5)


def test_list_as_batch_raises(raises):
    with raises("wrong-type", value=[0, 0, 1]):
        Groups.of(torch.ones(3, 2), [0, 0, 1], None)


class TestMoments:
    @pytest.mark.parametrize("sizes", [(6,), (1, 5), (2, 3, 1), (1, 1, 1, 1, 1, 1)])
    @pytest.mark.parametrize("offset", [0.0, 1e8])
    def test_merged_moments_equal_those_of_all_rows(self, sizes, offset):
        x = offset + torch.randn(6, 2, 4, dtype=torch.float64)
        merged = moments(x.split(sizes)).merge()
        whole = moments([x])
        assert merged.count.item() == 6
        torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(merged.squares, whole.squares, rtol=1e-6, atol=0)
        torch.testing.assert_close(merged.mean_square, merged.squares / 6)

    def test_empty_part_does_not_change_moments(self):
        x = torch.randn(4, 1, 3, dtype=torch.float64)
        parts = moments([x[:3], x[3:], x[:1]])
        empty = Moments(torch.tensor([3.0, 1.0, 0.0]).view(3, 1, 1), parts.mean, parts.squares)
        torch.testing.assert_close(empty.merge().squares, moments([x]).squares)


def moments(parts):
    means = torch.cat([part.mean(0, keepdim=True) for part in parts])
    squares = [(part - part.mean(0)).square().sum((0, -1)).view(1, -1, 1) for part in parts]
    count = torch.tensor([float(len(part)) for part in parts]).view(-1, 1, 1)
    return Moments(count, means, torch.cat(squares))
