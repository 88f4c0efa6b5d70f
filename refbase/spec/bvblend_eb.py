"""Empirical-Bayes BV-Blend: James-Stein shrinkage of the leave-one-out mean towards history."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.history import HistoryState, Key, KeyHistory
from refbase.spec._groups import Blend, assemble, mean, read_groups
from refbase.spec._history import keyed_history
from refbase.spec._numbers import larger, square_root


def bvblend_eb(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    state: HistoryState,
    valid: Sequence[bool] | None = None,
    history_keys: Sequence[Key] | None = None,
    *,
    scale: str = "none",
    min_scale: Any = 0.1,
    min_groups: Any = 16,
    nonfinite: str = "raise",
) -> Estimate:
    """Empirical-Bayes historical baseline; see `refbase.bvblend_eb`."""
    validate.check_choice("bvblend_eb", "scale", scale, validate.BVBLEND_EB_SCALES)
    validate.check_number("bvblend_eb", "min_scale", min_scale, 0, open_low=True)
    validate.check_number("bvblend_eb", "min_groups", min_groups, 0)
    groups, n_rows = read_groups("bvblend_eb", rewards, group_ids, valid, nonfinite)
    pasts = keyed_history("bvblend_eb", groups, state, history_keys, n_rows)

    def rule(i: int, j: int) -> Blend:
        group, past = groups[i], pasts[i]
        local = mean(group.without(j)) if group.size > 1 else None
        if past is None:
            return Blend(local, scale=None if scale == "none" else 1)
        share = 1 if local is None else bayes_weight(past, group.size, min_groups)
        divisor = None if scale == "none" else larger(square_root(past.spread_variance), min_scale)
        return Blend(local, past.mean, share, divisor)

    return assemble("bvblend_eb", groups, n_rows, rule)


def bayes_weight(past: KeyHistory, size: int, min_groups: Any) -> Any:
    """beta = v / (v + tau^2 + Var(H)) with v = sigma^2 / (m - 1), all from history."""
    v = past.within_variance / (size - 1)
    if past.effective_groups < min_groups or v == 0:
        return 0
    return v / (v + past.between_variance + past.mean_variance)
