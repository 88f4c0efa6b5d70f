"""GRPO: group mean and group standard deviation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups
from refbase.spec._numbers import square_root


def grpo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    eps: Any = 1e-6,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Standardised advantage; see `refbase.grpo`."""
    validate.check_choice("grpo", "singletons", singletons, validate.SINGLETONS)
    validate.check_number("grpo", "eps", eps, 0, open_low=True)
    groups, n_rows = read_groups("grpo", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group = groups[i]
        single = alone("grpo", group, singletons)
        if single:
            return replace(single, scale=1)  # no spread to divide by
        return Blend(local=group.mean, scale=square_root(group.variance) + eps)

    return assemble("grpo", groups, n_rows, rule)
