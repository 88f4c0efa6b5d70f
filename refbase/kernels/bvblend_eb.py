"""Empirical-Bayes BV-Blend: James-Stein shrinkage of the leave-one-out mean towards history."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState
from refbase.kernels._history import Pasts, read_pasts
from refbase.kernels._segments import Batch, blend, read_batch


def bvblend_eb(
    rewards: Tensor,
    group_ids: Any,
    state: HistoryState,
    valid: Any = None,
    history_keys: Any = None,
    *,
    scale: str = "none",
    min_scale: float = 0.1,
    min_groups: float = 16,
    nonfinite: str = "raise",
) -> Estimate:
    """Empirical-Bayes historical baseline; see `refbase.bvblend_eb`."""
    validate.check_choice("bvblend_eb", "scale", scale, validate.BVBLEND_EB_SCALES)
    validate.check_number("bvblend_eb", "min_scale", min_scale, 0, open_low=True)
    validate.check_number("bvblend_eb", "min_groups", min_groups, 0)
    batch = read_batch("bvblend_eb", rewards, group_ids, valid, nonfinite)
    pasts = read_pasts(batch, state, history_keys)
    share = bayes_weight(batch, pasts, min_groups)
    share = torch.where(batch.size == 1, 1.0, share)
    share = torch.where(pasts.known, share, 0.0)[batch.codes]
    divisor = None
    if scale == "history":
        floored = pasts.deviation(lambda past: past.spread_variance).clamp(min=float(min_scale))
        divisor = torch.where(pasts.known, floored, 1.0)[batch.codes]
    return blend(batch, local=batch.local_loo, target=pasts.mean, weight=share, scale=divisor)


def bayes_weight(batch: Batch, pasts: Pasts, min_groups: float) -> Tensor:
    """(G,) beta = v / (v + tau^2 + Var(H)) with v = sigma^2 / (m - 1), all from history."""
    v = pasts.number(lambda past: past.within_variance) / (batch.size - 1).clamp(min=1)
    doubt = pasts.number(lambda past: past.between_variance + past.mean_variance)
    warm = pasts.number(lambda past: past.effective_groups) >= float(min_groups)
    return torch.where(warm & (v > 0), v / (v + doubt), 0.0)
