"""Leave-one-prompt-out batch mean."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase.estimate import Estimate
from refbase.spec._groups import Blend, assemble, mean, others, read_groups


def batch_mean(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> Estimate:
    """Mean of the other prompts' means; see `refbase.batch_mean`."""
    groups, n_rows = read_groups("batch_mean", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        if len(groups) == 1:
            return Blend()
        return Blend(target=mean([group.mean for group in others(groups, i)]), weight=1)

    return assemble("batch_mean", groups, n_rows, rule)
