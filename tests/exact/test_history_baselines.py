"""BV-Blend for a fixed history, in rationals with tolerance 0: what is unbiased, what is not, and by how much."""

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction as F
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refbase
from refbase.exact import Problem, Prompt, evaluate, on_torch

RATIONALS = st.fractions(-2, 2, max_denominator=5)


@st.composite
def prompts(draw):
    k, m = draw(st.sampled_from([(2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2), (3, 3)]))
    shares = draw(st.lists(st.integers(1, 9), min_size=k, max_size=k))
    rewards = draw(st.lists(RATIONALS, min_size=k, max_size=k))
    return Prompt([F(share, sum(shares)) for share in shares], rewards, m)


@st.composite
def histories(draw, keys=(None,)):
    """A state after one to three steps of ragged groups, in Fractions throughout."""
    state = refbase.HistoryState.empty(
        window=draw(st.integers(1, 3)), decay=draw(st.fractions(0, F(19, 20), max_denominator=20))
    )
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(
            st.lists(
                st.tuples(st.sampled_from(keys), st.lists(RATIONALS, min_size=1, max_size=4)),
                min_size=1,
                max_size=5,
            )
        )
        rows = [(r, g, key) for g, (key, rewards) in enumerate(groups) for r in rewards]
        rewards, group_ids, history_keys = map(list, zip(*rows, strict=True))
        state = refbase.update_history(state, rewards, group_ids, history_keys=history_keys)
    return state


def one_step(means, rollouts=2):
    """A history of one step whose groups are constant at the given means."""
    rewards = [F(mean) for mean in means for _ in range(rollouts)]
    group_ids = [g for g in range(len(means)) for _ in range(rollouts)]
    return refbase.update_history(refbase.HistoryState.empty(), rewards, group_ids)


def in_floats(value):
    """The same state in floats, as a trainer would hold it."""
    if isinstance(value, F):
        return float(value)
    if isinstance(value, tuple):
        return tuple(map(in_floats, value))
    if isinstance(value, dict):
        return {key: in_floats(item) for key, item in value.items()}
    if is_dataclass(value):
        return replace(value, **{field.name: in_floats(getattr(value, field.name)) for field in fields(value)})
    return value


def with_history(estimator, state, **options):
    return lambda rewards, group_ids: estimator(rewards, group_ids, state, **options)


UNBIASED = (
    partial(refbase.bvblend, local="loo", scale="none"),
    refbase.bvblend_eb,
    partial(refbase.bvblend_eb, min_groups=0),  # let it blend from the first group on
    refbase.shrinkage_history,
    partial(refbase.shrinkage_history, min_groups=0),
)


@settings(max_examples=80)
@given(st.lists(prompts(), min_size=1, max_size=2), histories())
def test_leave_one_out_blends_are_unbiased_for_any_history(batch, state):
    for estimator in UNBIASED:
        report = evaluate(Problem(batch), with_history(estimator, state), symmetric=True)
        assert report.largest_bias == 0


@settings(max_examples=40)
@given(st.lists(prompts(), min_size=2, max_size=2), histories(keys=("easy", "hard")), st.permutations(["hard", "new"]))
def test_unbiased_with_keys_seen_and_unseen(batch, state, keys):
    problem = Problem(batch, labels=keys)
    for estimator in UNBIASED:
        report = evaluate(problem, lambda r, g, e=estimator: e(r, g, state, history_keys=g), symmetric=True)
        assert report.largest_bias == 0


def test_the_blends_do_blend_here():
    """The tests above would pass for rloo too; this history gives both a weight strictly inside (0, 1)."""
    state = refbase.HistoryState.empty()
    rewards = [F(x) for x in (0, 1, 1, 1, 0, 0, 0, 1, 0, 1)]
    state = refbase.update_history(state, rewards, [g // 2 for g in range(10)])
    for estimator in (UNBIASED[0], UNBIASED[2], UNBIASED[4]):
        estimate = estimator([F(0), F(1), F(1)], [0, 0, 0], state)
        assert any(0 < weight < 1 for weight in estimate.weight)


def test_unbiased_with_all_that_shrinkage_history_pools():
    """Four prompts use each other's variances too, and H has moved away."""
    state = refbase.HistoryState.empty(decay=F(1, 2))
    for t in range(6):
        rewards = [F(r, 10) + F(t, 20) for r in (0, 1, 0, 0, 1, 1, 1, 0)]
        state = refbase.update_history(state, rewards, [g // 2 for g in range(8)])
    assert state.keys[None].drift(state.decay) > 0
    problem = Problem([Prompt.bernoulli(p, 2) for p in ("1/7", "1/2", "2/3", "9/10")])
    estimator = partial(refbase.shrinkage_history, min_groups=0)
    report = evaluate(problem, with_history(estimator, state), symmetric=True)
    assert report.largest_bias == 0
    assert report.mse != evaluate(problem, refbase.shrinkage_js, symmetric=True).mse
    assert report.mse != evaluate(problem, with_history(partial(refbase.bvblend_eb, min_groups=0), state)).mse


@settings(max_examples=60)
@given(st.lists(prompts(), min_size=1, max_size=2), histories(), st.fractions(0, 1, max_denominator=6))
def test_a_constant_weight_on_the_group_mean_shrinks_the_gradient_by_its_share(batch, state, beta):
    """E g = (1 - (1-β)/m) ∇ for `local="mean"`, `scale="none"`."""
    problem = Problem(batch)
    report = evaluate(problem, with_history(refbase.bvblend, state, weight=beta, scale="none"), symmetric=True)
    for expected, prompt in zip(report.expected_gradient, problem.prompts, strict=True):
        factor = 1 - (1 - beta) / prompt.rollouts
        assert list(expected) == [factor * g for g in prompt.gradient]


@settings(max_examples=15)
@given(st.lists(prompts(), min_size=1, max_size=2), histories())
def test_kernels_have_the_bias_variance_and_error_of_the_spec(batch, state):
    pytest.importorskip("torch")
    problem = Problem(batch)
    floats = in_floats(state)
    for estimator in UNBIASED:
        exact = evaluate(problem, with_history(estimator, state), symmetric=True)
        kernel = on_torch(with_history(estimator, floats))
        report = evaluate(problem, kernel, arithmetic="float", symmetric=True)
        assert report.largest_bias < 1e-13
        assert report.variance == pytest.approx(float(exact.variance), abs=1e-12)
        assert report.mse == pytest.approx(float(exact.mse), abs=1e-12)


def test_the_articles_weight_can_turn_the_gradient_around():
    """Rewards {0, 1/5}, π(1/5) = 9/10, m = 3, H = 9/10, σ_u² = 1/50: E g = -187/3750 ∇p where ∇E r = 1/5 ∇p."""
    state = one_step(["7/10", "8/10", "9/10", 1, "11/10"])
    history = state.keys[None]
    assert (history.mean, history.window_variance) == (F(9, 10), F(1, 50))
    problem = Problem([Prompt(("1/10", "9/10"), (0, "1/5"), 3)])
    p_gradient = F(9, 100)  # ∂p/∂logit of the second response

    literal = evaluate(problem, with_history(refbase.bvblend, state, scale="none"))
    assert literal.true_gradient[0][1] / p_gradient == F(1, 5)
    assert literal.expected_gradient[0][1] / p_gradient == F(-187, 3750)
    assert literal.factor(0) < 0

    fixed = evaluate(problem, with_history(refbase.bvblend, state, local="loo", scale="none"))
    assert fixed.expected_gradient[0][1] / p_gradient == F(1, 5)
    assert fixed.largest_bias == 0


@given(st.fractions(F(1, 10), F(9, 10), max_denominator=10), st.integers(1, 4))
def test_what_all_fail_groups_contribute(p, m):
    """With β = 1 and no scale: exactly H (1-p)^(m-1) ∇p."""
    state = one_step(["1/5", "2/5"])

    def failures_only(rewards, group_ids):
        estimate = refbase.bvblend(rewards, group_ids, state, weight=1, scale="none")
        return [a if not any(rewards) else F(0) for a in estimate.advantages]

    report = evaluate(Problem([Prompt.bernoulli(p, m)]), failures_only)
    assert report.factor(0) == F(3, 10) * (1 - p) ** (m - 1)


def test_a_common_scale_keeps_the_direction():
    """`scale="history"` divides every prompt's advantages by one number, here the floor."""
    state = one_step(["1/5", "2/5"])
    problem = Problem([Prompt.bernoulli("1/7", 3), Prompt(("1/2", "1/4", "1/4"), (0, 1, "1/2"), 2)])
    scaled = partial(refbase.bvblend_eb, scale="history", min_scale=F(10), min_groups=0)
    report = evaluate(problem, with_history(scaled, state), symmetric=True)
    assert (report.factor(0), report.factor(1)) == (F(1, 10), F(1, 10))


def test_a_scale_of_the_own_rewards_is_biased():
    """The floor of `scale="blend"` and the rewards' own spread give each outcome a divisor of its own."""
    state = one_step(["1/5", "2/5"])
    problem = Problem([Prompt.bernoulli("1/7", 3)])
    report = evaluate(problem, with_history(refbase.bvblend, state, local="loo"), arithmetic="float")
    assert report.largest_bias > 0.1
