"""Closed forms for a fixed shrinkage weight λ, against enumeration, with tolerance 0.

For one prompt with z = r - μ, score s and target T (the mean of the other prompts' means):

    F = E|s|²   v = σ²/(m-1)   κ = |E zs|²/(σ²F)   c = E[z|s|²]/F   d = T - μ

    m tr Var G = tr Var(zs) + (1-λ)² F v (1+κ) + λ² F E d² - 2 λ F c E d
    MSE        = (1-λ)² v + λ² E d²
"""

from fractions import Fraction as F
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

import refbase
from refbase.exact import Problem, Prompt, evaluate


def probabilities(k):
    return st.lists(st.integers(1, 6), min_size=k, max_size=k).map(lambda w: [F(x, sum(w)) for x in w])


@st.composite
def prompts(draw, rollouts=(2, 3)):
    k = draw(st.integers(2, 3))
    rewards = draw(st.lists(st.fractions(-2, 2, max_denominator=4), min_size=k, max_size=k))
    return Prompt(draw(probabilities(k)), rewards, draw(st.sampled_from(rollouts)))


WEIGHTS = st.fractions(0, 1, max_denominator=8)


class Moments:
    """The symbols of the formula, for prompt i of a problem."""

    def __init__(self, problem, i):
        prompt = problem.prompts[i]
        others = [other for k, other in enumerate(problem.prompts) if k != i]
        z = [r - prompt.mean for r in prompt.rewards]
        norm = [sum(c * c for c in score) for score in prompt.scores]  # |s|²
        self.m, sigma2 = prompt.rollouts, prompt.variance
        self.F = prompt.expect(norm)
        self.v = sigma2 / (self.m - 1)
        zs2 = sum(c * c for c in prompt.gradient)  # |E zs|², as E zs is the true gradient
        self.trace_zs = prompt.expect([x * x * n for x, n in zip(z, norm, strict=True)]) - zs2
        self.kappa = zs2 / (sigma2 * self.F) if sigma2 else F(0)
        self.c = prompt.expect([x * n for x, n in zip(z, norm, strict=True)]) / self.F
        target = sum(other.mean for other in others) / len(others)
        target_variance = sum(other.variance / other.rollouts for other in others) / F(len(others)) ** 2
        self.d = target - prompt.mean
        self.d2 = self.d**2 + target_variance

    def variance(self, lam):
        spread = self.trace_zs + (1 - lam) ** 2 * self.F * self.v * (1 + self.kappa)
        return (spread + lam**2 * self.F * self.d2 - 2 * lam * self.F * self.c * self.d) / self.m

    def mse(self, lam):
        return (1 - lam) ** 2 * self.v + lam**2 * self.d2


@settings(max_examples=40)
@given(st.lists(prompts(), min_size=2, max_size=2), WEIGHTS)
def test_variance_and_error_at_a_fixed_weight(batch, lam):
    problem = Problem(batch)
    report = evaluate(problem, partial(refbase.shrinkage, weight=lam), symmetric=True)
    moments = [Moments(problem, i) for i in range(len(batch))]
    assert report.largest_bias == 0
    assert list(report.variance_by_prompt) == [moment.variance(lam) for moment in moments]
    assert list(report.mse_by_prompt) == [moment.mse(lam) for moment in moments]


def test_three_ragged_prompts_at_a_fixed_weight():
    problem = Problem(
        [Prompt(("1/6", "1/3", "1/2"), (0, 1, "-1/2"), 3), Prompt.bernoulli("1/5", 2), Prompt.bernoulli("2/3", 4)]
    )
    report = evaluate(problem, partial(refbase.shrinkage, weight=F(2, 5)), symmetric=True)
    assert report.variance == sum(Moments(problem, i).variance(F(2, 5)) for i in range(3))
    assert report.mse == sum(Moments(problem, i).mse(F(2, 5)) for i in range(3)) / 3


@settings(max_examples=25)
@given(
    st.integers(2, 3).flatmap(lambda m: st.lists(prompts((m,)), min_size=2, max_size=2)),
    WEIGHTS,
)
def test_best_constant_weight_and_when_it_beats_rloo(batch, lam):
    """Equal sizes: MSE = (1-λ)² v̄ + λ² D with D = n/(n-1) S_μ + σ̄²/(m(n-1)); better than rloo iff 0 < λ < 2λ*."""
    n, m = len(batch), batch[0].rollouts
    centre = sum(prompt.mean for prompt in batch) / n
    spread = sum((prompt.mean - centre) ** 2 for prompt in batch) / F(n - 1)
    noise = sum(prompt.variance for prompt in batch) / n
    v = noise / (m - 1)
    d = F(n, n - 1) * spread + noise / (m * (n - 1))
    problem = Problem(batch)
    mse = evaluate(problem, partial(refbase.shrinkage, weight=lam), symmetric=True).mse
    rloo = evaluate(problem, refbase.rloo, symmetric=True).mse
    assert mse == (1 - lam) ** 2 * v + lam**2 * d
    assert rloo == v
    if v + d > 0:
        best = v / (v + d)
        assert (mse < rloo) == (0 < lam < 2 * best)


@given(prompts(), prompts())
def test_the_mse_optimal_weight_never_costs_variance_without_the_score_term(one, two):
    """With c = 0, the variance-optimal λ is at least the MSE-optimal one, so the latter's variance is below rloo's."""
    moment = Moments(Problem([one, two]), 0)
    moment.c = F(0)
    if moment.v + moment.d2 == 0:
        return
    by_error = moment.v / (moment.v + moment.d2)
    shared = moment.v * (1 + moment.kappa)
    assert 0 <= moment.kappa <= 1
    assert by_error <= shared / (shared + moment.d2)
    assert moment.variance(by_error) <= moment.variance(0)
