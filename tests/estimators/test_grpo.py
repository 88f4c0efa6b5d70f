"""Group mean and group standard deviation."""

from fractions import Fraction as F

import pytest
import sympy
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase

EPS = F(1, 10**6)


def test_by_hand_where_the_root_is_rational():
    """0, 2, 4: variance 4, deviation 2."""
    estimate = both("grpo", [0, 2, 4, 5, 5], "aaabb", eps=EPS)
    assert estimate.scale == [2 + EPS] * 3 + [EPS] * 2
    assert estimate.advantages == [-2 / (2 + EPS), 0, 2 / (2 + EPS), 0, 0]
    assert estimate.baseline == [2, 2, 2, 5, 5]


def test_symbols_keep_their_root():
    a, b = sympy.symbols("a b", positive=True)
    estimate = refbase.grpo([a, b], ["p", "p"], eps=sympy.Integer(1))
    expected = (a - b) / 2 / (sympy.sqrt((a - b) ** 2 / 2) + 1)
    assert sympy.simplify(estimate.advantages[0] - expected) == 0


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_known_values(convert):
    """Small deviations are not floored, and the deviation has m - 1 in its denominator."""
    small = refbase.grpo(convert([1, 1.00001, 1.00002, 1.00003]), ["p"] * 4).advantages
    tolerance = 2e-3 if convert is torch.tensor else 1e-6
    assert list(map(float, small)) == pytest.approx([-1.078365, -0.359455, 0.359455, 1.078365], abs=tolerance)
    winner = refbase.grpo(convert([1.0, 0.0, 0.0, 0.0]), ["p"] * 4).advantages
    assert list(map(float, winner)) == pytest.approx([1.499997, -0.499999, -0.499999, -0.499999], abs=1e-6)


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=6))
def test_it_is_group_mean_over_the_deviation(rewards):
    values, labels = [float(r) for r in rewards], ["p"] * len(rewards)
    centred = refbase.group_mean(values, labels).advantages
    mean = sum(values) / len(values)
    deviation = (sum((r - mean) ** 2 for r in values) / (len(values) - 1)) ** 0.5
    expected = [a / (deviation + 1e-6) for a in centred]
    assert refbase.grpo(values, labels).advantages == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_a_group_of_one_is_not_divided():
    estimate = both("grpo", [2, 0, 2], "abb", eps=EPS)
    assert estimate.advantages[0] == 2
    assert estimate.scale[0] == 1
    assert both("grpo", [2, 0, 2], "abb", eps=EPS, singletons="zero").advantages[0] == 0


def test_equal_rewards_give_exactly_zero_in_every_dtype():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for value in (0.7, 0.1, 1 / 3, 1000.1):
            for m in (3, 5, 7, 12, 16):
                rewards = torch.full((m,), value, dtype=dtype)
                assert refbase.grpo(rewards, ["p"] * m).advantages.abs().max() == 0


@pytest.mark.parametrize("convert", [list, torch.tensor])
@pytest.mark.parametrize("eps", [0, -1.0, float("nan")])
def test_eps_must_be_positive(convert, eps):
    with pytest.raises(refbase.InputError, match="grpo: `eps` must be a finite number with 0 < eps"):
        refbase.grpo(convert([1.0, 0.0]), ["p", "p"], eps=eps)


def test_eps_is_used():
    estimate = both("grpo", [0, 2, 4], "aaa", eps=F(2))
    assert estimate.advantages == [F(-1, 2), 0, F(1, 2)]
