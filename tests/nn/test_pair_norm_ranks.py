import copy

import pytest
import torch
import torch.distributed as dist

from pairnorm import PairNorm, add_pair_norm


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("check", ["pair_norm", "extremes", "patch"])
def test_ranks_together_equal_one_process(check_ranks, check, size):
    check_ranks(check, size)


def test_local_statistics_warn_once(check_ranks):
    check_ranks("local", 2)


@pytest.mark.parametrize("group", ["world", 2, dist.GroupMember.NON_GROUP_MEMBER])
def test_foreign_process_group_raises(raises, group):
    with raises("wrong-type", value=group):
        PairNorm(process_group=group)
    with raises("wrong-type", value=group):
        add_pair_norm(torch.nn.Sequential(torch.nn.Linear(2, 2)), layers=["0"], process_group=group)


def test_copy_has_settings_and_hooks():
    layer, seen = PairNorm(3.0, "PN-SI"), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    other = copy.deepcopy(layer)
    assert repr(other) == repr(layer)
    assert other.process_group is None
    other(torch.randn(3, 2))
    assert seen == [1]
