"""Between tokens and rollouts."""

from __future__ import annotations

import pytest
import torch
from torch import inf, nan, tensor

import refbase
from refbase import tokens

MASK = tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])


def test_valid_rows():
    assert tokens.valid_rows(MASK).tolist() == [True, False, True]
    assert tokens.valid_rows(MASK.bool()).tolist() == [True, False, True]


def test_returns_count_or_drop_what_lies_on_masked_tokens():
    rewards = tensor([[0.5, 2.0, 1.0], [4.0, 0.0, 0.0], [0.25, 0.0, 0.0]])
    assert tokens.sequence_returns(rewards, MASK).tolist() == [3.5, 4.0, 0.25]
    assert tokens.sequence_returns(rewards, MASK, "drop").tolist() == [1.5, 0.0, 0.25]
    with pytest.raises(refbase.InputError, match="`masked_rewards` must be one of 'count', 'drop'"):
        tokens.sequence_returns(rewards, MASK, "keep")


def test_non_finite_rewards_matter_on_valid_tokens_only():
    rewards = tensor([[0.5, nan, 1.0], [inf, 2.0, -inf], [0.25, 0.0, 1.0]])
    for how in tokens.MASKED_REWARDS:
        assert tokens.sequence_returns(rewards, MASK, how).isfinite().all()
    assert tokens.sequence_returns(rewards, MASK).tolist() == [1.5, 2.0, 1.25]
    assert tokens.sequence_returns(tensor([[nan, 1.0]]), tensor([[1, 0]])).isnan().all()


def test_returns_keep_the_dtype_and_sum_in_float64():
    many = torch.full((1, 1000), 0.1, dtype=torch.bfloat16)
    exact = tensor(0.1, dtype=torch.bfloat16).double() * 1000
    got = tokens.sequence_returns(many, torch.ones_like(many))
    assert got.dtype == torch.bfloat16
    assert got.item() == exact.bfloat16().item()
    assert tokens.sequence_returns(tensor([[1, 2]]), tensor([[1, 1]])).dtype == torch.get_default_dtype()


def test_log_probs_ignore_masked_positions_in_value_and_gradient():
    logs = tensor([[-1.0, -inf, -2.0], [nan, nan, nan], [-1.0, -1.0, -1.0]], requires_grad=True)
    sums = tokens.sequence_log_probs(logs, MASK)
    assert sums.tolist() == [-3.0, 0.0, -3.0]
    sums.sum().backward()
    assert logs.grad.tolist() == MASK.tolist()


def test_broadcast():
    values = tensor([1.5, nan, -2.0])
    out = tokens.broadcast(values, MASK)
    assert out.tolist() == [[1.5, 0.0, 1.5], [0.0, 0.0, 0.0], [-2.0, -2.0, -2.0]]
    assert out.dtype == values.dtype
    out += 1
    assert values[0] == 1.5


@pytest.mark.parametrize(
    ("values", "mask", "message"),
    [
        (
            torch.zeros(2, 3),
            torch.ones(3, 3),
            r"must have shape \(N, T\), .* got \(2, 3\) against",
        ),
        (torch.zeros(3), torch.ones(3), r"must have shape \(N, T\)"),
        (torch.zeros(1, 2), tensor([[1.0, -1.0]]), r"`response_mask` must hold 0 and 1; got -1.0 at row 0, token 1"),
        (torch.zeros(2, 1), tensor([[1], [2]]), "got 2 at row 1, token 0. Did another tensor take its place"),
    ],
)
def test_masks_are_checked(values, mask, message):
    with pytest.raises(refbase.InputError, match=message):
        tokens.sequence_returns(values, mask)
    with pytest.raises(refbase.InputError, match=message):
        tokens.sequence_log_probs(values, mask)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (tensor([[1, 2]]), "2 at row 0, token 1"),
        (tensor([[-1, 1]]), "-1 at row 0, token 0"),
        (tensor([[1.0, 0.5]]), "0.5 at row 0, token 1"),
        (tensor([[nan, 1.0]]), "nan at row 0, token 0"),
    ],
)
def test_every_mask_is_of_zeros_and_ones(bad, shown):
    """A 2 would double a token's advantage, and (-1, 1) would be a row without a valid token."""
    calls = (
        lambda mask: tokens.sequence_returns(torch.zeros(1, 2), mask),
        lambda mask: tokens.sequence_log_probs(torch.zeros(1, 2), mask),
        lambda mask: tokens.broadcast(tensor([1.0]), mask),
        lambda mask: tokens.broadcast(tensor([nan]), mask),
        tokens.valid_rows,
    )
    for call in calls:
        with pytest.raises(refbase.InputError, match=f"`response_mask` must hold 0 and 1; got {shown}. .* Pass"):
            call(bad)
        for good in (tensor([[0, 1]]), tensor([[0.0, 1.0]]), tensor([[False, True]])):
            call(good)


def test_masks_are_matrices():
    with pytest.raises(refbase.InputError, match=r"`response_mask` must have shape \(N, T\); got shape \(2,\)"):
        tokens.valid_rows(tensor([0, 1]))
    with pytest.raises(refbase.InputTypeError, match="`response_mask` must be a tensor; got list"):
        tokens.valid_rows([[0, 1]])


def test_one_value_for_each_row():
    with pytest.raises(refbase.InputError, match=r"\(N,\)"):
        tokens.broadcast(torch.tensor([1.0]), torch.ones(3, 2))
    with pytest.raises(refbase.InputTypeError, match="tensor"):
        tokens.sequence_returns([[1.0]], [[1]])
