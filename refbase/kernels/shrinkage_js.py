"""Corrected James-Stein shrinkage: the between-prompt spread without the noise of the means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase.estimate import Estimate
from refbase.kernels._segments import Batch, blend, others_moments, others_sum, read_batch
from refbase.kernels.shrinkage import edge_weights


def shrinkage_js(rewards: Tensor, group_ids: Any, valid: Any = None, *, nonfinite: str = "raise") -> Estimate:
    """Degrees-of-freedom-corrected shrinkage; see `refbase.shrinkage_js`."""
    batch = read_batch("shrinkage_js", rewards, group_ids, valid, nonfinite)
    target, _ = others_moments(batch.means)
    weight = edge_weights(batch, corrected_weight(batch))
    return blend(batch, local=batch.local_loo, target=target, weight=weight[batch.codes])


def corrected_weight(batch: Batch) -> Tensor:
    """(G,) lambda = v / (v + spread + Var(target)), all from the other prompts."""
    size = batch.size
    n_others = max(size.shape[0] - 1, 1)
    q = size - 1  # degrees of freedom; 0 keeps a group of one out of every sum
    informed = (q > 0).double()
    fourth = batch.squares**2 / q.clamp(min=1)
    count, dof, dof2, squares, fourth, share, share2, inverse = others_sum(
        torch.stack([informed, q, q * q, batch.squares, fourth, q / size, q * q / size, 1 / size])
    )
    usable = (count > 3) & (squares > 0)
    dof = torch.where(usable, dof, 1.0)
    noise = squares / dof
    nu = squares * (squares / torch.where(usable, fourth, 1.0))
    c = (count - 3) / (count - 1) * nu / (nu + 2)
    _, between = others_moments(batch.means, q)
    sampling = noise * (share - share2 / dof)
    coefficient = dof - dof2 / dof
    spread = (between / torch.where(usable, c, 1.0) - sampling).clamp(min=0) / torch.where(usable, coefficient, 1.0)
    v = noise / q.clamp(min=1)
    weight = v / (v + spread + (spread + noise * inverse / n_others) / n_others)
    return torch.where(usable, weight, 0.0)
