"""RLOO: the mean of the other rollouts of the prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, mean, read_groups


def rloo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Leave-one-out baseline; see `refbase.rloo`."""
    validate.check_choice("rloo", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("rloo", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        single = alone("rloo", groups[i], singletons)
        return single or Blend(local=mean(groups[i].without(j)))

    return assemble("rloo", groups, n_rows, rule)
