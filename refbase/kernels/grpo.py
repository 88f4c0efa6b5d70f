"""GRPO: group mean and group standard deviation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.kernels._segments import blend, read_batch, settle_singletons


def grpo(
    rewards: Tensor,
    group_ids: Any,
    valid: Any = None,
    *,
    eps: float = 1e-6,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Standardised advantage; see `refbase.grpo`."""
    validate.check_number("grpo", "eps", eps, 0, open_low=True)
    batch = read_batch("grpo", rewards, group_ids, valid, nonfinite)
    local = settle_singletons(batch, batch.mean_offset[batch.codes], singletons)
    # The root is taken in the batch's unit, the sum with eps in the caller's: neither under- nor overflows.
    deviation = (batch.squares / (batch.size - 1).clamp(min=1)).sqrt() * batch.unit
    scale = torch.where(batch.size > 1, deviation + float(eps), 1.0)
    return blend(batch, local=local, scale=scale[batch.codes])
