"""Bias by enumeration, in rationals, with tolerance 0, over generated ragged problems.

Every problem here has prompts of different sizes, groups of one, ties and constant rewards among its draws;
a test at the end checks that they do occur.
"""

from fractions import Fraction as F
from functools import partial
from math import comb

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import refbase
from refbase.exact import Problem, Prompt, evaluate, on_torch, stacked

BUDGET = 60  # joint outcomes of one problem


@st.composite
def problems(draw, least_rollouts=1, most_prompts=3, budget=BUDGET):
    """Ragged problems of at most `budget` outcomes (up to the order inside a prompt)."""
    batch, left = [], budget
    for _ in range(draw(st.integers(1, most_prompts))):
        # A prompt with K responses and m rollouts multiplies the outcomes by C(m+K-1, m).
        sizes = [(k, m) for k in (2, 3, 4) for m in range(least_rollouts, 6) if comb(m + k - 1, m) <= min(left, 21)]
        if not sizes:
            break
        k, m = draw(st.sampled_from(sizes))
        left //= comb(m + k - 1, m)
        shares = draw(st.lists(st.integers(1, 9), min_size=k, max_size=k))
        rewards = draw(st.lists(st.sampled_from(REWARDS), min_size=k, max_size=k))
        batch.append(Prompt([F(share, sum(shares)) for share in shares], rewards, m))
    return Problem(batch)


REWARDS = [F(0), F(1), F(1), F(-1), F(1, 2), F(1, 5), F(7, 3), F(1000001)]


def expect(problem, estimator):
    return evaluate(problem, estimator, symmetric=True)


@settings(max_examples=100)
@given(problems())
def test_leave_one_out_baselines_are_unbiased(problem):
    for estimator in (refbase.rloo, refbase.batch_mean, refbase.shrinkage):
        assert expect(problem, estimator).largest_bias == 0


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(REWARDS)), min_size=4, max_size=4),
    st.integers(0, 1),
)
def test_shrinkage_js_is_unbiased_where_it_shrinks(draws, singletons):
    """It needs three other prompts with two rollouts before its weight leaves 0."""
    batch = [Prompt((F(share, 10), F(10 - share, 10)), (0, reward), 2) for share, reward in draws]
    batch += [Prompt.bernoulli("1/3", 1)] * singletons
    weights = set()

    def watched(rewards, group_ids):
        estimate = refbase.shrinkage_js(rewards, group_ids)
        weights.update(estimate.weight)
        return estimate

    assert expect(Problem(batch), watched).largest_bias == 0
    if sum(reward != 0 for _, reward in draws) > 1:
        assert any(0 < weight < 1 for weight in weights)


@settings(max_examples=40)
@given(problems())
def test_shrinkage_js_is_unbiased_on_small_batches(problem):
    assert expect(problem, refbase.shrinkage_js).largest_bias == 0


@settings(max_examples=60)
@given(problems())
def test_group_mean_has_the_factor_of_its_own_share(problem):
    """E g = (m-1)/m ∇: each rollout's share 1/m of its own baseline is lost. A group of one is lost entirely."""
    zeroed = expect(problem, partial(refbase.group_mean, singletons="zero"))
    raw = expect(problem, refbase.group_mean)
    gvpo = expect(problem, refbase.gvpo)
    for i, prompt in enumerate(problem.prompts):
        m = prompt.rollouts
        if prompt.variance:
            assert zeroed.factor(i) == gvpo.factor(i) == F(m - 1, m)
            assert raw.factor(i) == (1 if m == 1 else F(m - 1, m))
        else:
            assert not any(zeroed.expected_gradient[i] + raw.expected_gradient[i] + gvpo.expected_gradient[i])


@settings(max_examples=40)
@given(problems())
def test_group_mean_is_rloo_times_that_factor_for_every_outcome(problem):
    """Not only on average: (m-1)/m times the leave-one-out advantage is the centred reward."""
    sizes = [prompt.rollouts for prompt in problem.prompts for _ in range(prompt.rollouts)]

    def scaled(rewards, group_ids):
        advantages = refbase.rloo(rewards, group_ids, singletons="zero").advantages
        return [F(m - 1, m) * a for m, a in zip(sizes, advantages, strict=True)]

    left, right = (expect(problem, e) for e in (scaled, partial(refbase.group_mean, singletons="zero")))
    assert left.expected_gradient == right.expected_gradient
    assert left.variance == right.variance


def in_sample_shrinkage(rewards, group_ids):
    """Shrinkage as one would first write it: statistics and target from all prompts, the own one included."""
    groups = {}
    for reward, label in zip(rewards, group_ids, strict=True):
        groups.setdefault(label, []).append(reward)
    means = {g: sum(rs) / len(rs) for g, rs in groups.items()}
    target = sum(means.values()) / len(means)
    spread = sum((mean - target) ** 2 for mean in means.values()) / len(means)
    noise = sum(sum((r - means[g]) ** 2 for r in rs) / (len(rs) - 1) / len(rs) for g, rs in groups.items()) / len(means)
    lam = noise / (noise + spread) if noise + spread else 0
    advantages = []
    for reward, label in zip(rewards, group_ids, strict=True):
        rest = (sum(groups[label]) - reward) / (len(groups[label]) - 1)
        advantages.append(reward - (1 - lam) * rest - lam * target)
    return advantages


def test_in_sample_shrinkage_is_biased():
    problem = Problem([Prompt.bernoulli("1/5", 2), Prompt.bernoulli("1/2", 3)])
    assert expect(problem, refbase.shrinkage).largest_bias == 0
    report = expect(problem, in_sample_shrinkage)
    # Too short by a different factor for each prompt, so no learning rate makes up for it.
    assert (report.factor(0), report.factor(1)) == (F(23, 36), F(667, 810))


@settings(max_examples=30, derandomize=True)  # biases may cancel on rare problems; none of these does
@given(problems(least_rollouts=2))
def test_in_sample_shrinkage_is_biased_on_nearly_every_problem(problem):
    if len(problem.prompts) > 1 and all(prompt.variance for prompt in problem.prompts):
        assert expect(problem, in_sample_shrinkage).largest_bias > 0


# --- dividing by the group's standard deviation ---------------------------------------------------------

# The rare big success is what matters: E r = 101/5, and a reward of 1 is far below it.
LOTTERY = Problem([Prompt(("3/5", "1/5", "1/5"), (0, 1, 100), 2)])


def sign_of_the_pair(rewards, group_ids):
    """Standardising two rollouts leaves ±1 of their difference (population deviation, eps = 0): rational."""
    return [(r > other) - (r < other) for r, other in zip(rewards, reversed(rewards), strict=True)]


def test_standardising_turns_the_gradient_of_a_response_around():
    """With m = 2, GRPO pushes the response with reward 1 up where the true gradient pushes it down."""
    report = expect(LOTTERY, sign_of_the_pair)
    (up,), (true,) = report.expected_gradient, report.true_gradient
    # Win rates in place of rewards: ½ π(y) (P(r < r_y) - P(r > r_y)) · 2 for the pair.
    assert up == (F(-6, 25), F(2, 25), F(4, 25))
    assert true[1] == F(1, 5) * (1 - F(101, 5)) == F(-96, 25)
    assert report.factor(0) is None


def test_grpo_is_biased_and_this_is_the_same_bias():
    report = evaluate(LOTTERY, refbase.grpo, arithmetic="float")
    reference = expect(LOTTERY, sign_of_the_pair).expected_gradient[0]
    for got, exact in zip(report.expected_gradient[0], reference, strict=True):
        assert got == pytest.approx(float(exact) / 2**0.5, rel=1e-5)  # Bessel's √2, and eps = 1e-6
    assert report.largest_bias > 3.8


def test_grpo_reweights_prompts_by_their_difficulty():
    """Even with 0/1 rewards the factor differs by prompt, so the direction of the batch gradient is wrong."""
    problem = Problem([Prompt.bernoulli("1/20", 4), Prompt.bernoulli("1/2", 4)])
    report = evaluate(problem, refbase.grpo, arithmetic="float", symmetric=True)
    factors = [e[1] / t[1] for e, t in zip(report.expected_gradient, report.true_gradient, strict=True)]
    # k successes of m: centred rewards over their deviation, times the score, sum to √(k(m-k)(m-1)/m) / m.
    closed = [
        sum(comb(4, k) * p**k * (1 - p) ** (4 - k) * (k * (4 - k) * 3 / 4) ** 0.5 / 4 for k in range(5)) / (p * (1 - p))
        for p in (0.05, 0.5)
    ]
    assert factors == pytest.approx(closed, rel=1e-5)
    assert factors == pytest.approx([1.4809, 1.3995], abs=1e-4)


def test_grpo_kernel_and_spec_have_the_same_expected_gradient():
    torch = pytest.importorskip("torch")
    spec = evaluate(LOTTERY, refbase.grpo, arithmetic="float")

    def kernel(rewards, group_ids):
        return refbase.grpo(rewards, torch.as_tensor(group_ids))

    report = evaluate(LOTTERY, stacked(on_torch(kernel)), arithmetic="float", batched=True)
    assert report.calls == 1
    assert report.variance == pytest.approx(spec.variance, rel=1e-12)
    assert report.expected_gradient[0] == pytest.approx(spec.expected_gradient[0], rel=1e-12)


# --- kernels, in floats ---------------------------------------------------------------------------------


@settings(max_examples=10)
@given(problems(budget=30))
def test_kernels_have_the_bias_variance_and_error_of_the_spec(problem):
    pytest.importorskip("torch")
    size = max(abs(float(r)) for prompt in problem.prompts for r in prompt.rewards) + 1
    for estimator in (refbase.rloo, refbase.batch_mean, refbase.shrinkage, refbase.shrinkage_js):
        exact = expect(problem, estimator)
        report = evaluate(problem, on_torch(estimator), arithmetic="float", symmetric=True)
        assert report.largest_bias <= 1e-12 * size
        # Variance is a difference of second moments, so its rounding error scales with size².
        assert report.variance == pytest.approx(float(exact.variance), abs=1e-12 * size**2)
        assert report.mse == pytest.approx(float(exact.mse), abs=1e-12 * size**2)


# --- do the generated problems reach what matters? ------------------------------------------------------


@pytest.mark.parametrize(
    "region",
    [
        lambda p: len({prompt.rollouts for prompt in p.prompts}) == 3,
        lambda p: any(prompt.rollouts == 1 for prompt in p.prompts) and len(p.prompts) > 1,
        lambda p: len(p.prompts) == 1 and p.prompts[0].rollouts == 1,
        lambda p: any(prompt.variance == 0 for prompt in p.prompts),
        lambda p: any(0 < len(set(pr.rewards)) - 1 < len(pr.rewards) - 1 for pr in p.prompts),
        lambda p: any(prompt.rollouts >= 4 for prompt in p.prompts) and len(p.prompts) > 1,
        lambda p: any(abs(prompt.mean) > 1000 for prompt in p.prompts),
    ],
    ids=["ragged", "singleton", "lone rollout", "constant", "ties", "large group", "large offset"],
)
def test_the_strategy_reaches(region):
    problem = find(problems(), region, settings=settings(max_examples=2000))
    assert problem.outcomes(symmetric=True) <= BUDGET
