"""What the advantages of one group add up to, and what equal rewards give."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import require_equal, without_baseline
from refbase.checks.strategies import NAMES, TENTHS, THIRDS, WIDEST, batches
from refbase.checks.subject import Batch, Probe, Subject


def _zero_sum(probe: Probe, case: tuple[Batch, Batch]) -> None:
    for batch in case:
        probe.calls.clear()  # of the two, the report shows the one that fails
        answer = probe(batch)
        bare = without_baseline(probe.subject, batch, answer)
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
    """Groups of equal rewards, in every floating type; all groups alike if `one_value`, else some with other rewards.

    The groups have at least two rollouts and, unless the subject takes larger ones only, at most `WIDEST`.
    """
    least = max(2, subject.min_group)
    counts = st.integers(least, max(WIDEST, least))
    size = draw(counts)
    sizes = [size if not subject.ragged else draw(counts) for _ in range(draw(st.integers(1, 3)))]
    value = draw(VALUES)
    rewards: list[Any] = []
    for k, size in enumerate(sizes):
        group = [value] * size
        if k > 0 and not one_value:
            group = [draw(VALUES)] * size
            if draw(st.booleans()):
                group = draw(st.lists(VALUES, min_size=size, max_size=size))
        rewards += group
    labels = [NAMES[k] for k, size in enumerate(sizes) for _ in range(size)]
    halves = ("float16", "bfloat16") if "float32" in subject.dtypes else ()
    dtype = draw(st.sampled_from([*subject.dtypes, *halves]))
    return Batch(tuple(rewards), tuple(labels), None, dtype)


@st.composite
def one_apart(draw: st.DrawFn, subject: Subject) -> Batch:
    """One group of equal rewards, or all but one: their mean rounds, and the one deviates as far as m rewards can."""
    least = max(1, subject.min_group, subject.min_valid)
    size = draw(st.integers(least, max(min(WIDEST, subject.max_rows), least)))
    value = draw(VALUES)
    first = draw(st.one_of(st.just(value), VALUES))
    return Batch((first, *[value] * (size - 1)), (NAMES[0],) * size, None, draw(st.sampled_from(subject.dtypes)))


def _zero_sum_cases(subject: Subject) -> Any:
    return st.tuples(batches(subject, masks=True), one_apart(subject))


def _constant_zero(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    constant = [rows for rows in batch.groups.values() if len({batch.rewards[row] for row in rows}) == 1]
    rows = sorted({row for rows in constant for row in rows} - without_baseline(probe.subject, batch, answer))
    expected = [0 if row in rows else a for row, a in enumerate(answer.advantages)]
    require_equal("A where all rewards of the group are equal", expected, answer.advantages, 0, rows)


def _constant_batch(probe: Probe, batch: Batch) -> None:
    seen = probe.seen(batch)
    assume(len(set(seen.rewards)) == 1)
    answer = probe(batch)
    rows = [row for row in batch.rows if row not in without_baseline(probe.subject, seen, answer)]
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
        _zero_sum_cases,
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
