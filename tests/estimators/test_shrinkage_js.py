"""The blend with the noise taken out of the between-prompt spread."""

from fractions import Fraction as F

import pytest
from both import both
from hypothesis import given, settings
from hypothesis import strategies as st

import refbase


def mean(values):
    return sum(values, F(0)) / len(values)


def squares(values):
    return sum(((v - mean(values)) ** 2 for v in values), F(0))


def corrected(groups, i):
    """Section 1b, rule (a'), written out for groups of one common size m."""
    m, rest = len(groups[0]), [group for k, group in enumerate(groups) if k != i]
    n, big_n = len(groups), len(rest)
    within = [squares(group) for group in rest]
    if big_n <= 3 or sum(within) == 0:
        return F(0)
    sigma2 = sum(within) / (big_n * (m - 1))
    nu = sum(within) ** 2 / sum(s * s / (m - 1) for s in within)
    v_bar = sigma2 / m
    spread_of_means = squares([mean(group) for group in rest]) / (big_n - 1)
    c = F(big_n - 3, big_n - 1) * nu / (nu + 2)
    # B = min(1, c*v_bar/S), true spread v_bar*(1/B - 1); S = 0 means B = 1.
    true = max(spread_of_means / c - v_bar, F(0))
    v = sigma2 / (m - 1)
    tau = (true + sigma2 / m) / (n - 1)
    return v / (v + true + tau)


@st.composite
def equal_groups(draw):
    m = draw(st.integers(2, 4))
    group = st.lists(st.integers(-2, 2).map(F), min_size=m, max_size=m)
    return draw(st.lists(group, min_size=4, max_size=8))


@settings(max_examples=150)
@given(equal_groups())
def test_weights_are_the_formula_for_equal_sizes(groups):
    rewards, labels = [r for g in groups for r in g], [k for k, g in enumerate(groups) for _ in g]
    expected = [corrected(groups, i) for i, group in enumerate(groups) for _ in group]
    assert both("shrinkage_js", rewards, labels).weight == expected


def test_by_hand():
    """Six prompts (1, 0): the others' means agree, so B = 1 and the true spread is 0."""
    estimate = both("shrinkage_js", [1, 0] * 6, [k // 2 for k in range(12)])
    # sigma2 = 1/2, v = 1/2, Var(target) = (1/4)/5
    assert estimate.weight == [F(1, 2) / (F(1, 2) + F(1, 20))] * 12
    assert estimate.weight[0] == F(10, 11)
    assert estimate.target == [F(1, 2)] * 12
    assert estimate.local == [0, 1] * 6
    assert estimate.baseline == [F(5, 11), F(6, 11)] * 6


def test_it_may_shrink_further_than_the_plug_in():
    rewards, labels = [1, 0] * 40, [k // 2 for k in range(80)]
    assert refbase.shrinkage_js(rewards, labels).weight[0] > 0.97
    hard = [1, 0] * 20 + [0, 0] * 20
    assert refbase.shrinkage_js(hard, labels).weight[0] > refbase.shrinkage(hard, labels).weight[0]


def test_edge_rules():
    assert both("shrinkage_js", [1, 0], "aa").weight == [0, 0]
    assert both("shrinkage_js", [5], "a").advantages == [5]
    assert both("shrinkage_js", [5, 1, 0], "abb").weight == [1, 0, 0]
    four = [k // 2 for k in range(8)]
    assert both("shrinkage_js", [1, 0] * 4, four).weight == [0] * 8  # three others: the factor is 0
    assert both("shrinkage_js", [0, 0, 1, 1] * 3, [k // 2 for k in range(12)]).weight == [0] * 12  # no noise


def test_groups_of_one_inform_the_target_but_not_the_spread():
    groups = [[1, 0]] * 5 + [[9]]
    rewards, labels = [r for g in groups for r in g], [k for k, g in enumerate(groups) for _ in g]
    estimate = both("shrinkage_js", rewards, labels)
    assert estimate.target[0] == (4 * F(1, 2) + 9) / 5
    # sigma2 = 1/2; mean of sigma2/m over the five others = (4/4 + 1/2)/5 = 3/10, spread 0
    assert estimate.weight[:2] == [F(1, 2) / (F(1, 2) + F(3, 10) / 5)] * 2
    assert estimate.weight[-1] == 1
    assert estimate.advantages[-1] == 9 - F(1, 2)


def test_far_apart_prompts_are_left_alone():
    spread = [v for k in range(8) for v in (100 * k, 100 * k + 1)]
    estimate = both("shrinkage_js", spread, [k // 2 for k in range(16)])
    assert all(w < F(1, 10000) for w in estimate.weight)
    assert [float(a) for a in estimate.advantages] == pytest.approx([-1, 1] * 8, abs=0.05)
