"""Advantages of the Acme trainer: a (prompts, rollouts) tensor in, one of the same shape out."""

import torch


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """Each reward minus the mean of its prompt's other rollouts; a single rollout keeps its reward."""
    wide = rewards if rewards.dtype.is_floating_point else rewards.to(torch.get_default_dtype())
    if not bool(wide.isfinite().all()):
        raise ValueError("leave_one_out: rewards must be finite")
    k = wide.shape[-1]
    if k == 1:
        return wide.detach().clone()
    exact = wide.detach().double()
    anchored = exact - exact[:, :1]  # equal rewards give exactly 0
    return ((k * anchored - anchored.sum(-1, keepdim=True)) / (k - 1)).to(wide.dtype)


def whole_batch(rewards: torch.Tensor) -> torch.Tensor:
    """The bug: one mean for all prompts."""
    return rewards - rewards.mean()


def needs_two(rewards: torch.Tensor) -> torch.Tensor:
    """Not written for a single rollout."""
    if rewards.shape[-1] == 1:
        raise RuntimeError("needs two rollouts of each prompt")
    return rewards - rewards.mean(-1, keepdim=True)
