"""Between tokens and rollouts: what lies under a response mask, selected and never multiplied.

Multiplying by a mask turns NaN and infinity on masked positions into NaN; every function here selects.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refbase import validate

MASKED_REWARDS = ("count", "drop")


def valid_rows(response_mask: Tensor) -> Tensor:
    """(N,) bool: rows with at least one valid token; the others are padding or fully rejected."""
    return (response_mask != 0).any(-1)


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
    keep = response_mask != 0
    if masked_rewards == "count":
        keep = keep | token_level_rewards.isfinite()
    dtype = token_level_rewards.dtype
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    return torch.where(keep, token_level_rewards, 0).sum(-1, dtype=torch.float64).to(dtype)


def sequence_log_probs(log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """(N,) sums of ``log_probs`` (N, T) over valid tokens; differentiable, blind to masked positions."""
    check_mask("sequence_log_probs", "log_probs", log_probs, response_mask)
    return torch.where(response_mask != 0, log_probs, 0).sum(-1)


def broadcast(values: Tensor, response_mask: Tensor) -> Tensor:
    """(N,) values to the valid tokens of an (N, T) mask; exactly 0 elsewhere, fresh storage."""
    return torch.where(response_mask != 0, values.unsqueeze(-1), 0)


def check_mask(where: str, argument: str, values: Tensor, response_mask: Tensor) -> None:
    """The mask must match `values` in shape and hold 0 and 1 only."""
    if values.dim() != 2 or values.shape != response_mask.shape:
        got = f"{tuple(values.shape)} against a mask of {tuple(response_mask.shape)}"
        validate.reject(where, argument, "have shape (N, T), as `response_mask` has", got)
    if response_mask.dtype != torch.bool:
        odd = (response_mask != 0) & (response_mask != 1)
        if bool(odd.any()):
            row, token = (int(k) for k in odd.nonzero()[0])
            got = f"{response_mask[row, token].item()!r} at row {row}, token {token}"
            validate.reject(where, "response_mask", "hold 0 and 1", got, "Did another tensor take its place?")
