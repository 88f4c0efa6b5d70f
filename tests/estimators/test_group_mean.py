"""Group-mean centring."""

from fractions import Fraction as F

import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase


def test_by_hand():
    estimate = both("group_mean", [1, 2, 3, 4, 10, 12, 5, 6, 7], [0, 0, 0, 0, 1, 1, 2, 2, 2])
    assert estimate.advantages == [F(-3, 2), F(-1, 2), F(1, 2), F(3, 2), -1, 1, -1, 0, 1]
    assert estimate.baseline == [F(5, 2)] * 4 + [11, 11, 6, 6, 6]
    assert estimate.weight == [0] * 9


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=6), st.integers(1, 5))
def test_opo_with_equal_lengths_is_group_mean(rewards, length):
    values, labels = [F(r) for r in rewards], ["p"] * len(rewards)
    same = refbase.opo(values, labels, lengths=[length] * len(rewards))
    assert same.advantages == refbase.group_mean(values, labels).advantages


def test_a_group_of_one():
    assert both("group_mean", [2, 1, 0], "abb").advantages == [2, F(1, 2), F(-1, 2)]
    assert both("group_mean", [2, 1, 0], "abb", singletons="zero").advantages == [0, F(1, 2), F(-1, 2)]


def test_integer_rewards_are_not_truncated():
    rewards = torch.tensor([1, 0, 1, 1])
    assert refbase.group_mean(rewards, ["p"] * 4).advantages.tolist() == [0.25, -0.75, 0.25, 0.25]
    assert refbase.group_mean([1, 0, 1, 1], ["p"] * 4).advantages == [0.25, -0.75, 0.25, 0.25]
