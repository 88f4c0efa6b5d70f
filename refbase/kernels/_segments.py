"""Segment sums, leave-one-out moments and the one blend, in float64.

Everything is measured from a member of the data (`anchor`, `origin`), so that equal rewards have exactly
zero spread, and in units of a power of two (`unit`), so that squares neither overflow nor vanish.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate


@dataclass(frozen=True)
class Batch:
    """The valid rollouts of a batch; `N` counts them, `G` their groups."""

    where: str  # estimator, for messages
    unit: float  # a power of two; all values below are in this unit
    codes: Tensor  # (N,) int64
    centred: Tensor  # (N,) reward minus its group's anchor
    anchor: Tensor  # (G,) the smallest reward of the group
    size: Tensor  # (G,) float64
    rows: validate.TensorRows

    @cached_property
    def mean_offset(self) -> Tensor:
        """(G,) group mean minus the group's anchor."""
        return self.sum(self.centred) / self.size

    @cached_property
    def squares(self) -> Tensor:
        """(G,) sum of squared deviations from the group mean; exactly 0 for a constant group."""
        return self.sum((self.centred - self.mean_offset[self.codes]) ** 2)

    @cached_property
    def means(self) -> Tensor:
        """(G,) group means, measured from the median anchor so that large offsets cost no digits."""
        return (self.anchor - self.origin) + self.mean_offset

    @cached_property
    def origin(self) -> Tensor:
        """Scalar to measure group means from."""
        return self.anchor.median() if self.anchor.numel() else self.anchor.new_zeros(())

    @cached_property
    def local_loo(self) -> Tensor:
        """(N,) mean of the other rollouts of the group, from the group's anchor; NaN in a group of one."""
        size, offset = self.size[self.codes], self.mean_offset[self.codes]
        return torch.where(size > 1, (size * offset - self.centred) / (size - 1).clamp(min=1), torch.nan)

    def sum(self, values: Tensor) -> Tensor:
        """(N,) -> (G,) float64 sums."""
        return torch.zeros_like(self.size).index_add_(0, self.codes, values)


def read_batch(where: str, rewards: Tensor, group_ids: Any, valid: Any, nonfinite: str) -> Batch:
    rows = validate.read_tensor_rows(where, rewards, group_ids, valid, nonfinite)
    validate.warn_all_singletons(where, rows.n_groups, rows.values.shape[0])
    unit = power_of_two(rows.values)
    values = rows.values / unit
    anchor = values.new_zeros(rows.n_groups)
    anchor.scatter_reduce_(0, rows.codes, values, "amin", include_self=False)
    size = values.new_zeros(rows.n_groups).index_add_(0, rows.codes, torch.ones_like(values))
    return Batch(where, unit, rows.codes, values - anchor[rows.codes], anchor, size, rows)


def power_of_two(values: Tensor) -> float:
    """A power of two near the largest magnitude: dividing by it is exact and makes squares safe."""
    if values.numel() == 0:
        return 1.0
    _, exponent = torch.frexp(values.abs().max())
    # From below by 2**-600: in it the squares of the smallest floats do not vanish, and a history's mean of up to 4e127
    # survives the division by it.
    return 2.0 ** max(-600, min(1000, int(exponent)))


def blend(
    batch: Batch,
    *,
    local: Tensor | None = None,
    target: Tensor | None = None,
    weight: Tensor | float = 0.0,
    scale: Tensor | None = None,
) -> Estimate:
    """``(1 - weight) * local + weight * target`` as an Estimate in the caller's row order and dtype.

    Parameters
    ----------
    local
        (N,) from the group's anchor, NaN where it does not exist.
    target
        (G,) or (N,) from the batch's origin, NaN where it does not exist.
    weight
        (N,) or a constant; ignored where only one of the two means exists. Where neither does, the baseline
        is 0.
    scale
        (N,) in the caller's reward unit.
    """
    unit, codes = batch.unit, batch.codes
    weight = torch.as_tensor(weight, dtype=torch.float64, device=codes.device).expand(codes.shape)
    anchor = batch.anchor[codes]
    # Deviations rather than baselines: reward minus mean is exact where the two nearly agree.
    deviation, baseline = anchor + batch.centred, torch.zeros_like(anchor)
    if target is not None:
        per_row = target if target.shape == codes.shape else target[codes]
        known = ~per_row.isnan()
        from_target = (anchor - batch.origin) + batch.centred - per_row
        deviation = torch.where(known, from_target, deviation)
        baseline = torch.where(known, batch.origin + per_row, baseline)
    if local is not None:
        known = ~local.isnan()
        share = torch.zeros_like(weight) if target is None else torch.where(per_row.isnan(), 0.0, weight)
        mixed = (1 - share) * (batch.centred - local) + share * deviation
        deviation = torch.where(known, mixed, deviation)
        baseline = torch.where(known, (1 - share) * (anchor + local) + share * baseline, baseline)
    if batch.size.shape[0] < codes.shape[0] and not bool(deviation.any()):
        values = anchor + batch.centred
        if bool((values != values[0]).any()):
            validate.warn_no_signal(batch.where)
    advantages = deviation * unit if scale is None else deviation * unit / scale
    return Estimate(
        advantages=spread(batch, advantages),
        baseline=spread(batch, baseline * unit),
        weight=spread(batch, weight),
        local=None if local is None else spread(batch, (anchor + local) * unit, torch.nan),
        target=None if target is None else spread(batch, (batch.origin + per_row) * unit, torch.nan),
        scale=None if scale is None else spread(batch, scale, torch.nan),
    )


def spread(batch: Batch, values: Tensor, fill: float = 0.0) -> Tensor:
    """(N,) values of the valid rows to the caller's rows and dtype, as fresh storage."""
    rewards, kept = batch.rows.rewards, batch.rows.kept
    dtype = rewards.dtype if rewards.dtype.is_floating_point else torch.get_default_dtype()
    if kept is None:
        return values.to(dtype, copy=True)
    out = torch.full(rewards.shape, fill, dtype=dtype, device=rewards.device)
    out[kept] = values.to(dtype)
    return out


def settle_singletons(batch: Batch, local: Tensor, singletons: str) -> Tensor:
    """A group of one: no local mean ("raw"), its own reward ("zero"), or an error."""
    validate.check_choice(batch.where, "singletons", singletons, validate.SINGLETONS)
    single = batch.size == 1
    if singletons == "error" and bool(single.any()):
        code = int(single.nonzero()[0, 0])
        labels = batch.rows.labels
        row = int((batch.codes == code).nonzero()[0, 0])
        group = f"the group of rollout {row}" if labels is None else f"group {labels[code]!r}"
        validate.reject_singleton(batch.where, group)
    fill = torch.zeros_like(local) if singletons == "zero" else torch.full_like(local, torch.nan)
    return torch.where(single[batch.codes], fill, local)


def others_sum(values: Tensor) -> Tensor:
    """Sum over all entries but the own one along the last axis, as prefix plus suffix: nothing cancels."""
    out = torch.zeros_like(values)
    out[..., 1:] += values[..., :-1].cumsum(-1)
    out[..., :-1] += values[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return out


def others_moments(values: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weighted mean and sum of squared deviations of all entries but the own one, along the last axis.

    Deviations are taken from the median, which lies between the remaining values whichever one is left
    out, so one far-off value costs the others no digits. Entries of weight 0 take no part.

    Parameters
    ----------
    values, weights
        (..., G) float64; weights default to 1.

    Returns
    -------
    mean, squares
        (..., G) each; mean is NaN where no weight remains, squares exactly 0 where all that remain are equal.
    """
    if values.shape[-1] == 0:
        return values, values
    weights = torch.ones_like(values) if weights is None else weights
    used = weights > 0
    centre = torch.where(used, values, torch.nan).nanmedian(-1, keepdim=True).values.nan_to_num()
    gap = torch.where(used, values - centre, 0.0)
    mass, first, second = others_sum(torch.stack([weights, weights * gap, weights * gap * gap]))
    offset = first / torch.where(mass > 0, mass, torch.nan)
    squares = (second - first * offset).clamp(min=0)
    return centre + offset, torch.where(_others_agree(values, used), 0.0, squares)


def _others_agree(values: Tensor, used: Tensor) -> Tensor:
    """True where all used entries but the own one are equal (or none is left)."""
    highest = _others_max(torch.where(used, values, -torch.inf))
    lowest = -_others_max(torch.where(used, -values, -torch.inf))
    return highest <= lowest


def _others_max(values: Tensor) -> Tensor:
    out = torch.full_like(values, -torch.inf)
    if values.shape[-1] > 1:
        before = values[..., :-1].cummax(-1).values
        after = values[..., 1:].flip(-1).cummax(-1).values.flip(-1)
        out[..., 1:] = torch.maximum(out[..., 1:], before)
        out[..., :-1] = torch.maximum(out[..., :-1], after)
    return out
