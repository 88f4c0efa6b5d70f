"""BV-Blend: the group mean blended with a historical mean by their uncertainties."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState, Key, KeyHistory
from refbase.spec._groups import Blend, Group, assemble, mean, read_groups, total
from refbase.spec._history import keyed_history
from refbase.spec._numbers import larger, square_root


def bvblend(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    state: HistoryState,
    valid: Sequence[bool] | None = None,
    history_keys: Sequence[Key] | None = None,
    *,
    local: str = "mean",
    scale: str = "blend",
    min_scale: Any = 0.1,
    weight: Any = None,
    nonfinite: str = "raise",
) -> Estimate:
    """Uncertainty-weighted historical baseline; see `refbase.bvblend`."""
    validate.check_choice("bvblend", "local", local, validate.BVBLEND_LOCALS)
    validate.check_choice("bvblend", "scale", scale, validate.BVBLEND_SCALES)
    validate.check_number("bvblend", "min_scale", min_scale, 0, open_low=True)
    if weight is not None:
        validate.check_number("bvblend", "weight", weight, 0, 1)
    groups, n_rows = read_groups("bvblend", rewards, group_ids, valid, nonfinite)
    pasts = keyed_history("bvblend", groups, state, history_keys, n_rows)

    def rule(i: int, j: int) -> Blend:
        group, past = groups[i], pasts[i]
        centre, variance = local_moments(group, j, local, past)
        if past is None:
            return Blend(centre, scale=cold_scale(variance, scale, min_scale))
        if centre is None:
            share = 1
        elif weight is not None:
            share = weight
        else:
            share = uncertainty_weight(past.window_variance, variance)
        return Blend(centre, past.mean, share, blend_scale(past, variance, share, scale, min_scale))

    return assemble("bvblend", groups, n_rows, rule)


def local_moments(group: Group, j: int, local: str, past: KeyHistory | None) -> tuple[Any, Any]:
    """The local mean and variance that rollout j sees; None where they do not exist."""
    if local == "mean":
        if group.size > 1:
            return group.mean, group.variance
        # One rollout: the raw return without history, with it the article's zero variance.
        return (None, None) if past is None else (group.mean, group.rewards[0] * 0)
    rest = group.without(j)
    if not rest:
        return None, None if past is None else past.within_variance
    if len(rest) == 1:  # one value has no variance: the historical one stands in
        return rest[0], None if past is None else past.within_variance
    centre = mean(rest)
    return centre, total([(r - centre) * (r - centre) for r in rest]) / (len(rest) - 1)


def uncertainty_weight(window_variance: Any, variance: Any) -> Any:
    """beta = sigma_u^2 / (sigma_u^2 + sigma_G^2), 1 where both are 0."""
    if window_variance + variance == 0:
        return 1
    return window_variance / (window_variance + variance)


def blend_scale(past: KeyHistory, variance: Any, share: Any, scale: str, min_scale: Any) -> Any:
    """The divisor of the advantage, or None."""
    if scale == "none":
        return None
    if scale == "group":
        return larger(square_root(variance), min_scale)
    return larger(square_root((1 - share) * variance + share * past.spread_variance), min_scale)


def cold_scale(variance: Any, scale: str, min_scale: Any) -> Any:
    """Without history the group's own deviation, or 1 where it has none to show."""
    if scale == "none":
        return None
    return 1 if variance is None else larger(square_root(variance), min_scale)
