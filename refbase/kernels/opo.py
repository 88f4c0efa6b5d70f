"""OPO: the length-weighted group mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.kernels._segments import blend, read_batch, settle_singletons


def opo(
    rewards: Tensor,
    group_ids: Any,
    valid: Any = None,
    *,
    lengths: Tensor | None = None,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Length-weighted group mean; see `refbase.opo`."""
    batch = read_batch("opo", rewards, group_ids, valid, nonfinite)
    shares = torch.ones_like(batch.centred) if lengths is None else _read_lengths(lengths, batch.rows)
    offset = batch.sum(shares * batch.centred) / batch.sum(shares)
    return blend(batch, local=settle_singletons(batch, offset[batch.codes], singletons))


def _read_lengths(lengths: Tensor, rows: validate.TensorRows) -> Tensor:
    validate.check_tensor_per_row("opo", "lengths", lengths, rows.rewards.shape[0])
    lengths = lengths.detach().to(rows.values.device, torch.float64)
    chosen = lengths if rows.kept is None else lengths[rows.kept]
    bad = ~(chosen.isfinite() & (chosen > 0))
    if bool(bad.any()):
        position = int(bad.nonzero()[0, 0])
        row = position if rows.kept is None else int(rows.kept[position])
        validate.check_number("opo", f"lengths[{row}]", float(chosen[position]), 0, open_low=True)
    return chosen
