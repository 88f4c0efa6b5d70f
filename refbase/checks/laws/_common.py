"""Comparisons and conditions that several laws share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refbase.checks.subject import Answer, Batch, Subject, Violation
from refbase.checks.tolerance import close

#: verl's GRPO divides the raw reward of a group of one by 1 + 1e-6.
RAW = 2e-6


def absent(value: Any) -> bool:
    """A mean that does not exist: None, or NaN in kernels."""
    return value is None or value != value


#: Traits that only a baseline of the group's own can have: it then exists for every group of two and more.
LOCAL = frozenset({"group_local", "zero_sum", "constant_zero"})


def without_baseline(subject: Subject, batch: Batch, answer: Answer) -> set[int]:
    """Rows that keep their raw reward because neither a local mean nor a target exists.

    Where the subject reports no parts: rows alone in their group, or in the only group if it claims no baseline of
    the group's own, with A = r, up to rounding and to a divisor of 1 + eps.
    """
    if answer.is_estimate:
        local, target = answer.local or [None] * len(batch), answer.target or [None] * len(batch)
        baseline = answer.baseline or [0] * len(batch)
        # A baseline is there, too, where an estimator does not say what it is made of.
        return {row for row in batch.rows if absent(local[row]) and absent(target[row]) and baseline[row] == 0}
    groups = batch.groups
    only = len(groups) == 1 and not LOCAL & subject.claims
    few = [rows for rows in groups.values() if len(rows) == 1 or only]
    near = RAW + 2 * answer.eps
    pairs = {row: (batch.rewards[row], answer.advantages[row]) for rows in few for row in rows}
    return {row for row, (r, a) in pairs.items() if close(r, a, near * abs(float(r)))}


def require_equal(
    message: str,
    expected: Sequence[Any],
    got: Sequence[Any],
    bound: float = 0.0,
    rows: Iterable[int] | None = None,
) -> None:
    """Raise a `Violation` unless the sequences agree within `bound` on these rows."""
    for row in range(len(expected)) if rows is None else rows:
        if not close(expected[row], got[row], bound):
            within = "exactly" if bound == 0 else f"within {bound:.3g}"
            raise Violation(f"{message}: rollout {row} differs, not equal {within}", show(expected), show(got))


def show(values: Any) -> str:
    """A list as it reads in a report."""
    if isinstance(values, (list, tuple)):
        return f"[{', '.join(map(show, values))}]"
    return f"{values:.9g}" if isinstance(values, float) else str(values)


def needs_masks(subject: Subject) -> str | None:
    return None if subject.masks else "its signature takes no validity flags"


def needs_torch(subject: Subject) -> str | None:
    return None if subject.numbers == "torch" else "it takes no tensors"


def needs_estimate(subject: Subject) -> str | None:
    return None if subject.parts else "it returns advantages only"
