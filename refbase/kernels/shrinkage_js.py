"""Corrected James-Stein shrinkage: the between-prompt spread without the noise of the means."""

from __future__ import annotations

from dataclasses import dataclass
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
    others = others_model(size, squares, means)
    usable, noise = others.usable, others.noise
    james_stein = torch.where(usable, (others.count - 2) / others.count, 1.0)
    excess = others.between * (others.kish + 1) / (others.kish * james_stein) - others.sampling
    spread = reliable(excess, others.excess_variance)
    v = noise / (size - 1).clamp(min=1)
    inverse = others_sum(1 / size)
    expected = v + spread + (spread + noise * inverse / n_others) / n_others
    share = (others.count + 1) * james_stein
    return torch.where(usable, v, 0.0), torch.where(usable, expected, 1.0), torch.where(usable, share, 1.0)


@dataclass(frozen=True)
class Others:
    """(..., G) what the other groups show; where not `usable`, the rest has no meaning."""

    usable: Tensor  # bool: three others of two rollouts, with a spread inside some group
    count: Tensor  # others of two rollouts
    noise: Tensor  # pooled within-group variance
    between: Tensor  # variance of the observed means
    sampling: Tensor  # what sampling alone contributes to it
    kish: Tensor  # effective number of groups behind the pooled variance

    @property
    def excess_variance(self) -> Tensor:
        """Sampling variance of `between` less `sampling`."""
        return 2 / (self.count - 1).clamp(min=1) * self.between**2 + self.sampling**2 / self.kish


def reliable(excess: Tensor, variance: Tensor) -> Tensor:
    """Positive part, times t^2/(t^2 + variance)."""
    positive = torch.where(excess > 0, excess, torch.inf)
    return torch.where(excess > 0, excess / (1 + (variance / positive) / positive), 0.0)


def others_model(size: Tensor, squares: Tensor, means: Tensor) -> Others:
    """What the other groups show, along the last axis; groups of size 0 are absent."""
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
    # At least 1, also where squares of squares underflow.
    kish = (squares_sum * (squares_sum / torch.where(usable & (fourth > 0), fourth, torch.inf))).clamp(min=1)
    _, between = others_moments(means, q.expand_as(means))
    freedom = torch.where(usable, dof - dof2 / dof, 1.0)
    sampling = noise * (q_share - q2_share / dof)
    return Others(usable, count, noise, between / freedom, sampling / freedom, kish)
