"""Rows that are not valid: advantage 0, and no influence whatever they hold."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import needs_masks, require_equal
from refbase.checks.strategies import DYADIC, NAMES, batches
from refbase.checks.subject import Batch, Probe, Subject

JUNK = st.sampled_from([Fraction(100), math.nan, math.inf, -math.inf, Fraction(-3)])
#: Also labels that no valid row may have: they are never looked at.
JUNK_LABELS = st.sampled_from([*NAMES[:5], "z", None, 7, math.nan])


def _masked_zero(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    rows = set(range(len(batch))) - set(batch.rows)
    for name in ("advantages", "baseline", "weight"):
        values = getattr(answer, name)
        if values is not None:
            require_equal(f"{name} of masked rows", [0] * len(batch), values, 0, rows)


def _masked_inert(probe: Probe, case: tuple[Batch, Batch]) -> None:
    batch, other = case
    before, after = probe(batch), probe(other)
    message = "A after a change to what masked rows hold"
    require_equal(message, before.advantages, after.advantages, probe.bound(batch, before, after))


@st.composite
def _changed(draw: st.DrawFn, subject: Subject) -> tuple[Batch, Batch]:
    """A batch, and the same with other rewards on its masked rows, or other labels."""
    batch = draw(batches(subject, masks=True))
    masked = sorted(set(range(len(batch))) - set(batch.rows))
    assume(masked)
    rewards, labels = list(batch.rewards), list(batch.group_ids)
    relabel = subject.ragged and draw(st.booleans())
    for row in masked:
        rewards[row] = draw(JUNK)
        if relabel:
            labels[row] = draw(JUNK_LABELS)
    return batch, replace(batch, rewards=tuple(rewards), group_ids=tuple(labels))


def _masked_absent(probe: Probe, batch: Batch) -> None:
    assume(0 < len(batch.rows) < len(batch))
    whole = probe(batch)
    kept = replace(batch.take(batch.rows), valid=None)
    alone = probe(kept)
    expected = [whole.advantages[row] for row in batch.rows]
    require_equal("A of the valid rows alone", alone.advantages, expected, probe.bound(batch, whole, alone))


def _all_masked(probe: Probe, batch: Batch) -> None:
    batch = replace(batch, valid=(False,) * len(batch))
    require_equal("A where no row is valid", [0] * len(batch), probe(batch).advantages)


def _masked(subject: Subject) -> Any:
    return batches(subject, masks=True)


def _needs_ragged_masks(subject: Subject) -> str | None:
    return needs_masks(subject) or (None if subject.ragged else "its groups cannot lose a row")


LAWS = (
    Law(
        "masked_zero",
        "A = 0 on masked rows, and so are baseline and weight",
        frozenset(),
        _masked,
        _masked_zero,
        needs_masks,
    ),
    Law(
        "masked_inert",
        "A does not change with the reward (NaN and infinity included) or the label of a masked row",
        frozenset(),
        _changed,
        _masked_inert,
        needs_masks,
    ),
    Law(
        "masked_absent",
        "A of the valid rows is what they get when the masked rows are taken out of the batch",
        frozenset(),
        # Dyadic: in others the mean of fewer equal rewards may round, which `constant_zero` is about.
        lambda subject: batches(subject, styles=DYADIC, masks=True),
        _masked_absent,
        _needs_ragged_masks,
    ),
    Law(
        "all_masked",
        "a batch in which every row is masked gives A = 0, no error and no NaN",
        frozenset(),
        batches,
        _all_masked,
        needs_masks,
        max_examples=20,
    ),
)
