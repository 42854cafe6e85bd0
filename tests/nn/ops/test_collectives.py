import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_a_dead_rank_ends_the_others_and_is_named(check_ranks, size):
    check_ranks("death", size)
