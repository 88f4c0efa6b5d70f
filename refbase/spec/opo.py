"""OPO: the length-weighted group mean."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, alone, assemble, read_groups, total


def opo(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    lengths: Sequence[Any] | None = None,
    singletons: str = "raw",
    nonfinite: str = "raise",
) -> Estimate:
    """Length-weighted group mean; see `refbase.opo`."""
    validate.check_choice("opo", "singletons", singletons, validate.SINGLETONS)
    groups, n_rows = read_groups("opo", rewards, group_ids, valid, nonfinite)
    weights = [1] * n_rows if lengths is None else validate.read_per_row("opo", "lengths", lengths, n_rows)
    for group in groups:
        for row in group.rows:
            validate.check_number("opo", f"lengths[{row}]", weights[row], 0, open_low=True)

    def rule(i: int, j: int) -> Blend:
        group = groups[i]
        anchor = group.rewards[0]
        shares = [weights[row] for row in group.rows]
        offset = total([w * (r - anchor) for w, r in zip(shares, group.rewards, strict=True)])
        return alone("opo", group, singletons) or Blend(local=anchor + offset / total(shares))

    return assemble("opo", groups, n_rows, rule)
