"""GVPO's centred returns, weights and loss; its theory is in tests/exact/test_gvpo_theory.py."""

from fractions import Fraction as F

import pytest
import torch
from both import both
from hypothesis import given
from hypothesis import strategies as st

import refbase


@given(st.lists(st.lists(st.integers(-4, 4).map(F), min_size=2, max_size=4), min_size=1, max_size=3))
def test_it_centres_as_group_mean_does(groups):
    rewards = [r for group in groups for r in group]
    labels = [k for k, group in enumerate(groups) for _ in group]
    assert refbase.gvpo(rewards, labels).advantages == refbase.group_mean(rewards, labels).advantages


def test_a_group_of_one_contributes_nothing():
    estimate = both("gvpo", [5, 1, 0], "abb")
    assert estimate.advantages == [0, F(1, 2), F(-1, 2)]
    assert estimate.baseline[0] == 5


def as_tensors(*values):
    return [torch.tensor([float(v) for v in value], dtype=torch.float64) for value in values]


def test_loss_and_weights_by_hand():
    """beta*log-ratio (1/5, 1/10) centred is +-1/20, rewards centred +-1/2: residuals +-9/20."""
    rewards, logs, refs, labels, valid = [1, 5, 0], [2, 9, 1], [0, 0, 0], ["p"] * 3, [True, False, True]
    beta = F(1, 10)
    weights = refbase.gvpo_weights([F(r) for r in rewards], labels, logs, refs, beta, valid)
    assert weights == [F(9, 20), 0, F(-9, 20)]
    loss = refbase.gvpo_loss([F(r) for r in rewards], labels, logs, refs, beta, valid)
    assert loss == F(81, 400)  # 1/(k-1) * 1/2 * 2 * (9/20)**2
    r, a, b = as_tensors(rewards, logs, refs)
    assert refbase.gvpo_weights(r, labels, a, b, 0.1, valid).tolist() == pytest.approx([0.45, 0, -0.45])
    assert refbase.gvpo_loss(r, labels, a, b, 0.1, valid).item() == pytest.approx(0.2025)


def test_weights_of_a_group_of_one_are_0():
    assert refbase.gvpo_weights([F(5), F(1), F(0)], ["a", "b", "b"], [0, 0, 0], [0, 0, 0], 1) == [0, F(1, 2), F(-1, 2)]
    (r, z) = as_tensors([5, 1, 0], [0, 0, 0])
    assert refbase.gvpo_weights(r, ["a", "b", "b"], z, z, 1.0).tolist() == [0, 0.5, -0.5]


GROUPED = ([1, 0, 3, 1, 2, 7], ["a", "a", "b", "b", "b", "c"], [1, 2, 0, 1, 1, 5], [0, 0, 1, 0, 1, 0])


def losses(reduction):
    rewards, labels, logs, refs = GROUPED
    exact = refbase.gvpo_loss([F(r) for r in rewards], labels, logs, refs, F(1, 2), reduction=reduction)
    r, a, b = as_tensors(rewards, logs, refs)
    kernel = refbase.gvpo_loss(r, labels, a, b, 0.5, reduction=reduction)
    return exact, kernel.tolist()


def test_reductions():
    """Gaps: a (1/2, -1); b (7/2, 1/2, 2); c alone, so it counts neither in the sum nor in the mean."""
    exact, kernel = losses("none")
    assert exact == [F(9, 16), F(9, 8), 0]
    assert kernel == pytest.approx([9 / 16, 9 / 8, 0])
    assert losses("sum") == (F(27, 16), pytest.approx(27 / 16))
    assert losses("mean") == (F(27, 32), pytest.approx(27 / 32))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_valid_or_only_groups_of_one_gives_zero(reduction):
    zeros = [0.0, 0.0]
    none, lone = [False, False], ["a", "b"]
    assert refbase.gvpo_loss([1.0, 2.0], ["p", "p"], zeros, zeros, 1.0, none, reduction=reduction) == 0
    assert refbase.gvpo_weights([1.0, 2.0], ["p", "p"], zeros, zeros, 1.0, none) == zeros
    r, z = as_tensors([1, 2], zeros)
    current = z.clone().requires_grad_()
    for labels, valid in ((["p", "p"], none), (lone, None)):
        loss = refbase.gvpo_loss(r, labels, current, z, 1.0, valid, reduction=reduction)
        assert loss.item() == 0
        (gradient,) = torch.autograd.grad(loss, current)
        assert gradient.tolist() == [0, 0]


def test_no_gradient_reaches_the_reference_policy():
    r, z = as_tensors([1, 0], [0, 0])
    logs, refs = z.clone().requires_grad_(), z.clone().requires_grad_()
    refbase.gvpo_loss(r, ["p", "p"], logs, refs, 0.5).backward()
    assert logs.grad.tolist() == [-0.25, 0.25]  # -beta times the weight
    assert refs.grad is None


@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3])
def test_equal_gaps_have_no_residual_at_all(size, value):
    """The mean of equal floats is not always that float."""
    r, z = as_tensors([value] * size, [0] * size)
    assert refbase.gvpo_weights(r, ["p"] * size, z, z, 1.0).tolist() == [0.0] * size
    assert refbase.gvpo_loss(r, ["p"] * size, z, z, 1.0).item() == 0.0


def test_float32_log_probabilities_are_subtracted_in_float64():
    r, _ = as_tensors([0, 0], [0])
    logs, refs = torch.tensor([-1.0, -2.0]), torch.tensor([-1e-9, 0.0])
    expected = -0.5 - float(refs[0].double().abs()) / 2  # gaps 1 - 1e-9 and 2; in float32 the first would be 1
    assert refbase.gvpo_weights(r, ["p", "p"], logs, refs, 1.0)[0].item() == pytest.approx(expected, rel=1e-12)


def test_masked_rows_reach_neither_loss_nor_gradient():
    r, _ = as_tensors([1, 0, 5], [0])
    logs = torch.tensor([-1.0, -2.0, float("-inf")], dtype=torch.float64, requires_grad=True)
    refs = torch.tensor([-1.5, -1.5, float("nan")], dtype=torch.float64)
    loss = refbase.gvpo_loss(r, ["p"] * 3, logs, refs, 0.5, [True, True, False])
    loss.backward()
    clean = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    short = refbase.gvpo_loss(r[:2], ["p"] * 2, clean, refs[:2], 0.5)
    short.backward()
    assert torch.equal(loss, short)
    assert torch.equal(logs.grad[:2], clean.grad)
    assert logs.grad[2] == 0


def test_gradient_is_minus_beta_times_the_weights():
    rewards, labels, logs, refs = GROUPED
    r, a, b = as_tensors(rewards, logs, refs)
    a.requires_grad_()
    refbase.gvpo_loss(r, labels, a, b, 0.5, reduction="sum").backward()
    weights = refbase.gvpo_weights(r, labels, a, b, 0.5)
    k = torch.tensor([2, 2, 3, 3, 3, 2.0])  # the lone group has weight 0 anyway
    assert torch.allclose(a.grad, -0.5 * weights / (k - 1), atol=1e-12)
    assert not weights.requires_grad


def test_dtypes():
    half = torch.tensor([1.0, 0.0], dtype=torch.bfloat16)
    logs = torch.zeros(2, dtype=torch.float32)
    assert refbase.gvpo_weights(half, ["p", "p"], logs, logs, 1.0).dtype == torch.bfloat16
    assert refbase.gvpo_weights(torch.tensor([1, 0]), ["p", "p"], logs, logs, 1.0).dtype == torch.float32
    assert refbase.gvpo_loss(half, ["p", "p"], logs, logs, 1.0).dtype == torch.float32


@pytest.mark.parametrize("function", [refbase.gvpo_weights, refbase.gvpo_loss])
@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_refusals(function, convert):
    rewards, zeros, labels = convert([1.0, 0.0]), convert([0.0, 0.0]), ["p", "p"]
    for beta in (0, -1.0, float("inf")):
        with pytest.raises(refbase.InputError, match="`beta` must be a finite number with 0 < beta"):
            function(rewards, labels, zeros, zeros, beta)
    with pytest.raises(refbase.InputError, match=r"`log_probs\[1\]` must be a finite number"):
        function(rewards, labels, convert([0.0, float("-inf")]), zeros, 1.0)
    with pytest.raises(refbase.InputError, match=r"`ref_log_probs\[1\]` must be a finite number"):
        function(rewards, labels, zeros, convert([0.0, float("nan")]), 1.0, [False, True])
    with pytest.raises(refbase.InputError, match="`log_probs` must have"):
        function(rewards, labels, convert([0.0]), zeros, 1.0)
    if function is refbase.gvpo_loss:
        with pytest.raises(refbase.InputError, match="`reduction` must be one of 'mean', 'sum', 'none'"):
            function(rewards, labels, zeros, zeros, 1.0, reduction="avg")
