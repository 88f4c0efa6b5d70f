"""The enumeration against closed forms and against itself; estimators here are written out on purpose."""

from fractions import Fraction as F
from itertools import product

import numpy as np
import pytest

from refbase.estimate import Estimate
from refbase.exact import Problem, Prompt, evaluate, on_torch, stacked
from refbase.validate import InputError, InputTypeError


def reinforce(rewards, group_ids):
    return list(rewards)


def leave_one_out(rewards, group_ids):
    """Advantages r - mean of the group's other rollouts; the raw reward in a group of one."""
    groups = {}
    for reward, label in zip(rewards, group_ids, strict=True):
        groups.setdefault(label, []).append(reward)
    return [
        r - (sum(groups[g]) - r) / (len(groups[g]) - 1) if len(groups[g]) > 1 else r
        for r, g in zip(rewards, group_ids, strict=True)
    ]


def batch_centred(rewards, group_ids):
    """Uses the whole batch, so it notices which prompts are drawn together."""
    return [r - sum(rewards) / len(rewards) for r in rewards]


THREE = Prompt(("1/2", "1/3", "1/6"), (0, 1, "5/2"), 2)


def test_prompt_moments_by_hand():
    assert THREE.mean == F(3, 4)
    assert THREE.variance == F(1, 3) + F(25, 24) - F(9, 16)
    assert THREE.gradient == (F(1, 2) * F(-3, 4), F(1, 3) * F(1, 4), F(1, 6) * F(7, 4))
    assert THREE.scores[1] == (F(-1, 2), F(2, 3), F(-1, 6))
    assert THREE.expect([score[1] for score in THREE.scores]) == 0


def test_the_true_gradient_is_the_derivative_of_the_expected_reward():
    step, logits = 1e-6, np.log([float(p) for p in THREE.probabilities])

    def expected_reward(z):
        weights = np.exp(z)
        return weights @ np.array([float(r) for r in THREE.rewards]) / weights.sum()

    for k, derivative in enumerate(THREE.gradient):
        shift = step * np.eye(3)[k]
        slope = (expected_reward(logits + shift) - expected_reward(logits - shift)) / (2 * step)
        assert slope == pytest.approx(float(derivative), abs=1e-8)


def test_reinforce_variance_by_hand():
    """Independent rollouts: variance Var(r s)/m; its baseline is 0."""
    report = evaluate(Problem([THREE]), reinforce)
    second = THREE.expect([r * r * sum(c * c for c in s) for r, s in zip(THREE.rewards, THREE.scores, strict=True)])
    assert report.largest_bias == 0
    assert report.variance == (second - sum(c * c for c in THREE.gradient)) / 2
    assert report.mse == THREE.mean**2
    assert report.outcomes == 9


def test_against_a_direct_enumeration():
    """Every number once more, by four nested sums over a ragged two-prompt problem."""
    one, two = Prompt(("1/3", "2/3"), (2, "-1/2"), 1), Prompt(("1/5", "4/5"), (0, 1), 2)
    report = evaluate(Problem([one, two]), batch_centred)
    mean, square, error = [[0, 0], [0, 0]], [0, 0], [0, 0]
    for a, b, c in product(range(2), repeat=3):
        weight = one.probabilities[a] * two.probabilities[b] * two.probabilities[c]
        rewards = [one.rewards[a], two.rewards[b], two.rewards[c]]
        baseline = sum(rewards) / 3
        advantages = [r - baseline for r in rewards]
        first = [advantages[0] * one.scores[a][k] for k in range(2)]
        second = [(advantages[1] * two.scores[b][k] + advantages[2] * two.scores[c][k]) / 2 for k in range(2)]
        for i, (gradient, prompt) in enumerate([(first, one), (second, two)]):
            mean[i] = [m + weight * g for m, g in zip(mean[i], gradient, strict=True)]
            square[i] += weight * sum(g * g for g in gradient)
            error[i] += weight * (baseline - prompt.mean) ** 2
    assert report.expected_gradient == tuple(map(tuple, mean))
    assert report.variance_by_prompt == tuple(s - sum(m * m for m in ms) for s, ms in zip(square, mean, strict=True))
    assert report.variance == sum(report.variance_by_prompt)
    assert report.mse_by_prompt == tuple(error)
    assert report.mse == sum(error) / 2
    assert report.bias == tuple(
        tuple(m - t for m, t in zip(ms, p.gradient, strict=True)) for ms, p in zip(mean, (one, two), strict=True)
    )


@pytest.mark.parametrize("estimator", [reinforce, leave_one_out, batch_centred])
def test_symmetric_enumeration_gives_the_same_numbers(estimator):
    problem = Problem([THREE, Prompt.bernoulli("1/7", 3), Prompt.bernoulli("1/2", 1, offset=2)])
    full, short = evaluate(problem, estimator), evaluate(problem, estimator, symmetric=True)
    assert (full.outcomes, short.outcomes) == (9 * 8 * 2, 6 * 4 * 2)
    for name in ("expected_gradient", "variance_by_prompt", "mse_by_prompt"):
        assert getattr(full, name) == getattr(short, name)


def test_chunks_do_not_change_the_numbers(monkeypatch):
    problem = Problem([THREE, Prompt.bernoulli("1/7", 3)])
    whole = evaluate(problem, batch_centred)
    monkeypatch.setattr("refbase.exact.enumeration._CHUNK", 7)
    assert evaluate(problem, batch_centred) == whole


def test_equal_rewards_share_one_call():
    problem = Problem([Prompt(("1/4", "1/4", "1/2"), (1, 1, 0), 3)])
    report = evaluate(problem, leave_one_out)
    assert (report.outcomes, report.calls) == (27, 8)
    assert report.largest_bias == 0


def test_float_mode_agrees_with_exact_mode_in_all_its_forms():
    problem = Problem([THREE, Prompt.bernoulli("1/7", 3)], labels=["a", None])
    exact = evaluate(problem, leave_one_out)

    def on_matrix(rewards, group_ids):
        assert rewards.ndim == 2
        return np.array([leave_one_out(row.tolist(), group_ids) for row in rewards])

    ways = [
        evaluate(problem, leave_one_out, arithmetic="float"),
        evaluate(problem, leave_one_out, arithmetic="float", symmetric=True),
        evaluate(problem, on_matrix, arithmetic="float", batched=True),
        evaluate(problem, stacked(leave_one_out), arithmetic="float", batched=True),
        evaluate(problem, stacked(leave_one_out), batched=True),
    ]
    for report in ways:
        assert report.variance == pytest.approx(float(exact.variance), rel=1e-12)
        assert report.mse == pytest.approx(float(exact.mse), rel=1e-12)
        assert report.largest_bias < 1e-15
    assert [report.calls for report in ways[2:]] == [1, 1, 1]
    assert ways[-1].variance == exact.variance


def test_torch_functions():
    torch = pytest.importorskip("torch")

    def centred(rewards, group_ids):
        assert rewards.dtype == torch.float64
        return Estimate(rewards - rewards.mean(), rewards.mean().expand(len(rewards)), None)

    problem = Problem([THREE, Prompt.bernoulli("1/7", 2)])
    report = evaluate(problem, on_torch(centred), arithmetic="float")
    exact = evaluate(problem, batch_centred)
    assert report.variance == pytest.approx(float(exact.variance), rel=1e-12)
    half = evaluate(problem, on_torch(lambda r, g: r, torch.bfloat16), arithmetic="float")
    assert half.largest_bias < 0.01


def test_an_estimates_own_baseline_is_used():
    """A scaled advantage is not r - b, so its baseline must be read and not reconstructed."""
    report = evaluate(Problem([THREE]), lambda r, g: Estimate([7 * x for x in r], [F(1)] * 2, None))
    assert report.mse == F(1, 16)
    assert report.factor(0) == 7


def test_factor():
    report = evaluate(Problem([THREE, Prompt(("1/2", "1/2"), (1, 1), 1)]), reinforce)
    assert report.factor(0) == 1
    assert report.factor(1) is None  # equal rewards: nothing to point at
    # Clipping the rewards is not a multiple of the truth.
    clipped = evaluate(Problem([THREE]), lambda r, g: [min(x, 1) for x in r])
    assert clipped.factor(0) is None
    assert clipped.largest_bias > 0


def test_an_estimator_that_writes_to_its_input_is_harmless():
    def rude(rewards, group_ids):
        advantages = leave_one_out(list(rewards), list(group_ids))
        rewards[0] = 99
        group_ids.clear()
        return advantages

    problem = Problem([Prompt.bernoulli("1/7", 3)])
    for arithmetic in ("exact", "float"):
        clean, dirty = (evaluate(problem, e, arithmetic=arithmetic) for e in (leave_one_out, rude))
        assert clean == dirty


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Prompt((0.5, 0.5), (0, 1), 2), InputTypeError, "rationals"),
        (lambda: Prompt(("1/2", "1/3"), (0, 1), 2), InputError, "sum 5/6"),
        (lambda: Prompt(("3/2", "-1/2"), (0, 1), 2), InputError, "positive"),
        (lambda: Prompt(("1/2", "1/2"), (0,), 2), InputError, "one entry per response"),
        (lambda: Prompt.bernoulli("1/2", 0), InputError, "at least 1"),
        (lambda: Problem([]), InputError, "at least one prompt"),
        (lambda: Problem([THREE, THREE], labels=["a", "a"]), InputError, "distinct labels"),
        (lambda: evaluate(Problem([THREE]), reinforce, arithmetic="double"), InputError, "exact"),
        (lambda: evaluate(Problem([THREE]), reinforce, max_outcomes=8), InputError, "at most 8 outcomes"),
        (lambda: evaluate(Problem([THREE]), lambda r, g: r[:1]), InputError, "shape"),
        (lambda: evaluate(Problem([THREE]), lambda r, g: [0.1, 0.2]), InputTypeError, 'arithmetic="float"'),
        (
            lambda: evaluate(Problem([THREE]), lambda r, g: r * np.nan, arithmetic="float"),
            InputError,
            "finite",
        ),
    ],
)
def test_errors_name_the_remedy(build, error, message):
    with pytest.raises(error, match=message):
        build()
