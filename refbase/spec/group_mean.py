"""Group-mean centring (Dr.GRPO; GRPO without its division)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups


def group_mean(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Group-mean baseline; see `refbase.group_mean`."""
    validate.check_choice("group_mean", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("group_mean", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        return alone("group_mean", groups[i], singletons) or Blend(local=groups[i].mean)

    return assemble("group_mean", groups, n_rows, rule)
