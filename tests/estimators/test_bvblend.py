"""The article's blend with a history."""

from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase
from refbase.checks.catalogue import exact_state
from refbase.history import KeyHistory

GROUP = st.lists(st.integers(-3, 3).map(F), min_size=1, max_size=4)
STEP = st.lists(GROUP, min_size=1, max_size=3)


def flat(groups):
    return [r for group in groups for r in group], [k for k, group in enumerate(groups) for _ in group]


def history(*steps, window=100, decay=F(1, 2)):
    state = refbase.HistoryState.empty(window=window, decay=decay)
    for groups in steps:
        state = refbase.update_history(state, *flat([[F(r) for r in group] for group in groups]))
    return state


def call(rewards, labels, state, **options):
    return both("bvblend", rewards, labels, state, **options)


def mean(values):
    return sum(values, F(0)) / len(values)


def variance(values, ddof):
    return sum(((v - mean(values)) ** 2 for v in values), F(0)) / (len(values) - ddof) if len(values) > ddof else F(0)


@given(st.lists(STEP, min_size=1, max_size=4), GROUP)
def test_baselines_are_the_article_s_formula(steps, group):
    """H from the definition: a group of age a counts with weight decay**a."""
    state, d = history(*steps), F(1, 2)
    ages = [(d ** (len(steps) - 1 - t), mean(g)) for t, groups in enumerate(steps) for g in groups]
    h = sum(w * mu for w, mu in ages) / sum(w for w, _ in ages)
    sigma_u = variance([mu for _, mu in ages], 0)
    sigma_g = variance(group, 1)
    beta = sigma_u / (sigma_u + sigma_g) if sigma_u + sigma_g else F(1)
    estimate = call(group, ["p"] * len(group), state, scale="none")
    assert estimate.weight == [beta] * len(group)
    assert estimate.baseline == [(1 - beta) * mean(group) + beta * h] * len(group)
    assert estimate.target == [h] * len(group)


def test_by_hand():
    """Means 0 and 1 of one step: H = 1/2, sigma_u^2 = 1/4; group (1, 0): sigma_G^2 = 1/2; beta = 1/3."""
    state = history([[0, 0], [1, 1]])
    estimate = call([1, 0], "aa", state, scale="none")
    assert estimate.weight == [F(1, 3)] * 2
    assert estimate.baseline == [F(1, 2)] * 2
    assert estimate.scale is None
    # sigma_H^2: the step's own mean stands in for H, so (1/2)^2 for both groups.
    blended = call([1, 0], "aa", state)
    assert float(blended.scale[0]) == pytest.approx((2 / 3 * 1 / 2 + 1 / 3 * 1 / 4) ** 0.5)
    assert float(call([1, 0], "aa", state, scale="group").scale[0]) == pytest.approx(0.5**0.5)


def test_an_equal_group_far_from_history_gets_a_signal_and_the_floor_bounds_it():
    """All fail, then all succeed: without a floor this would be 1/eps."""
    state = history([[0, 0], [0, 0]])
    for scale in ("blend", "group"):
        estimate = call([1, 1], "aa", state, scale=scale, min_scale=F(1, 4))
        assert estimate.weight == [1, 1]
        assert estimate.scale == [F(1, 4)] * 2
        assert estimate.advantages == [4, 4]
    assert call([1, 1], "aa", state, scale="none").advantages == [1, 1]
    assert call([1, 1], "aa", state).scale == pytest.approx([0.1, 0.1])


def test_without_history_it_is_group_mean():
    cold = refbase.HistoryState.empty()
    rewards, labels = [1, 0, 2, 7], ["a", "a", "a", "b"]
    estimate = call(rewards, labels, cold, scale="none")
    assert estimate.advantages == both("group_mean", rewards, labels).advantages == [0, -1, 1, 7]
    assert estimate.weight == [0] * 4
    assert estimate.target is None
    scaled = call(rewards, labels, cold)
    assert scaled.scale == [1, 1, 1, 1]  # (1, 0, 2) has variance 1; a lone rollout has none to show
    assert scaled.advantages == [0, -1, 1, 7]
    assert call([5, 5], "aa", cold, min_scale=F(1, 2)).scale == [F(1, 2)] * 2


def test_history_and_group_of_equal_variance_weigh_the_same():
    state = history([[0, 0], [1, 1]])
    assert state.keys[None].window_variance == variance([F(1), F(0), F(0), F(0)], 1) == F(1, 4)
    assert call([1, 0, 0, 0], "aaaa", state).weight == [F(1, 2)] * 4


def test_a_single_mean_in_the_window_has_no_spread():
    """sigma_u = 0: beta is 0 for a group with spread, 1 for one without."""
    state = history([[0, 1]])
    assert call([1, 0], "aa", state, scale="none").weight == [0, 0]
    assert call([1, 1], "aa", state, scale="none").weight == [1, 1]


def test_a_group_of_one_with_history():
    state = history([[0, 0], [1, 1]])
    estimate = call([1], "a", state, scale="none")
    assert estimate.weight == [1]  # its own variance is 0
    assert estimate.advantages == [F(1, 2)]
    loo = call([1], "a", state, scale="none", local="loo")
    assert loo.weight == [1]
    assert loo.local is None
    assert loo.advantages == [F(1, 2)]


def test_the_window_covers_the_last_steps_of_the_key():
    state = history([[8]], [[0]], [[2]], window=2)
    assert len(state.keys[None].window) == 2
    assert state.keys[None].window_variance == 1
    assert state.keys[None].mean == F(8 * 1 + 0 * 2 + 2 * 4, 7)


def test_leave_one_out_uses_the_other_rollouts_or_the_history():
    state = history([[0, 2], [4, 4]])  # within variance (2 + 0)/(1 + 1) = 1, sigma_u^2 = 9/4
    pair = call([1, 0], "aa", state, local="loo", scale="none")
    assert pair.local == [0, 1]
    assert pair.weight == [F(9, 4) / (F(9, 4) + 1)] * 2
    three = call([1, 0, 0], "aaa", state, local="loo", scale="none")
    assert three.local == [0, F(1, 2), F(1, 2)]
    assert three.weight == [1, F(9, 4) / (F(9, 4) + F(1, 2)), F(9, 4) / (F(9, 4) + F(1, 2))]
    cold = call([1, 0, 0, 7], "aaab", refbase.HistoryState.empty(), local="loo", scale="none")
    assert cold.advantages == [1, F(-1, 2), F(-1, 2), 7]
    assert call([1, 0], "aa", refbase.HistoryState.empty(), local="loo").scale == [1, 1]


@pytest.mark.parametrize("size", range(3, 14))
def test_the_rest_of_a_group_is_certain_where_it_agrees(size):
    """0/0 is 1: squares that come out as 1e-17 instead of 0 would turn the weight of a certain history to 0."""
    state = history([[1, 1]])
    for odd, rest in ((1, 0), (0, 1), (3, 0)):
        estimate = call([odd] + [rest] * (size - 1), ["g"] * size, state, local="loo")
        assert estimate.weight[0] == 1
        assert set(estimate.weight[1:]) == {0}


def test_a_constant_weight():
    state = history([[0, 0], [1, 1]])
    assert call([1, 0], "aa", state, scale="none", weight=0).baseline == [F(1, 2)] * 2
    assert call([1, 1], "aa", state, scale="none", weight=F(1, 4)).baseline == [F(7, 8)] * 2
    lone = call([3], "a", state, scale="none", weight=F(1, 4), local="loo")
    assert lone.weight == [1]  # there is no local mean to give weight to


def test_each_key_has_its_own_history():
    state = refbase.HistoryState.empty(decay=F(1, 2))
    state = refbase.update_history(state, [F(0), F(1), F(4)], ["a", "b", "c"], history_keys=["x", "x", 7])
    assert state.keys["x"].mean == F(1, 2)
    assert state.keys[7].mean == 4
    keys = ["x", 7, "new", None]
    estimate = call([1, 1, 1, 1], "abcd", state, history_keys=keys, scale="none")
    assert estimate.target == [F(1, 2), 4, None, None]
    assert estimate.advantages == [F(1, 2), -3, 1, 1]


def test_masked_rows_may_have_any_key_and_label():
    state = history([[0, 0], [1, 1]])
    keys = [None, None, object()]
    estimate = call([1, 0, 9], ["a", "a", "a"], state, valid=[True, True, False], history_keys=keys, scale="none")
    assert estimate.advantages == [F(1, 2), F(-1, 2), 0]


@given(st.lists(GROUP, min_size=1, max_size=3), st.integers(-3, 3).map(F))
def test_spread_about_h_is_within_plus_distance(groups, h):
    """mean_j (r_j - H)^2 = within (ddof 0) + (mu - H)^2, summed over the groups of a step."""
    state = history([[h]], groups)
    direct = sum(mean([(r - h) ** 2 for r in group]) for group in groups)
    assert state.keys[None].spread == direct  # the first step adds 0


def test_refusals():
    cold, rewards = refbase.HistoryState.empty(), [1.0, 0.0]
    tensor = torch.tensor(rewards)
    for values in (rewards, tensor):
        with pytest.raises(refbase.InputError, match="`local` must be one of 'mean', 'loo'"):
            refbase.bvblend(values, ["a", "a"], cold, local="median")
        with pytest.raises(refbase.InputError, match="`scale` must be one of"):
            refbase.bvblend(values, ["a", "a"], cold, scale="std")
        with pytest.raises(refbase.InputError, match="`min_scale` must be"):
            refbase.bvblend(values, ["a", "a"], cold, min_scale=0)
        with pytest.raises(refbase.InputError, match="`weight` must be"):
            refbase.bvblend(values, ["a", "a"], cold, weight=2)
        with pytest.raises(refbase.InputTypeError, match="`state` must be a HistoryState; got dict"):
            refbase.bvblend(values, ["a", "a"], {})
        with pytest.raises(refbase.InputError, match="`history_keys` must be the same for all rollouts of a group"):
            refbase.bvblend(values, ["a", "a"], cold, history_keys=["x", "y"])
        with pytest.raises(refbase.InputError, match="`history_keys` must be the same"):
            refbase.bvblend(values, ["a", "a"], cold, history_keys=["1", 1])
        with pytest.raises(refbase.InputTypeError, match=r"`history_keys` must hold strings, ints or None; got 1\.5"):
            refbase.bvblend(values, ["a", "b"], cold, history_keys=[None, 1.5])
        with pytest.raises(refbase.InputTypeError, match="`history_keys` must hold strings, ints or None; got True"):
            refbase.bvblend(values, ["a", "b"], cold, history_keys=[True, 1])


def test_the_exact_state_of_a_float_state_has_the_same_numbers():
    state = refbase.update_history(refbase.HistoryState.empty(), [0.1, 0.3, 0.5], ["a", "a", "b"])
    exact = exact_state(state)
    assert exact.keys[None].mean == F(state.keys[None].mean)
    assert exact.decay == F(0.95)


def test_an_outlier_does_not_make_the_variance_of_the_others_negative():
    """Without the outlier's own share, what remains of the sum of squares may round below 0."""
    state = refbase.update_history(refbase.HistoryState.empty(), [0.0, 1.0], ["a", "b"])
    rewards = torch.tensor([0.0, 0.5, 0.25, 1e9], dtype=torch.float64)
    estimate = refbase.bvblend(rewards, ["p"] * 4, state, local="loo")
    assert ((estimate.weight >= 0) & (estimate.weight <= 1)).all()
    assert estimate.scale.isfinite().all()


def test_a_large_offset_costs_the_spec_no_digits_either():
    rewards = [0.0, 1.0, 2.0, 1.0]
    weights = []
    for offset in (0.0, 1e8):
        state = refbase.update_history(refbase.HistoryState.empty(), [offset, offset + 1], ["a", "b"])
        estimate = refbase.bvblend([r + offset for r in rewards], ["p"] * 4, state, local="loo")
        weights.append(estimate.weight)
    assert weights[1] == pytest.approx(weights[0], rel=1e-6)


@pytest.mark.parametrize("name", ["bvblend", "bvblend_eb"])
def test_a_history_is_read_once_however_many_groups_lean_on_it(name, monkeypatch):
    """The window is walked in Python: once per group, it would take longer than everything else."""
    state = history([[1, 0], [0, 0]], window=3, decay=0.5)
    state = refbase.update_history(state, [1.0, 0.0, 1.0], ["a", "a", "b"], history_keys=["x"] * 3)
    reads = dict.fromkeys(("window_variance", "within_variance", "spread_variance"), 0)
    for field in reads:
        plain = getattr(KeyHistory, field)

        def counted(past, field=field, plain=plain):
            reads[field] += 1
            return plain.fget(past)

        monkeypatch.setattr(KeyHistory, field, property(counted))

    def cost(groups):
        keys = [None, "x"] * (groups // 2)
        reads.update(dict.fromkeys(reads, 0))
        getattr(refbase, name)(torch.rand(groups), list(range(groups)), state, history_keys=keys)
        assert any(reads.values())
        return dict(reads)

    assert cost(8) == cost(2)
