"""James-Stein shrinkage baseline of arXiv 2511.03710."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refbase import validate
from refbase.estimate import Estimate
from refbase.kernels._segments import Batch, blend, others_moments, others_sum, read_batch

RELEASED_EPS = 1e-6  # what the authors' released code adds to the denominator


def shrinkage(
    rewards: Tensor,
    group_ids: Any,
    valid: Any = None,
    *,
    weight: float | None = None,
    variant: str = "paper",
    nonfinite: str = "raise",
) -> Estimate:
    """James-Stein shrinkage baseline; see `refbase.shrinkage`."""
    validate.check_choice("shrinkage", "variant", variant, validate.SHRINKAGE_VARIANTS)
    if weight is not None:
        validate.check_number("shrinkage", "weight", weight, 0, 1)
    batch = read_batch("shrinkage", rewards, group_ids, valid, nonfinite)
    target, between = others_moments(batch.means)
    if weight is None:
        eps = RELEASED_EPS / batch.unit**2 if variant == "released" else None
        plain = james_stein(batch.size, batch.squares, between, eps)
    else:
        plain = torch.full_like(target, float(weight))
    return blend(batch, local=batch.local_loo, target=target, weight=edge_weights(batch, plain)[batch.codes])


def james_stein(size: Tensor, squares: Tensor, between: Tensor, released_eps: float | None = None) -> Tensor:
    """Plug-in coefficient lambda = (n-1)/n * v/(v + s) from the other groups, along the last axis.

    Parameters
    ----------
    size, squares, between
        (..., G) float64: rollouts and sum of squared deviations of each group; squared deviations of the other
        groups' means from their mean, summed.
    released_eps
        If given, the coefficient of the authors' released code: v/(v + s + eps).
    """
    n = max(size.shape[-1], 1)
    spread = (size > 1).double()
    variance = squares / (size - 1).clamp(min=1)
    count, variances = others_sum(torch.stack(torch.broadcast_tensors(spread, spread * variance)))
    v = variances / count.clamp(min=1) / size
    s = between / max(n - 1, 1)
    if released_eps is not None:
        return v / (v + s + released_eps)
    return torch.where(v > 0, (n - 1) / n * v / (v + s), 0.0)


def edge_weights(batch: Batch, weight: Tensor) -> Tensor:
    """(G,) weights with the two rules that precede any formula: one prompt -> 0, one rollout -> 1."""
    if batch.size.shape[0] == 1:
        return torch.zeros_like(weight)
    return torch.where(batch.size == 1, 1.0, weight)
