"""RLOO: the mean of the other rollouts of the prompt."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from refbase.estimate import Estimate
from refbase.kernels._segments import blend, read_batch, settle_singletons


def rloo(
    rewards: Tensor,
    group_ids: Any,
    valid: Any = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Leave-one-out baseline; see `refbase.rloo`."""
    batch = read_batch("rloo", rewards, group_ids, valid, nonfinite)
    return blend(batch, local=settle_singletons(batch, batch.local_loo, singletons))
