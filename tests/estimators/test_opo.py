"""Length-weighted group mean."""

from fractions import Fraction as F

import pytest
import torch
from both import both

import refbase


def test_by_hand():
    """(3*1 + 1*0)/4 and (1*2 + 2*5)/3."""
    estimate = both("opo", [1, 0, 2, 5], "aabb", lengths=[3, 1, 1, 2])
    assert estimate.baseline == [F(3, 4), F(3, 4), 4, 4]
    assert estimate.advantages == [F(1, 4), F(-3, 4), -2, 1]
    assert estimate.weight == [0] * 4


def test_without_lengths_it_is_the_group_mean():
    assert both("opo", [1, 0, 1, 1], "pppp").advantages == [F(1, 4), F(-3, 4), F(1, 4), F(1, 4)]


def test_lengths_of_masked_rows_are_not_looked_at():
    estimate = both("opo", [1, 0, 9], "ppp", [True, True, False], lengths=[1, 3, -5])
    assert estimate.advantages == [F(3, 4), F(-1, 4), 0]


def test_a_group_of_one():
    assert both("opo", [2, 1, 0], "abb", lengths=[5, 1, 1]).advantages == [2, F(1, 2), F(-1, 2)]
    assert both("opo", [2, 1, 0], "abb", lengths=[5, 1, 1], singletons="zero").advantages[0] == 0


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_lengths_must_be_positive(bad):
    with pytest.raises(refbase.InputError, match=r"opo: `lengths\[1\]` must be a finite number with 0 < "):
        refbase.opo([1.0, 0.0], ["p", "p"], lengths=[1.0, bad])
    rewards, flags = torch.tensor([1.0, 3.0, 0.0]), [True, False, True]
    with pytest.raises(refbase.InputError, match=r"opo: `lengths\[2\]` must be a finite number with 0 < "):
        refbase.opo(rewards, ["p"] * 3, flags, lengths=torch.tensor([1.0, -7.0, bad]))
    with pytest.raises(refbase.InputError, match=r"`lengths\[1\]`"):
        refbase.opo(torch.tensor([1.0, 0.0]), ["p", "p"], lengths=torch.tensor([1.0, bad]))


def test_lengths_must_match_the_rewards():
    with pytest.raises(refbase.InputError, match=r"`lengths` must have one entry per rollout \(2\); got 3 entries"):
        refbase.opo([1.0, 0.0], ["p", "p"], lengths=[1, 1, 1])
    with pytest.raises(refbase.InputError, match=r"`lengths` must have shape \(2,\); got shape \(3,\)"):
        refbase.opo(torch.tensor([1.0, 0.0]), ["p", "p"], lengths=torch.ones(3))
    with pytest.raises(refbase.InputTypeError, match="`lengths` must be a torch tensor, as `rewards` is one; got list"):
        refbase.opo(torch.tensor([1.0, 0.0]), ["p", "p"], lengths=[1.0, 1.0])


def test_advantages_have_no_graph_even_where_lengths_have_one():
    lengths = torch.tensor([1.0, 3.0], requires_grad=True)
    assert not refbase.opo(torch.tensor([1.0, 0.0]), ["p", "p"], lengths=lengths).advantages.requires_grad
