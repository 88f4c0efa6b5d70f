"""What every estimator returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Estimate:
    """Baselines and advantages of one batch, one entry per rollout in the caller's row order.

    ``advantages = (rewards - baseline) / scale`` on valid rows, and ``baseline`` is
    ``(1 - weight) * local + weight * target``. Kernels fill the fields with tensors of the rewards'
    floating dtype and device; spec functions with lists of the rewards' number type.

    Parameters
    ----------
    advantages, baseline, weight
        Length N. Invalid rows hold 0.
    local, target
        Length N, or None when the estimator has no such part. A row whose local mean or target does not
        exist (a group of one has no leave-one-out mean) holds NaN in kernels and None in spec functions.
    scale
        Length N, the positive divisor of the advantage, or None when the estimator does not scale.
    """

    advantages: Any
    baseline: Any
    weight: Any
    local: Any = None
    target: Any = None
    scale: Any = None
