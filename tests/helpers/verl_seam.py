"""Call verl's own `compute_advantage` on a batch given as lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf


def batch(
    rewards: Sequence[Any],
    uids: Sequence[Any] | None,
    mask: Sequence[Sequence[int]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """A DataProto. Rewards per row go to its last token; rows of rewards are taken as token-level."""
    from verl import DataProto

    tokens = torch.tensor(rewards, dtype=dtype)
    mask_tensor = torch.tensor(mask) if mask is not None else torch.ones(len(rewards), 3, dtype=torch.long)
    if tokens.dim() == 1:
        per_row, tokens = tokens, torch.zeros(mask_tensor.shape, dtype=dtype)
        tokens[:, -1] = per_row
    labels = {}
    if uids is not None:
        labels["uid"] = np.empty(len(rewards), dtype=object)
        labels["uid"][:] = uids
    return DataProto.from_dict({"token_level_rewards": tokens, "response_mask": mask_tensor}, non_tensors=labels)


def algorithm(**keys: Any) -> Any:
    """verl's `algorithm` section: a struct, under a root."""
    root = OmegaConf.create({"algorithm": {"norm_adv_by_std_in_grpo": True, "use_kl_in_reward": False, **keys}})
    OmegaConf.set_struct(root, True)
    return root.algorithm


def advantages(name: str, data: Any, config: Any = None, **kwargs: Any) -> torch.Tensor:
    """(N, T) advantages as verl's trainer gets them."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    data = compute_advantage(data, adv_estimator=name, config=algorithm() if config is None else config, **kwargs)
    return data.batch["advantages"]


def per_row(tokens: torch.Tensor, mask: torch.Tensor) -> list[float]:
    """The one value on a row's valid tokens, and a check that it is one; 0 for a row without."""
    values = []
    for row, keep in zip(tokens, mask, strict=True):
        chosen = row[keep != 0]
        assert (row[keep == 0] == 0).all()
        assert chosen.numel() == 0 or (chosen == chosen[0]).all()
        values.append(chosen[0].item() if chosen.numel() else 0.0)
    return values
