"""The empirical-Bayes blend with a history."""

from fractions import Fraction as F
from itertools import pairwise

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase
from refbase.history import KeyHistory, WindowEntry


def flat(groups):
    return [F(r) for group in groups for r in group], [k for k, group in enumerate(groups) for _ in group]


def history(*steps, decay=F(1, 2)):
    state = refbase.HistoryState.empty(decay=decay)
    for groups in steps:
        state = refbase.update_history(state, *flat(groups))
    return state


def state_with(within, between, mean=F(1, 2), groups=32, size=4):
    """A history of `groups` groups of `size`, with these two variances about that mean."""
    past = KeyHistory(
        groups=F(groups),
        groups_squared=F(groups),
        mean=F(mean),
        between_squares=(F(between) + F(within) / size) * (groups - 1),
        within_squares=F(within) * groups * (size - 1),
        within_dof=F(groups * (size - 1)),
        inverse_sizes=F(groups, size),
        spread=F(groups),
        window=(WindowEntry(groups, F(mean), F(1)),),
        last_update=1,
    )
    return refbase.HistoryState(100, F(1, 2), 10, 1, None, {None: past})


def call(rewards, labels, state, **options):
    return both("bvblend_eb", rewards, labels, state, **options)


STEADY = [[1, 0], [1, 1], [0, 0], [1, 0]] * 4


def test_by_hand():
    """Sixteen groups of two: within 1/4, means 1/2 (8 times), 1 and 0 (4 times each)."""
    state = history(STEADY)
    past = state.keys[None]
    assert past.mean == F(1, 2)
    assert past.within_variance == F(1, 4)
    assert past.between_variance == F(8, 15) * F(1, 4) - F(1, 8) == F(1, 120)
    assert past.effective_groups == 16
    assert past.mean_variance == (F(1, 120) + F(1, 8)) / 16 == F(1, 120)
    estimate = call([1, 1, 0], "aaa", state)
    v = F(1, 4) / 2
    beta = v / (v + F(1, 120) + F(1, 120))
    assert estimate.weight == [beta] * 3
    assert estimate.local == [F(1, 2), F(1, 2), 1]
    assert estimate.target == [F(1, 2)] * 3
    assert estimate.baseline == [F(1, 2), F(1, 2), (1 - beta) + beta / 2]
    assert estimate.scale is None


def test_a_history_without_any_spread_has_no_weight():
    assert call([1, 1, 0], "aaa", history([[1, 1]] * 16)).weight == [0, 0, 0]  # 0/0 is 0: there is no noise to reduce
    assert call([1, 0], "aa", state_with(within=1, between=0)).weight == [F(1) / (1 + F(1, 4 * 32))] * 2


def test_decay_discounts_groups_and_their_number():
    state = history([[1, 0]] * 2, [[1, 1]] * 2)
    past = state.keys[None]
    assert past.groups == 3
    assert past.groups_squared == F(5, 2)
    assert past.effective_groups == F(18, 5)
    assert past.mean == (F(1, 2) * 1 + 2) / 3
    assert past.within_variance == (F(1, 2) * 1) / (F(1, 2) * 2 + 2)


def test_it_waits_for_enough_groups():
    state = history([[1, 0]] * 15)
    assert call([1, 0], "aa", state).weight == [0, 0]
    assert call([1, 0], "aa", state, min_groups=15).weight[0] > F(1, 2)
    assert call([1, 0], "aa", history([[1, 0]] * 16)).weight[0] > F(1, 2)
    assert call([1, 0], "aa", history([[1, 0]]), min_groups=0).weight[0] > 0
    lone = call([1], "a", state)
    assert lone.weight == [1]
    assert lone.advantages == [F(1, 2)]


def test_without_history_it_is_rloo():
    cold = refbase.HistoryState.empty()
    rewards, labels = [1, 0, 0, 7], ["a", "a", "a", "b"]
    assert call(rewards, labels, cold).advantages == both("rloo", rewards, labels).advantages
    assert call(rewards, labels, cold, scale="history").scale == [1] * 4
    assert call(rewards, labels, cold).weight == [0] * 4


def test_no_noise_within_groups_means_no_shrinkage():
    assert call([1, 0], "aa", history([[1, 1], [0, 0]] * 8)).weight == [0, 0]


def test_scaled_by_the_history():
    state = history(STEADY)
    plain = call([1, 1, 0], "aaa", state)
    # sigma_H^2: 8 groups (1/4 within, 0 off) and 8 (0 within, 1/4 off) about the step's own mean.
    scaled = call([1, 1, 0], "aaa", state, scale="history")
    assert scaled.scale == [F(1, 2)] * 3
    assert scaled.advantages == [2 * a for a in plain.advantages]
    assert call([1, 1, 0], "aaa", state, scale="history", min_scale=2).scale == [2] * 3


@given(st.integers(2, 12))
def test_the_weight_falls_to_zero_as_the_group_grows(m):
    state = state_with(F(1, 4), F(1, 50))
    weights = [call([1, 0] * k, ["a"] * (2 * k), state).weight[0] for k in (m, 2 * m, 20 * m)]
    assert all(a > b for a, b in pairwise(weights))
    tau2, var_h = F(1, 50), (F(1, 50) + F(1, 16)) / 32
    v = F(1, 4) / (40 * m - 1)
    assert weights[-1] == v / (v + tau2 + var_h)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=5).map(sorted))
def test_the_weight_does_not_grow_with_the_spread_between_prompts(spreads):
    weights = [call([1, 0], "aa", state_with(F(1, 4), F(s, 100))).weight[0] for s in spreads]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) == len(set(spreads))


@given(st.integers(2, 8), st.integers(0, 20), st.integers(0, 10))
def test_success_is_worth_no_more_the_more_of_it_there_is(m, spread, h):
    """Positive advantages are non-increasing in the number of successes; `bvblend` fails this."""
    state = state_with(F(1, 5), F(spread, 100), mean=F(h, 10))
    worth = [call([1] * k + [0] * (m - k), ["a"] * m, state).advantages[0] for k in range(1, m + 1)]
    assert all(a >= b for a, b in pairwise(worth))


def test_bvblend_values_a_lone_success_less_than_an_all_success_group():
    state = refbase.HistoryState.empty(decay=F(1, 2))
    for p in (0, 1, 1, 0, 2):
        state = refbase.update_history(state, [F(1)] * p + [F(0)] * (8 - p), ["a"] * 8)
    worth = [
        both("bvblend", [1] * k + [0] * (8 - k), ["a"] * 8, state, scale="none").advantages[0] for k in range(1, 9)
    ]
    assert any(a < b for a, b in pairwise(worth))


@pytest.mark.parametrize("values", [[1.0, 0.0], torch.tensor([1.0, 0.0])], ids=["spec", "kernel"])
def test_refusals(values):
    cold = refbase.HistoryState.empty()
    with pytest.raises(refbase.InputError, match="bvblend_eb: `scale` must be one of 'none', 'history'"):
        refbase.bvblend_eb(values, ["a", "a"], cold, scale="blend")
    with pytest.raises(refbase.InputError, match="`min_scale` must be"):
        refbase.bvblend_eb(values, ["a", "a"], cold, min_scale=0)
    with pytest.raises(refbase.InputError, match="`min_groups` must be"):
        refbase.bvblend_eb(values, ["a", "a"], cold, min_groups=-1)
    with pytest.raises(refbase.InputTypeError, match=r"Start from refbase\.HistoryState\.empty"):
        refbase.bvblend_eb(values, ["a", "a"], None)
