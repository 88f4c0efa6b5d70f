"""The paper's James-Stein blend."""

from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase

RAGGED = st.lists(st.lists(st.integers(-4, 4).map(F), min_size=1, max_size=4), min_size=1, max_size=5)
PAIRS = st.lists(st.lists(st.integers(-4, 4).map(F), min_size=2, max_size=4), min_size=2, max_size=5)


def flat(groups):
    return [r for group in groups for r in group], [k for k, group in enumerate(groups) for _ in group]


def mean(values):
    return sum(values, F(0)) / len(values)


def variance(values):
    return sum((v - mean(values)) ** 2 for v in values) / (len(values) - 1)


def plug_in(groups, i):
    """The formula of section 1, with its edge rules in their order."""
    n, rest = len(groups), [group for k, group in enumerate(groups) if k != i]
    if n == 1:
        return F(0)
    if len(groups[i]) == 1:
        return F(1)
    if not any(len(group) > 1 for group in rest):
        return F(0)
    v = mean([variance(group) for group in rest if len(group) > 1]) / len(groups[i])
    centre = mean([mean(group) for group in rest])
    s = mean([(mean(group) - centre) ** 2 for group in rest])
    return F(n - 1, n) * v / (v + s) if v + s else F(0)


@given(RAGGED)
def test_weights_are_the_formula_for_ragged_groups(groups):
    rewards, labels = flat(groups)
    expected = [plug_in(groups, i) for i, group in enumerate(groups) for _ in group]
    assert both("shrinkage", rewards, labels).weight == expected


def test_by_hand():
    """Groups (1, 0), (0, 0), (1, 1): see the docstring."""
    estimate = both("shrinkage", [1, 0, 0, 0, 1, 1], "aabbcc")
    assert estimate.weight == [0, 0, F(4, 9), F(4, 9), F(4, 9), F(4, 9)]
    assert estimate.local == [0, 1, 0, 0, 1, 1]
    assert estimate.target == [F(1, 2), F(1, 2), F(3, 4), F(3, 4), F(1, 4), F(1, 4)]
    assert estimate.advantages == [1, -1, F(-1, 3), F(-1, 3), F(1, 3), F(1, 3)]


def test_the_coefficient_of_the_released_code():
    """It lacks the factor (n-1)/n and adds 1e-6: 1/4 over 3/8 + 1e-6 for the second group."""
    estimate = both("shrinkage", [1, 0, 0, 0, 1, 1], "aabbcc", variant="released")
    eps = F(1, 10**6)
    assert estimate.weight == [0, 0] + [F(1, 8) / (F(1, 8) + F(1, 16) + eps)] * 4
    assert float(estimate.weight[2]) == pytest.approx(0.66666, abs=1e-5)


@given(PAIRS)
def test_weight_zero_is_rloo(groups):
    rewards, labels = flat(groups)
    assert refbase.shrinkage(rewards, labels, weight=0).advantages == refbase.rloo(rewards, labels).advantages


@given(PAIRS)
def test_the_weight_never_reaches_one_and_ignores_the_own_prompt(groups):
    rewards, labels = flat(groups)
    before = refbase.shrinkage(rewards, labels).weight
    assert all(w <= F(len(groups) - 1, len(groups)) for w in before)
    first = len(groups[0])
    after = refbase.shrinkage([7 * r + 3 for r in rewards[:first]] + rewards[first:], labels).weight
    assert before[:first] == after[:first]


def test_equally_hard_prompts_shrink_as_far_as_the_formula_goes():
    """All means equal: s = 0, so lambda = (n-1)/n."""
    assert both("shrinkage", [1, 0, 0, 1, 1, 0], "aabbcc").weight == [F(2, 3)] * 6


def test_edge_rules():
    assert both("shrinkage", [1, 0], "aa").weight == [0, 0]  # one prompt
    assert both("shrinkage", [5], "a").advantages == [5]  # and one rollout: nothing to subtract
    lone = both("shrinkage", [5, 1, 0], "abb")
    assert lone.weight == [1, 0, 0]  # no leave-one-out mean; no other prompt with two rollouts
    assert lone.advantages == [F(9, 2), 1, -1]
    assert both("shrinkage", [1, 1, 2, 2], "aabb").weight == [0] * 4  # no spread within: v = 0
    assert both("shrinkage", [3, 3, 3, 3], "aabb").weight == [0] * 4  # v + s = 0
    # n = 1 comes before m = 1, and a constant weight comes after both.
    assert both("shrinkage", [5], "a", weight=F(1, 2)).weight == [0]
    assert both("shrinkage", [5, 1, 0], "abb", weight=F(1, 2)).weight == [1, F(1, 2), F(1, 2)]


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_refusals(convert):
    rewards = convert([1.0, 0.0])
    for weight in (-0.1, 1.1, float("nan")):
        with pytest.raises(refbase.InputError, match="shrinkage: `weight` must be a finite number with 0 <= weight <="):
            refbase.shrinkage(rewards, ["a", "b"], weight=weight)
    with pytest.raises(refbase.InputTypeError, match="`weight` must be a real number; got 'half' of type str"):
        refbase.shrinkage(rewards, ["a", "b"], weight="half")
    with pytest.raises(refbase.InputError, match="`variant` must be one of 'paper', 'released'"):
        refbase.shrinkage(rewards, ["a", "b"], variant="pager")


def test_released_variant_far_from_unit_scale_keeps_its_eps():
    """The eps is in squared reward units, also after the kernel's change of unit."""
    small = [2.0**-12 * r for r in (1, 0, 0, 0, 1, 1)]
    spec = refbase.shrinkage(small, list("aabbcc"), variant="released").weight
    kernel = refbase.shrinkage(torch.tensor(small, dtype=torch.float64), list("aabbcc"), variant="released").weight
    assert kernel.tolist() == pytest.approx(spec, rel=1e-12)
    assert spec[2] < 0.01
