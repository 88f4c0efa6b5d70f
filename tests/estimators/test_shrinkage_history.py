"""Shrinkage towards history and the other prompts together."""

import random
from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase

GROUP = st.lists(st.integers(-3, 3).map(F), min_size=1, max_size=4)
BATCH = st.lists(GROUP, min_size=1, max_size=7)


def flat(groups):
    return [F(r) for group in groups for r in group], [k for k, group in enumerate(groups) for _ in group]


def history(*steps, decay=F(1, 2), window=100):
    state = refbase.HistoryState.empty(decay=decay, window=window)
    for groups in steps:
        state = refbase.update_history(state, *flat(groups))
    return state


def call(groups, state, **options):
    return both("shrinkage_history", *flat(groups), state, **options)


STEADY = [[1, 0], [1, 1], [0, 0], [1, 0]] * 4
#: Every step is one higher than the step before; inside a step, means differ by at most one.
CLIMBING = [[[t, t + 1], [t, t], [t + 1, t + 1], [t, t + 1]] for t in range(8)]


def drift(state):
    return state.keys[None].drift(state.decay)


def test_drift_by_hand():
    """One group a step at 0, 4, 4, 12, 12, which H follows at half speed: 0, 8/3, 24/7."""
    state = history([[0]], [[4]], [[4]], [[12]], decay=F(1, 2))
    # k = 1 + squares of the weights over the square of their sum; V = half the squared change
    gaps = [4**2 - 2 * F(8), (4 - F(8, 3)) ** 2, (12 - F(24, 7)) ** 2 - (1 + F(21, 49)) * F(32)]
    assert gaps == [0, F(16, 9), F(1360, 49)]
    weights = [F(1, 4), F(1, 2), F(1)]
    average = sum(w * gap for w, gap in zip(weights, gaps, strict=True)) / F(7, 4)
    variance = sum((w * (gap - average)) ** 2 for w, gap in zip(weights, gaps, strict=True)) / (F(49, 16) - F(21, 16))
    assert average**2 < 4 * variance
    assert drift(state) == 0  # one surprise, no sign of how large the next would be
    # Two alike make a drift: 3 (1 - 4 var/mean^2) with gaps of 3 and 3 and no variance at all.
    steps = [[[0, 0], [0, 0]], [[2, 2], [2, 2]], [[2, 2], [2, 2]]]
    alike = history(*steps, decay=F(1, 2))
    gaps = [4 - (F(1, 2) + F(1, 2)) * F(8, 5), (2 - F(4, 3)) ** 2 - 0]
    mean = (gaps[0] / 2 + gaps[1]) / F(3, 2)
    variance = ((gaps[0] - mean) ** 2 / 4 + (gaps[1] - mean) ** 2) / (F(9, 4) - F(5, 4))
    assert drift(alike) == max(0, mean - 4 * variance / mean)


def test_no_drift_where_nothing_moves_or_little_is_known():
    assert drift(history(STEADY, STEADY, STEADY, STEADY)) == 0
    assert drift(history([[0, 0]], [[5, 5]])) == 0  # one change: no idea of its own error
    assert drift(history(*[[[1, 1], [1, 1]]] * 5)) == 0
    assert drift(history(*CLIMBING, window=1)) == 0
    assert drift(history(*CLIMBING, decay=F(0))) == 0


def test_drift_of_a_level_that_climbs():
    """H lags two steps of height one behind, so that e^2 is 4; the spread about H, a bound, contains only a part."""
    long = history(*[[[t, t + 1], [t, t], [t + 1, t + 1], [t, t + 1]] for t in range(30)])
    assert long.keys[None].mean == pytest.approx(29.5 - 1)  # one step behind the last, two behind the next
    assert drift(long) == long.keys[None].between_variance
    assert 2 < drift(long) < 4
    # Many groups about a level that moves little: below the bound. Lag 1/2; V = (3*64 + 2*3/4)/71, k = 1/24 + 1/72.
    wide = history(*[[[F(t, 4), F(t, 4) + 4], [F(t, 4) + 4] * 2, [F(t, 4)] * 2] * 8 for t in range(30)])
    assert drift(wide) < wide.keys[None].between_variance
    assert float(drift(wide)) == pytest.approx(1 / 4 - (1 / 24 + 1 / 72) * 193.5 / 71, rel=1e-3)


@given(BATCH, st.sampled_from([refbase.HistoryState.empty(), history(STEADY[:15])]))
def test_without_enough_history_it_is_shrinkage_js(groups, state):
    got, wanted = call(groups, state), both("shrinkage_js", *flat(groups))
    if len(groups) > 1 or len(groups[0]) > 1 or not state.keys:
        assert (got.weight, got.baseline, got.advantages) == (wanted.weight, wanted.baseline, wanted.advantages)
    else:
        assert got.baseline == [state.keys[None].mean]


@given(st.lists(st.integers(-3, 3).map(F), min_size=1, max_size=4), st.integers(1, 3))
def test_one_prompt_a_step_without_drift_is_bvblend_eb(group, steps):
    state = history(*[STEADY] * steps)
    assert drift(state) == 0
    got, wanted = call([group], state), both("bvblend_eb", *flat([group]), state)
    assert (got.weight, got.target, got.advantages) == (wanted.weight, wanted.target, wanted.advantages)


def test_by_hand():
    """Five prompts of (1, 0) beside sixteen groups of history; see the page's worked example."""
    state = history(STEADY)  # H = 1/2, within 1/4, between 1/120, noise 1/8, 16 groups
    estimate = call([[1, 0]] * 5, state)
    pooled = F(3, 19)  # n - 2 = 3 against 16
    noise = pooled * F(1, 2) + (1 - pooled) * F(1, 4)
    assert (1 - pooled) * F(1, 120) < pooled * F(1, 4)  # the others have less spread than sampling alone would give
    assert estimate.target == [F(1, 2)] * 10
    assert estimate.weight == [noise / (noise + noise / 2 / 20)] * 10 == [F(40, 41)] * 10
    # Means 1, 0, 1/2, 1/2 beside a fifth prompt: S = 1/6 about 1/2, noise 1/8, two of the four have a spread.
    estimate = call([[1, 1], [0, 0], [1, 0], [1, 0], [1, 0]], state)
    noise = pooled * F(1, 4) + (1 - pooled) * F(1, 4)
    inflated = F(1, 6) * (1 + F(1, 2 + 16)) * F(2 + 2 + 16, 2 + 16)
    t = pooled * (inflated - F(1, 8)) + (1 - pooled) * F(1, 120)
    variance = pooled**2 * (F(2, 3) * F(1, 36) + F(1, 2) * F(1, 64))
    spread = t / (1 + variance / t**2)
    assert estimate.weight[8] == noise / (noise + spread + (spread + noise / 2) / 20)


def test_the_target_weighs_by_precision():
    state = history(STEADY)
    estimate = call([[1, 1], [1, 1], [0, 1]], state)  # two others: their spread is not used
    value = F(1, 120) + F(1, 8)
    others, remembered = value / 2, value / 16
    assert estimate.target[0] == F(1, 2) + remembered / (others + remembered) * (F(3, 4) - F(1, 2))
    assert estimate.target[4] == F(1, 2) + remembered / (others + remembered) * (1 - F(1, 2))


def test_a_history_that_has_moved_away_counts_little():
    """At the level of the last step the others say more than H, and more than in a history that stood still."""
    still = history(*[[[7, 8], [7, 7], [8, 8], [7, 8]]] * 8)
    batch = [[12, 13], [12, 12], [13, 13], [12, 13], [13, 12]]
    moved, calm = call(batch, history(*CLIMBING), min_groups=4), call(batch, still, min_groups=4)
    assert drift(history(*CLIMBING)) > 0
    share = [
        (e.target[0] - h.keys[None].mean) / (F(25, 2) - h.keys[None].mean)
        for e, h in ((moved, history(*CLIMBING)), (calm, still))
    ]
    assert share[0] > F(3, 4) > share[1]


def test_constant_rewards_weigh_by_numbers_of_groups():
    state = history([[0, 0]] * 16)
    estimate = call([[1], [1, 1], [1, 1]], state)
    assert estimate.target == [F(2, 18)] * 5
    assert estimate.weight == [1, 0, 0, 0, 0]


@given(st.lists(st.tuples(st.sampled_from("xyz"), GROUP), min_size=1, max_size=8))
def test_prompts_of_other_keys_play_no_part(keyed):
    state = refbase.HistoryState.empty(decay=F(1, 2))
    for t in range(4):
        rewards, ids = flat([[t, 1], [0, 1], [t]] * 2)
        state = refbase.update_history(state, rewards, ids, history_keys=["x" if g < 3 else "y" for g in ids])
    groups = [group for _, group in keyed]
    rewards, ids = flat(groups)
    together = both("shrinkage_history", rewards, ids, state, history_keys=[keyed[g][0] for g in ids], min_groups=2)
    for key in "xyz":
        rows = [row for row, g in enumerate(ids) if keyed[g][0] == key]
        if rows:
            alone = both(
                "shrinkage_history",
                [rewards[row] for row in rows],
                [ids[row] for row in rows],
                state,
                history_keys=[key] * len(rows),
                min_groups=2,
            )
            assert [together.weight[row] for row in rows] == alone.weight
            assert [together.baseline[row] for row in rows] == alone.baseline


def keyed(name, *populations, **options):
    """`both` on groups by key."""
    rows = [(r, f"{key}{g}", key) for key, groups in populations for g, group in enumerate(groups) for r in group]
    rewards, ids, keys = map(list, zip(*rows, strict=True))
    return both(name, rewards, ids, history_keys=keys, **options)


@pytest.mark.parametrize("remembered", [0, 3])
def test_keys_of_unequal_numbers_of_prompts(remembered):
    """The kernel treats keys of four to seven groups together and pads the shorter ones: padding has no variance."""
    many = [[1, 0], [1, 1, 0], [0, 0], [1, 0], [3, 1], [2, 0, 1], [5]]
    state = refbase.HistoryState.empty(decay=F(1, 2))
    for _ in range(remembered):
        ids = [f"{key}{k // 2}" for key in "xy" for k in range(len(STEADY) * 2)]
        rewards = [r for _ in "xy" for group in STEADY for r in group]
        state = refbase.update_history(state, list(map(F, rewards)), ids, history_keys=[label[0] for label in ids])
    for short in (4, 5, 6):
        estimate = keyed("shrinkage_history", ("x", many[:short]), ("y", many), state=state)
        for key, groups in (("x", many[:short]), ("y", many)):
            alone = keyed("shrinkage_history", (key, groups), state=state)
            rows = slice(0, len(alone.weight)) if key == "x" else slice(len(estimate.weight) - len(alone.weight), None)
            assert estimate.weight[rows] == alone.weight
            assert any(0 < w < 1 for w in alone.weight)


def test_histories_of_keys_of_quite_different_scale():
    state = refbase.HistoryState.empty(decay=F(1, 2))
    for key, unit in (("x", 1e100), ("y", 1e-100)):
        rewards = [F(unit) * r for group in STEADY for r in group]
        state = refbase.update_history(state, rewards, [k // 2 for k in range(32)], history_keys=[key] * 32)
    small = [[F(1e-100), F(0)], [F(1e-100), F(1e-100)], [F(1e-100), F(0)]]
    estimate = keyed("shrinkage_history", ("x", small), ("y", small), state=state)
    assert 0 < estimate.weight[0] < 1
    assert 0 < estimate.weight[-1] < 1


def test_kernel_and_spec_agree_on_streams_that_drift():
    """Ragged, keyed, of any decay and window; `both` compares."""
    rng, blended, drifted = random.Random(0), 0, 0
    for _ in range(60):
        state = refbase.HistoryState.empty(decay=F(rng.choice([0, 3, 9]), 10), window=rng.choice([1, 4, 100]))
        keys = rng.choice([[None], ["a", "b", "c"]])
        slope = rng.choice([0, 1, 3])

        def batch(groups, level, keys=keys):
            rows = []
            for g in range(groups):
                key, size = rng.choice(keys), rng.choice([1, 2, 2, 3, 5])
                rows += [(F(rng.randrange(3)) + level, g, key) for _ in range(size)]
            return map(list, zip(*rows, strict=True))

        for t in range(rng.choice([0, 2, 6, 9])):
            rewards, ids, of_row = batch(rng.choice([1, 3, 8]), slope * t)
            state = refbase.update_history(state, rewards, ids, history_keys=of_row)
        rewards, ids, of_row = batch(rng.choice([1, 2, 5, 9]), 0)
        estimate = both("shrinkage_history", rewards, ids, state, history_keys=of_row, min_groups=rng.choice([0, 3]))
        blended += any(0 < w < 1 for w in estimate.weight)
        drifted += any(past.drift(state.decay) > 0 for past in state.keys.values())
    assert blended > 20
    assert drifted > 8


@pytest.mark.parametrize("largest", [1e30, 1e38, 4e127])
@pytest.mark.parametrize("smallest", [1e-290, 5e-324])
def test_a_history_of_quite_another_scale(largest, smallest):
    state = history(*[[[largest, 0], [0, largest], [largest, largest]] * 8] * 2)
    estimate = call([[smallest, 0], [smallest, smallest], [0, 0]], state)  # `call` compares kernel and spec
    assert float(estimate.weight[0]) == pytest.approx(0.99, abs=0.01)
    assert float(estimate.target[0]) == pytest.approx(state.keys[None].mean, rel=0.1)


@pytest.mark.parametrize("values", [[1.0, 0.0], torch.tensor([1.0, 0.0])], ids=["spec", "kernel"])
def test_refusals(values):
    cold = refbase.HistoryState.empty()
    with pytest.raises(refbase.InputError, match="shrinkage_history: `min_groups` must be"):
        refbase.shrinkage_history(values, ["a", "a"], cold, min_groups=-1)
    with pytest.raises(refbase.InputTypeError, match=r"Start from refbase\.HistoryState\.empty"):
        refbase.shrinkage_history(values, ["a", "a"], None)
    with pytest.raises(refbase.InputTypeError, match="unknown option 'scale'"):
        refbase.shrinkage_history(values, ["a", "a"], cold, scale="history")
    with pytest.raises(refbase.InputError, match="`history_keys` must be the same for all rollouts of a group"):
        refbase.shrinkage_history(values, ["a", "a"], cold, history_keys=["x", "y"])
