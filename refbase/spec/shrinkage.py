"""James-Stein shrinkage baseline of arXiv 2511.03710."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

from refbase import validate
from refbase.estimate import Estimate
from refbase.spec._groups import Blend, Group, assemble, mean, others, read_groups, total

# What the released code adds to the denominator, kept exact so that rationals stay rational.
RELEASED_EPS = Fraction(1, 10**6)


def shrinkage(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    weight: Any = None,
    variant: str = "paper",
    nonfinite: str = "raise",
) -> Estimate:
    """James-Stein shrinkage baseline; see `refbase.shrinkage`."""
    validate.check_choice("shrinkage", "variant", variant, validate.SHRINKAGE_VARIANTS)
    if weight is not None:
        validate.check_number("shrinkage", "weight", weight, 0, 1)
    groups, n_rows = read_groups("shrinkage", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group, rest = groups[i], others(groups, i)
        if not rest:
            return Blend(local=mean(group.without(j))) if group.size > 1 else Blend()
        target = mean([other.mean for other in rest])
        if group.size == 1:
            return Blend(target=target, weight=1)
        share = james_stein(group.size, rest, variant) if weight is None else weight
        return Blend(mean(group.without(j)), target, share)

    return assemble("shrinkage", groups, n_rows, rule)


def james_stein(size: int, rest: Sequence[Group], variant: str) -> Any:
    """The plug-in coefficient, from the other prompts alone: lambda = (n-1)/n * v/(v + s)."""
    spread = [group for group in rest if group.size > 1]
    if not spread:
        return 0
    v = mean([group.variance for group in spread]) / size
    centre = mean([group.mean for group in rest])
    s = total([(group.mean - centre) * (group.mean - centre) for group in rest]) / len(rest)
    if variant == "released":
        eps = RELEASED_EPS if not isinstance(v, float) else float(RELEASED_EPS)
        return v / (v + s + eps)
    if v + s == 0:
        return 0
    n = len(rest) + 1
    return (n - 1) * v / (n * (v + s))
