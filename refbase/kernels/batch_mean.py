"""Leave-one-prompt-out batch mean."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refbase.estimate import Estimate
from refbase.kernels._segments import blend, others_moments, read_batch


def batch_mean(rewards: Tensor, group_ids: Any, valid: Any = None, *, nonfinite: str = "raise") -> Estimate:
    """Mean of the other prompts' means; see `refbase.batch_mean`."""
    batch = read_batch("batch_mean", rewards, group_ids, valid, nonfinite)
    target, _ = others_moments(batch.means)
    return blend(batch, target=target, weight=float(batch.size.shape[0] > 1))
