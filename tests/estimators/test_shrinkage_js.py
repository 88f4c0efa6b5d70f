"""The blend with the noise taken out of the between-prompt spread."""

from dataclasses import fields
from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given, settings
from hypothesis import strategies as st

import refbase
from refbase.kernels.shrinkage_js import others_model


def mean(values):
    return sum(values, F(0)) / len(values)


def squares(values):
    return sum(((v - mean(values)) ** 2 for v in values), F(0))


def corrected(groups, i, j):
    """The page's definition, written out for groups of one common size m."""
    m, rest = len(groups[0]), [group for k, group in enumerate(groups) if k != i]
    n = len(groups)
    within = [squares(group) for group in rest]
    if n <= 3 or sum(within) == 0:
        return F(0)
    sigma2 = sum(within) / ((n - 1) * (m - 1))
    kappa = sum(within) ** 2 / sum(s * s for s in within)
    v_bar = sigma2 / m
    spread_of_means = squares([mean(group) for group in rest]) / (n - 2)
    a = F(n - 3, n - 1)
    t = max(spread_of_means / a * (kappa + 1) / kappa - v_bar, F(0))
    doubt = 2 * spread_of_means**2 / (n - 2) + v_bar**2 / kappa
    true = t**3 / (t**2 + doubt)
    v = sigma2 / (m - 1)
    tau = (true + sigma2 / m) / (n - 1)
    gap = mean(groups[i][:j] + groups[i][j + 1 :]) - mean([mean(group) for group in rest])
    return v / max(v + true + tau, gap**2 / (a * n))


@st.composite
def equal_groups(draw):
    m = draw(st.integers(2, 4))
    group = st.lists(st.integers(-2, 2).map(F), min_size=m, max_size=m)
    return draw(st.lists(group, min_size=4, max_size=8))


@settings(max_examples=150)
@given(equal_groups())
def test_weights_are_the_formula_for_equal_sizes(groups):
    rewards, labels = [r for g in groups for r in g], [k for k, g in enumerate(groups) for _ in g]
    expected = [corrected(groups, i, j) for i, group in enumerate(groups) for j in range(len(group))]
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
    three = [k // 2 for k in range(6)]
    assert both("shrinkage_js", [1, 0] * 3, three).weight == [0] * 6  # two others: James and Stein's factor is 0
    # three others: v = 1/2, no spread, Var(target) = (1/4)/3
    assert both("shrinkage_js", [1, 0] * 4, [k // 2 for k in range(8)]).weight == [F(6, 7)] * 8
    assert both("shrinkage_js", [0, 0, 1, 1] * 3, [k // 2 for k in range(12)]).weight == [0] * 12  # no noise


def test_groups_of_one_inform_the_target_but_not_the_spread():
    groups = [[1, 0]] * 5 + [[2]]
    rewards, labels = [r for g in groups for r in g], [k for k, g in enumerate(groups) for _ in g]
    estimate = both("shrinkage_js", rewards, labels)
    assert estimate.target[0] == (4 * F(1, 2) + 2) / 5
    # sigma2 = 1/2; mean of sigma2/m over the five others = (4/4 + 1/2)/5 = 3/10, spread 0
    assert estimate.weight[:2] == [F(1, 2) / (F(1, 2) + F(3, 10) / 5)] * 2
    assert estimate.weight[-1] == 1
    assert estimate.advantages[-1] == 2 - F(1, 2)


def test_a_prompt_unlike_all_others_is_hardly_pulled_to_them():
    """The own squared gap counts as one of n: w = v / (gap^2/(a n)), here (1/2) / ((g^2)/(1/2 * 5))."""
    labels = [k // 2 for k in range(10)]
    for far in (3, 10, 1000):
        estimate = both("shrinkage_js", [1, 0] * 4 + [far, far], labels)
        gap = far - F(1, 2)
        assert estimate.weight[8:] == [F(5, 4) / gap**2] * 2
        assert estimate.advantages[8:] == [F(5, 4) / gap] * 2  # falls as the gap grows


def test_one_discordant_prompt_is_weak_evidence_of_noise():
    """All of a large pooled variance from one prompt weighs less than a smaller one that all prompts share."""
    labels = [k // 2 for k in range(16)]
    level = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    one = both("shrinkage_js", [*level, 0, 6], labels).weight[0]
    spread = [x for k, r in enumerate(level[::2]) for x in ((r - 1, r + 1) if k else (r, r))]
    many = both("shrinkage_js", [*spread, 2, 4], labels).weight[0]
    assert 0 < one < many


def test_far_apart_prompts_are_left_alone():
    spread = [v for k in range(8) for v in (100 * k, 100 * k + 1)]
    estimate = both("shrinkage_js", spread, [k // 2 for k in range(16)])
    assert all(w < F(1, 10000) for w in estimate.weight)
    assert [float(a) for a in estimate.advantages] == pytest.approx([-1, 1] * 8, abs=0.05)


def test_squares_of_squares_that_vanish_are_no_licence_to_shrink():
    """Means at 1 and -1 beside rewards of 1e-90, whose variances are floats while the squares of these are 0."""
    rewards = torch.tensor([1.0, 1.0, -1.0, -1.0, *[1e-90, 0.0] * 4], dtype=torch.float64)
    weight = refbase.shrinkage_js(rewards, [k // 2 for k in range(12)]).weight
    assert ((weight >= 0) & (weight < 1e-100)).all()
    assert max(refbase.shrinkage_js(list(map(F, rewards.tolist())), [k // 2 for k in range(12)]).weight) < F(10) ** -100


def test_groups_of_no_rollout_say_nothing():
    """`shrinkage_history` pads with them."""
    size = torch.tensor([2.0, 3.0, 2.0, 1.0, 4.0, 2.0], dtype=torch.float64)
    squares = torch.tensor([0.5, 0.0, 0.5, 0.0, 1.0, 0.25], dtype=torch.float64)
    means = torch.tensor([0.5, 1.0, 0.5, 3.0, 0.5, 0.25], dtype=torch.float64)
    alone = others_model(size, squares, means)
    padded = others_model(*(torch.cat([values, torch.zeros(3)]) for values in (size, squares, means)))
    assert alone.usable.all()
    for field in fields(alone):
        torch.testing.assert_close(getattr(padded, field.name)[:6], getattr(alone, field.name))
