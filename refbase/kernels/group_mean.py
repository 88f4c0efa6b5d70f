"""Group-mean centring (Dr.GRPO; GRPO without its division)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refbase.estimate import Estimate
from refbase.kernels._segments import blend, read_batch, settle_singletons


def group_mean(
    rewards: Tensor,
    group_ids: Any,
    valid: Any = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Group-mean baseline; see `refbase.group_mean`."""
    batch = read_batch("group_mean", rewards, group_ids, valid, nonfinite)
    return blend(batch, local=settle_singletons(batch, batch.mean_offset[batch.codes], singletons))
