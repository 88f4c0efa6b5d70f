"""BV-Blend: the group mean blended with a historical mean by their uncertainties."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState
from refbase.kernels._history import read_pasts
from refbase.kernels._segments import Batch, blend, read_batch


def bvblend(
    rewards: Tensor,
    group_ids: Any,
    state: HistoryState,
    valid: Any = None,
    history_keys: Any = None,
    *,
    local: str = "mean",
    scale: str = "blend",
    min_scale: float = 0.1,
    weight: float | None = None,
    nonfinite: str = "raise",
) -> Estimate:
    """Uncertainty-weighted historical baseline; see `refbase.bvblend`."""
    validate.check_choice("bvblend", "local", local, validate.BVBLEND_LOCALS)
    validate.check_choice("bvblend", "scale", scale, validate.BVBLEND_SCALES)
    validate.check_number("bvblend", "min_scale", min_scale, 0, open_low=True)
    if weight is not None:
        validate.check_number("bvblend", "weight", weight, 0, 1)
    batch = read_batch("bvblend", rewards, group_ids, valid, nonfinite)
    pasts = read_pasts(batch, state, history_keys)
    codes = batch.codes
    known = pasts.known[codes]
    historical = pasts.deviation(lambda past: past.within_variance)[codes]
    centre, deviation = _local_moments(batch, local, known, historical)

    # sigma_u^2/(sigma_u^2 + sigma_G^2) by the ratio of the roots; 0/0 is 1.
    window = pasts.deviation(lambda past: past.window_variance)[codes]
    share = torch.where((window > 0) | (deviation > 0), 1 / (1 + (deviation / window) ** 2), 1.0)
    if weight is not None:
        share = torch.full_like(share, float(weight))
    share = torch.where(centre.isnan(), 1.0, share)
    share = torch.where(known, share, 0.0)

    divisor = None
    if scale != "none":
        spread = pasts.deviation(lambda past: past.spread_variance)[codes]
        mixed = deviation
        if scale == "blend":
            mixed = torch.hypot((1 - share).sqrt() * deviation, share.sqrt() * spread)
        floored = torch.where(known, mixed, deviation).clamp(min=float(min_scale))
        divisor = torch.where(floored.isnan(), 1.0, floored)  # a cold group that has no variance to show
    return blend(batch, local=centre, target=pasts.mean, weight=share, scale=divisor)


def _local_moments(batch: Batch, local: str, known: Tensor, historical: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) local mean from the anchor and local deviation that each rollout sees, NaN where there is none."""
    codes = batch.codes
    size = batch.size[codes]
    if local == "mean":
        offset = batch.mean_offset[codes]
        deviation = (batch.squares / (batch.size - 1).clamp(min=1)).sqrt()[codes] * batch.unit
        cold = (size == 1) & ~known  # keeps its raw return
        return torch.where(cold, torch.nan, offset), torch.where(cold, torch.nan, deviation)
    # Squares of the others: all squares less what the own deviation contributed.
    own = batch.centred - batch.mean_offset[codes]
    squares = (batch.squares[codes] - size / (size - 1).clamp(min=1) * own * own).clamp(min=0)
    squares = torch.where(_rest_agrees(batch), 0.0, squares)
    deviation = (squares / (size - 2).clamp(min=1)).sqrt() * batch.unit
    return batch.local_loo, torch.where(size > 2, deviation, historical)


def _rest_agrees(batch: Batch) -> Tensor:
    """(N,) bool: the other rollouts of the group all have the same reward."""
    codes, value = batch.codes, batch.centred
    top = torch.zeros_like(batch.size).scatter_reduce(0, codes, value, "amax", include_self=False)
    at_bottom, at_top = value == 0, value == top[codes]
    lowest = batch.sum(at_bottom.double())[codes]
    highest = batch.sum(at_top.double())[codes]
    size = batch.size[codes]
    rest = size - 1
    return (lowest == size) | (~at_bottom & (lowest == rest)) | (~at_top & (highest == rest))
