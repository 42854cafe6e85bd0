import pytest
import torch

from pairnorm.train.distributed import Shards, blocks


@pytest.mark.parametrize("size", [2, 4])
def test_steps_traffic_and_training_of_ranks(check_ranks, size):
    check_ranks("shards,traffic,training", size)


def test_ranks_of_fit_share_networks_and_predict_as_one_process(check_ranks):
    check_ranks("networks", 2)


@pytest.mark.parametrize(("count", "ranks"), [(7, 3), (2, 4), (0, 2), (8, 4)])
def test_blocks_are_even(count, ranks):
    sizes = blocks(count, ranks)
    assert sum(sizes) == count
    assert len(sizes) == ranks
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_shards_without_process_group_raise(raises):
    assert not torch.distributed.is_initialized()
    with raises("wrong-type"):
        Shards(3)
