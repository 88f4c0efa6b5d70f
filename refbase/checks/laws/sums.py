"""What the advantages of one group add up to, and what equal rewards give."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import require_equal, without_baseline
from refbase.checks.strategies import NAMES, TENTHS, THIRDS, batches
from refbase.checks.subject import Batch, Probe, Subject


def _zero_sum(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    bare = without_baseline(batch, answer)
    bound = len(batch) * probe.bound(batch, answer)
    for label, rows in batch.groups.items():
        # A lone rollout may keep its raw reward in units of the subject's own, which only parts would show.
        if bare.isdisjoint(rows) and (answer.is_estimate or len(rows) > 1):
            total = sum(answer.advantages[row] for row in rows)
            require_equal(f"sum of A over group {label!r}", [0], [total], bound)


#: Values that binary floats round, at several magnitudes.
VALUES = st.one_of(
    TENTHS,
    THIRDS,
    st.integers(1, 2**14).map(lambda k: Fraction(k, 10)),
    st.floats(-1000, 1000, width=32).map(Fraction),
)


@st.composite
def constant_groups(draw: st.DrawFn, subject: Subject, one_value: bool = False) -> Batch:
    """Groups of 2 to 16 equal rewards, in every floating type; all groups alike if `one_value`."""
    count = draw(st.integers(1, 3))
    size = draw(st.integers(2, 16))
    sizes = [size if not subject.ragged else draw(st.integers(2, 16)) for _ in range(count)]
    values = [draw(VALUES)] * count if one_value else [draw(VALUES) for _ in range(count)]
    rows = [(value, NAMES[k]) for k, (value, size) in enumerate(zip(values, sizes, strict=True)) for _ in range(size)]
    halves = ("float16", "bfloat16") if "float32" in subject.dtypes else ()
    dtype = draw(st.sampled_from([*subject.dtypes, *halves]))
    return Batch(tuple(value for value, _ in rows), tuple(label for _, label in rows), None, dtype)


def _constant_zero(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    rows = [row for row in batch.rows if row not in without_baseline(batch, answer)]
    require_equal("A where all rewards of the group are equal", [0] * len(batch), answer.advantages, 0, rows)


def _constant_batch(probe: Probe, batch: Batch) -> None:
    seen = probe.seen(batch)
    assume(len(set(seen.rewards)) == 1)
    answer = probe(batch)
    rows = [row for row in batch.rows if row not in without_baseline(seen, answer)]
    require_equal("A where all rewards of the batch are equal", [0] * len(batch), answer.advantages, 0, rows)


def _add_lone(batch: Batch) -> Batch:
    """A rollout alone in its group, with the batch's reward."""
    return replace(batch, rewards=(*batch.rewards, batch.rewards[0]), group_ids=(*batch.group_ids, "z"))


def _constant_batch_cases(subject: Subject) -> Any:
    plain = constant_groups(subject, one_value=True)
    return st.one_of(plain, plain.map(_add_lone)) if subject.ragged else plain


LAWS = (
    Law(
        "zero_sum",
        "the advantages of each group sum to 0",
        frozenset({"zero_sum"}),
        lambda subject: batches(subject, masks=True),
        _zero_sum,
    ),
    Law(
        "constant_zero",
        "r_1 = ... = r_m in a group implies A = 0 for it, exactly, in every dtype and for every m",
        frozenset({"constant_zero"}),
        constant_groups,
        _constant_zero,
        max_examples=200,  # float32 means are off for one size and value in ten
        sized=False,
    ),
    Law(
        "constant_batch",
        "A = 0 exactly where all rewards of the batch are equal (from shift and scale)",
        frozenset({"shift", "scale"}),
        _constant_batch_cases,
        _constant_batch,
        max_examples=100,
        sized=False,
    ),
)
