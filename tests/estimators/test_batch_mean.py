"""Mean of the other prompts' means."""

from fractions import Fraction as F

from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase


def test_by_hand():
    """Means 1/2, 2 and 6; each group counts once, whatever its size."""
    estimate = both("batch_mean", [1, 0, 2, 5, 6, 7], "aabccc")
    assert estimate.target == [4, 4, F(13, 4), F(5, 4), F(5, 4), F(5, 4)]
    assert estimate.baseline == estimate.target
    assert estimate.advantages == [-3, -4, F(-5, 4), F(15, 4), F(19, 4), F(23, 4)]
    assert estimate.weight == [1] * 6
    assert estimate.local is None


def test_one_prompt_keeps_its_rewards():
    estimate = both("batch_mean", [1, 3], "aa")
    assert estimate.advantages == [1, 3]
    assert estimate.baseline == [0, 0]
    assert estimate.weight == [0, 0]
    assert estimate.target is None


def test_a_prompt_without_valid_rows_does_not_count():
    estimate = both("batch_mean", [1, 3, 100, 5], "aabc", [True, True, False, True])
    assert estimate.advantages == [-4, -2, 0, 3]


@given(st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=3), min_size=2, max_size=5))
def test_shrinkage_with_weight_one_is_batch_mean(groups):
    rewards = [F(r) for group in groups for r in group]
    labels = [k for k, group in enumerate(groups) for _ in group]
    full = refbase.shrinkage(rewards, labels, weight=1)
    assert full.advantages == refbase.batch_mean(rewards, labels).advantages
