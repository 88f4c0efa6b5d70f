"""Corrected James-Stein shrinkage: the between-prompt spread without the noise of the means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase.estimate import Estimate
from refbase.kernels._segments import Batch, blend, others_moments, others_sum, read_batch


def shrinkage_js(rewards: Tensor, group_ids: Any, valid: Any = None, *, nonfinite: str = "raise") -> Estimate:
    """Degrees-of-freedom-corrected shrinkage; see `refbase.shrinkage_js`."""
    batch = read_batch("shrinkage_js", rewards, group_ids, valid, nonfinite)
    target, _ = others_moments(batch.means)
    return blend(batch, local=batch.local_loo, target=target, weight=row_weights(batch, target))


def row_weights(batch: Batch, target: Tensor) -> Tensor:
    """(N,) weights; one prompt -> 0, one rollout -> 1."""
    codes = batch.codes
    if batch.size.shape[0] == 1:
        return torch.zeros_like(batch.centred)
    local = (batch.anchor - batch.origin)[codes] + batch.local_loo
    v, expected, share = gap_model(batch.size, batch.squares, batch.means)
    weight = gap_weight(local - target[codes], v[codes], expected[codes], share[codes])
    return torch.where(batch.size[codes] > 1, weight, 1.0)


def gap_weight(gap: Tensor, v: Tensor, expected: Tensor, share: Tensor) -> Tensor:
    """lambda = v / E gap^2, where the mean squared gap of n prompts cannot be below the own one's share of it."""
    return v / torch.maximum(expected, gap * gap / share)


def gap_model(size: Tensor, squares: Tensor, means: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the other groups say about the gap between a local mean and its target, along the last axis.

    Parameters
    ----------
    size, squares, means
        (..., G) float64: rollouts, sum of squared deviations and mean of each group.

    Returns
    -------
    v, expected, share
        (..., G): sampling variance of the local mean; expected squared gap; and the factor by which the own
        squared gap may exceed it. Where the others say nothing, v is 0 and the rest is 1.
    """
    n_others = max(size.shape[-1] - 1, 1)
    usable, _, noise, spread, share = others_model(size, squares, means)
    v = noise / (size - 1).clamp(min=1)
    inverse = others_sum(1 / size)
    expected = v + spread + (spread + noise * inverse / n_others) / n_others
    return torch.where(usable, v, 0.0), torch.where(usable, expected, 1.0), torch.where(usable, share, 1.0)


def others_model(size: Tensor, squares: Tensor, means: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The other groups' variances, along the last axis; groups of size 0 are absent.

    Returns
    -------
    usable
        (..., G) bool: three others of two rollouts, with a spread inside some group. The rest has no meaning without.
    count, noise, spread, share
        (..., G): number of others with two rollouts; their pooled within-group variance; the variance of their true
        means; n times James and Stein's factor.
    """
    q = (size - 1).clamp(min=0)  # degrees of freedom; 0 keeps a group of one out of every sum
    per_rollout = q / size.clamp(min=1)
    count, dof, dof2, squares_sum, fourth, q_share, q2_share = others_sum(
        torch.stack(
            torch.broadcast_tensors(
                (q > 0).double(), q, q * q, squares, squares * squares, per_rollout, q * per_rollout
            )
        )
    )
    usable = (count > 2) & (squares_sum > 0)
    count, dof, squares_sum = (torch.where(usable, x, 1.0) for x in (count, dof, squares_sum))
    noise = squares_sum / dof
    # Kish's effective number of groups; at least 1, also where squares of squares underflow.
    kish = (squares_sum * (squares_sum / torch.where(usable & (fourth > 0), fourth, torch.inf))).clamp(min=1)
    james_stein = torch.where(usable, (count - 2) / count, 1.0)
    _, between = others_moments(means, q.expand_as(means))
    sampling = noise * (q_share - q2_share / dof)
    excess = between * (kish + 1) / (kish * james_stein) - sampling
    # Relative variance of the excess; infinite where it is 0, which keeps it 0.
    doubt = (2 / (count - 1).clamp(min=1)) * (between / excess) ** 2 + (sampling / excess) ** 2 / kish
    spread = torch.where(excess > 0, excess / (1 + doubt), 0.0) / torch.where(usable, dof - dof2 / dof, 1.0)
    return usable, count, noise, spread, (count + 1) * james_stein
