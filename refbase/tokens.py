"""Between tokens and rollouts: what lies under a response mask, selected and never multiplied.

Multiplying by a mask turns NaN and infinity on masked positions into NaN; every function here selects.

These are the only functions that touch (N, T) tensors, and memory bounds them. They read each input about once and
work on some rows at a time, so that what lies between input and output stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from refbase import validate

MASKED_REWARDS = ("count", "drop")


def valid_rows(response_mask: Tensor) -> Tensor:
    """(N,) bool: rows of an (N, T) mask with at least one valid token; the others are padding or fully rejected."""
    check_zero_one("valid_rows", response_mask)
    return response_mask.sum(-1) != 0


def sequence_returns(token_level_rewards: Tensor, response_mask: Tensor, masked_rewards: str = "count") -> Tensor:
    """Return of each rollout, the sum of its token-level rewards.

    Parameters
    ----------
    token_level_rewards, response_mask
        (N, T); the mask holds 0 and 1 (or booleans).
    masked_rewards
        ``"count"`` sums all positions, as verl does: the mask says which tokens train, and rejecting tokens
        must not erase a response's outcome. ``"drop"`` sums valid positions only.

    Returns
    -------
    Tensor
        (N,) of the rewards' floating dtype, accumulated in float64. Non-finite values on masked positions
        are ignored either way.

    Raises
    ------
    InputError
        Shapes differ, the mask holds other values than 0 and 1, or `masked_rewards` is unknown.

    Examples
    --------
    >>> rewards, mask = torch.tensor([[0.0, 1.0], [0.5, 0.0]]), torch.tensor([[1, 0], [1, 1]])
    >>> sequence_returns(rewards, mask).tolist(), sequence_returns(rewards, mask, "drop").tolist()
    ([1.0, 0.5], [0.0, 0.5])
    """
    where = "sequence_returns"
    validate.check_choice(where, "masked_rewards", masked_rewards, MASKED_REWARDS)
    check_mask(where, "token_level_rewards", token_level_rewards, response_mask)
    dtype = token_level_rewards.dtype
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    returns = token_level_rewards.new_empty(len(token_level_rewards), dtype=torch.float64)
    for rows in _blocks(token_level_rewards):
        rewards = token_level_rewards[rows]
        if masked_rewards == "drop":
            rewards = torch.where(response_mask[rows] != 0, rewards, 0)
        returns[rows] = rewards.sum(-1, dtype=torch.float64)
    # A sum is finite only if all its terms are, so that few rows as a rule need a look at single positions.
    bad = (~returns.isfinite()).nonzero()[:, 0]
    if bad.numel() and masked_rewards == "count":
        rewards = token_level_rewards[bad]
        keep = (response_mask[bad] != 0) | rewards.isfinite()
        returns[bad] = torch.where(keep, rewards, 0).sum(-1, dtype=torch.float64)
    return returns.to(dtype)


def sequence_log_probs(log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """(N,) sums of ``log_probs`` (N, T) over valid tokens; differentiable, blind to masked positions."""
    check_mask("sequence_log_probs", "log_probs", log_probs, response_mask)
    return torch.where(response_mask != 0, log_probs, 0).sum(-1)


def broadcast(values: Tensor, response_mask: Tensor) -> Tensor:
    """(N,) values to the valid tokens of an (N, T) mask of 0 and 1 or booleans; exactly 0 elsewhere, fresh storage."""
    check_per_row("broadcast", values, response_mask)
    if values.device.type != "cpu" or not values.dtype.is_floating_point or not bool(values.isfinite().all()):
        return torch.where(response_mask != 0, values.unsqueeze(-1), 0)
    # The same for finite values, in less than half the time: torch.where is not vectorised on the CPU.
    out = values.new_empty(response_mask.shape)
    for rows in _blocks(out):
        out[rows].copy_(response_mask[rows]).mul_(values[rows, None]).add_(0.0)  # -0.0 + 0.0 is 0.0
    return out


def _blocks(values: Tensor, elements: int = 1 << 15) -> Iterator[slice]:
    """Slices of rows that fit the cache together with what is computed from them; one slice on other devices."""
    total, width = values.shape
    step = max(1, elements // max(width, 1)) if values.device.type == "cpu" else max(total, 1)
    for start in range(0, total, step):
        yield slice(start, start + step)


def check_per_row(where: str, values: Tensor, response_mask: Tensor) -> None:
    """One value for each row of a mask of 0 and 1."""
    _check_tensors(where, "values", values, response_mask)
    if response_mask.dim() != 2 or values.shape != response_mask.shape[:1]:
        got = f"{tuple(values.shape)} against a mask of {tuple(response_mask.shape)}"
        remedy = "Pass one value for each row of the mask."
        validate.reject(where, "values", "have shape (N,) for a mask of (N, T)", got, remedy)
    check_zero_one(where, response_mask)


def check_mask(where: str, argument: str, values: Tensor, response_mask: Tensor) -> None:
    """The mask must match `values` in shape and hold 0 and 1 only."""
    _check_tensors(where, argument, values, response_mask)
    if values.dim() != 2 or values.shape != response_mask.shape:
        got = f"{tuple(values.shape)} against a mask of {tuple(response_mask.shape)}"
        remedy = "Pass both with one row per rollout and one column per token."
        validate.reject(where, argument, "have shape (N, T), as `response_mask` has", got, remedy)
    check_zero_one(where, response_mask)


def _check_tensors(where: str, argument: str, values: Tensor, response_mask: Tensor) -> None:
    if not validate.is_tensor(values) or not validate.is_tensor(response_mask):
        got = f"{type(values).__name__} and {type(response_mask).__name__}"
        requirement = "be a tensor, as `response_mask` must be"
        validate.reject_type(where, argument, requirement, got, validate.AS_TENSOR)


def check_zero_one(where: str, response_mask: Tensor) -> None:
    """The mask must be (N, T) and hold booleans, or 0 and 1: a 2 would count a token twice, a 0.5 half."""
    if not validate.is_tensor(response_mask):
        got = type(response_mask).__name__
        validate.reject_type(where, "response_mask", "be a tensor", got, validate.AS_TENSOR)
    if response_mask.dim() != 2:
        remedy = "Pass one row per rollout and one column per token."
        validate.reject(where, "response_mask", "have shape (N, T)", f"shape {tuple(response_mask.shape)}", remedy)
    if response_mask.dtype == torch.bool or not response_mask.numel():
        return
    lowest, highest = torch.aminmax(response_mask)
    if response_mask.dtype.is_floating_point or lowest < 0 or highest > 1:
        odd = (response_mask != 0) & (response_mask != 1)
        if bool(odd.any()):
            row, token = (int(k) for k in odd.nonzero()[0])
            got = f"{response_mask[row, token].item()!r} at row {row}, token {token}"
            remedy = "Did another tensor take its place? Pass the mask itself, as booleans or as 0 and 1."
            validate.reject(where, "response_mask", "hold 0 and 1", got, remedy)
