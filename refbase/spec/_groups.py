"""The arithmetic that the spec functions share: groups, means, variances, and the one blend.

Only ``+ - * /`` on the rewards' own number type, so that floats, ``Fraction`` and sympy symbols all work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from refbase import validate
from refbase.estimate import Estimate

Number = Any


@dataclass(frozen=True)
class Group:
    """The valid rollouts of one prompt."""

    label: Any
    rewards: tuple[Number, ...]
    rows: tuple[int, ...]  # positions in the caller's batch

    @property
    def size(self) -> int:
        return len(self.rewards)

    @cached_property
    def mean(self) -> Number:
        return mean(self.rewards)

    @cached_property
    def squares(self) -> Number:
        """Sum of squared deviations from the group's mean."""
        centre = self.mean
        return total([(r - centre) * (r - centre) for r in self.rewards])

    @property
    def variance(self) -> Number:
        """Unbiased (Bessel) variance; the group must have two rollouts."""
        return self.squares / (self.size - 1)

    def without(self, j: int) -> tuple[Number, ...]:
        return self.rewards[:j] + self.rewards[j + 1 :]


@dataclass(frozen=True)
class Blend:
    """Which local mean, which target, which weight: ``(1 - weight) * local + weight * target``.

    ``None`` marks a mean that does not exist; where neither does, the baseline is 0.
    """

    local: Number | None = None
    target: Number | None = None
    weight: Number = 0
    scale: Number | None = None

    @property
    def baseline(self) -> Number:
        if self.local is None or self.target is None:
            known = self.target if self.local is None else self.local
            return 0 if known is None else known
        return (1 - self.weight) * self.local + self.weight * self.target


def total(values: Sequence[Number]) -> Number:
    """Sum that starts from the first value, so that no float 0.0 or int 0 enters."""
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def mean(values: Sequence[Number]) -> Number:
    """Mean about the first value: equal values have exactly that mean, in every number type."""
    anchor = values[0]
    return anchor + total([value - anchor for value in values]) / len(values)


def others(groups: Sequence[Group], i: int) -> list[Group]:
    return [group for k, group in enumerate(groups) if k != i]


def read_groups(where: str, rewards: Any, group_ids: Any, valid: Any, nonfinite: str) -> tuple[list[Group], int]:
    """The valid groups of a batch, in order of first appearance, and the number of rows N."""
    rows = validate.read_rows(where, rewards, group_ids, valid, nonfinite)
    validate.check_squarable(where, rows)
    validate.warn_all_singletons(where, len(rows.labels), len(rows.values))
    members: list[list[int]] = [[] for _ in rows.labels]
    for position, code in enumerate(rows.codes):
        members[code].append(position)
    groups = [
        Group(label, tuple(rows.values[p] for p in positions), tuple(rows.kept[p] for p in positions))
        for label, positions in zip(rows.labels, members, strict=True)
    ]
    return groups, rows.total


def assemble(where: str, groups: Sequence[Group], n_rows: int, rule: Callable[[int, int], Blend]) -> Estimate:
    """Apply ``rule(i, j)``, the blend for rollout j of group i, and put the results in the caller's order."""
    zero = groups[0].rewards[0] * 0 if groups else 0.0
    advantages, baseline, weight = [zero] * n_rows, [zero] * n_rows, [zero] * n_rows
    local: list[Any] = [None] * n_rows
    target: list[Any] = [None] * n_rows
    scale: list[Any] = [None] * n_rows
    for i, group in enumerate(groups):
        for j, (row, reward) in enumerate(zip(group.rows, group.rewards, strict=True)):
            blend = rule(i, j)
            baseline[row] = zero + blend.baseline
            weight[row] = zero + blend.weight
            local[row], target[row], scale[row] = blend.local, blend.target, blend.scale
            advantages[row] = reward - blend.baseline
            if blend.scale is not None:
                advantages[row] = advantages[row] / blend.scale
    if any(group.size > 1 for group in groups) and all(value == 0 for value in advantages):
        rewards = [r for group in groups for r in group.rewards]
        if any(r != rewards[0] for r in rewards):
            validate.warn_no_signal(where)
    return Estimate(advantages, baseline, weight, _or_none(local), _or_none(target), _or_none(scale))


def alone(where: str, group: Group, singletons: str) -> Blend | None:
    """The blend of a group of one under the caller's rule; None for larger groups."""
    if group.size > 1:
        return None
    if singletons == "error":
        validate.reject_singleton(where, f"group {group.label!r}")
    return Blend(local=group.rewards[0]) if singletons == "zero" else Blend()


def _or_none(values: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in values) else values
