"""Leave-one-out mean."""

from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase

GROUPS = st.lists(st.lists(st.integers(-5, 5), min_size=2, max_size=5), min_size=1, max_size=4)


def flat(groups):
    return [F(r) for group in groups for r in group], [k for k, group in enumerate(groups) for _ in group]


def test_by_hand():
    estimate = both("rloo", [3, 1, 0, 0, 6], "aabbb")
    assert estimate.advantages == [2, -2, -3, -3, 6]
    assert estimate.baseline == [1, 3, 3, 3, 0]
    assert estimate.local == estimate.baseline
    assert estimate.weight == [0] * 5
    assert estimate.target is None
    assert estimate.scale is None


def test_unequal_groups_in_any_order():
    estimate = both("rloo", [1, 0, 0, 0, 1, 1, 1], "ABABBAB")
    assert estimate.advantages == [F(1, 2), F(-2, 3), -1, F(-2, 3), F(2, 3), F(1, 2), F(2, 3)]


@given(GROUPS)
def test_it_is_the_centred_reward_times_m_over_m_minus_one(groups):
    rewards, labels = flat(groups)
    sizes = [len(group) for group in groups for _ in group]
    centred = refbase.group_mean(rewards, labels).advantages
    assert refbase.rloo(rewards, labels).advantages == [a * F(m, m - 1) for a, m in zip(centred, sizes, strict=True)]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=4))
def test_two_rollouts_give_the_pairwise_difference(pairs):
    rewards, labels = flat(pairs)
    expected = [d for a, b in pairs for d in (a - b, b - a)]
    assert refbase.rloo(rewards, labels).advantages == expected


@pytest.mark.parametrize(("singletons", "advantage", "baseline"), [("raw", 2, 0), ("zero", 0, 2)])
def test_a_group_of_one(singletons, advantage, baseline):
    estimate = both("rloo", [2, 1, 0], "abb", singletons=singletons)
    assert estimate.advantages == [advantage, 1, -1]
    assert estimate.baseline == [baseline, 0, 1]


@pytest.mark.parametrize("name", ["rloo", "group_mean", "grpo", "opo"])
@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_a_group_of_one_refused(name, convert):
    with pytest.raises(refbase.InputError, match=rf"{name}: `group_ids` must give each group at least two.*'lone'"):
        getattr(refbase, name)(convert([2.0, 1.0, 0.0]), ["lone", "b", "b"], singletons="error")
    with pytest.raises(refbase.InputError, match=r"be one of 'raw', 'zero', 'error'.*Did you mean 'raw'"):
        getattr(refbase, name)(convert([2.0, 1.0]), ["b", "b"], singletons="row")


def test_a_group_of_one_without_a_label_is_named_by_its_row():
    ids = torch.tensor([4, 4, 7, 4])
    with pytest.raises(refbase.InputError, match=r"got one in the group of rollout 2\. Pass"):
        refbase.rloo(torch.tensor([1.0, 0.0, 3.0, 1.0]), ids, singletons="error")


def test_a_rollout_left_alone_by_masking_counts_as_a_group_of_one():
    estimate = both("rloo", [5, 3, 1, 0], "aabb", [True, False, True, True])
    assert estimate.advantages == [5, 0, 1, -1]


def test_the_only_winner_is_not_blown_up():
    """Its peers are all equal; nothing is divided by their deviation."""
    assert both("rloo", [1, 0, 0, 0], "pppp").advantages == [1, F(-1, 3), F(-1, 3), F(-1, 3)]


def test_numbers_quoted_in_the_docstring():
    """What single precision makes of these batches elsewhere, and what it is here."""
    assert both("rloo", [1, 1, 0, 0], "pppp", [True, False, True, True]).advantages == [1, 0, F(-1, 2), F(-1, 2)]
    flat_rewards = torch.full((12,), 0.7)
    assert refbase.rloo(flat_rewards, ["p"] * 12).advantages.tolist() == [0.0] * 12
    far = torch.tensor([1e6, 1e6 + 1, 1e6, 1e6 + 1])
    third = torch.tensor([-2 / 3, 2 / 3, -2 / 3, 2 / 3])
    assert torch.equal(refbase.rloo(far, ["p"] * 4).advantages, third)
    half = refbase.rloo(torch.tensor([1, 0, 3, 5], dtype=torch.bfloat16), ["a", "a", "b", "b"]).advantages
    assert half.dtype == torch.bfloat16
    assert half.tolist() == [1, -1, -2, 2]


def test_group_ids_as_a_tensor_of_numbers():
    rewards = torch.tensor([1.0, 0.0, 3.0, 5.0])
    for labels in (torch.tensor([7, 7, -2, -2]), torch.tensor([0.5, 0.5, 1.5, 1.5]), ["a", "a", "b", "b"]):
        assert refbase.rloo(rewards, labels).advantages.tolist() == [1, -1, -2, 2]
