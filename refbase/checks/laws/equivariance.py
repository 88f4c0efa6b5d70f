"""How advantages move with their input: order, labels, shifts, scales, other groups."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import require_equal, without_baseline
from refbase.checks.strategies import ANY, DYADIC, batches, relabelled, reordered
from refbase.checks.subject import Batch, Probe, Subject


def _permutation(probe: Probe, case: tuple[Batch, list[int]]) -> None:
    batch, order = case
    before, after = probe(batch), probe(batch.take(order))
    moved = [before.advantages[k] for k in order]
    require_equal("A of the permuted rows", moved, after.advantages, probe.bound(batch, before, after))


def _relabel(probe: Probe, case: tuple[Batch, list[Batch]]) -> None:
    plain, others = case
    before = probe(plain)
    for renamed in others:
        del probe.calls[1:]  # of all names, the report shows those that fail
        after = probe(renamed)
        require_equal("A under other labels", before.advantages, after.advantages, probe.bound(plain, before, after))


def _copies(probe: Probe, case: tuple[Batch, int]) -> None:
    """Symmetry says that all copies must fare alike; labels that merge or wrap round break it."""
    batch, count = case
    names = list(dict.fromkeys(batch.group_ids))
    labels = [2**24 + copy * len(names) + names.index(label) for copy in range(count) for label in batch.group_ids]
    many = replace(batch, rewards=batch.rewards * count, group_ids=tuple(labels))
    answer = probe(many)
    size = len(batch)
    bound = probe.bound(many, answer)
    for copy in range(1, count):
        rows = slice(copy * size, (copy + 1) * size)
        expected, got = answer.advantages[:size], answer.advantages[rows]
        require_equal(f"A of copy {copy}, rows {rows.start} to {rows.stop - 1}", expected, got, bound)


def _copies_cases(subject: Subject) -> Any:
    counts = (2, 400, 3000) if subject.numbers == "torch" else (2, 12)
    # In float64: thousands of rows would make the allowance for float32 sums larger than the rewards.
    dtypes = ("float64",) if "float64" in subject.dtypes else subject.dtypes
    small = batches(subject, styles=DYADIC, max_rows=4, dtypes=dtypes)
    return st.tuples(small, st.sampled_from(counts))


def _shift(probe: Probe, case: tuple[Batch, Fraction]) -> None:
    batch, c = case
    moved = batch.mapped(lambda r: r + c)
    assume(probe.exact(batch) and probe.exact(moved))
    before, after = probe(batch), probe(moved)
    rows = [row for row in batch.rows if row not in without_baseline(probe.subject, batch, before)]
    bound = probe.bound(batch, before) + probe.bound(moved, after)
    require_equal(f"A(r + {c})", before.advantages, after.advantages, bound, rows)


def _shift_cases(subject: Subject) -> Any:
    near = st.integers(-16, 16).map(Fraction)
    far = st.sampled_from([Fraction(1000), Fraction(-4096), Fraction(10**6)])
    constants = st.one_of(near, far, st.just(Fraction(1, 3))) if subject.numbers == "exact" else st.one_of(near, far)
    return st.tuples(batches(subject, styles=DYADIC), constants)


def _scale(probe: Probe, case: tuple[Batch, Fraction]) -> None:
    batch, s = case
    scaled = batch.mapped(lambda r: s * r)
    assume(probe.exact(batch) and probe.exact(scaled))
    before, after = probe(batch), probe(scaled)
    expected = [s * a if isinstance(a, Fraction) else float(s) * a for a in before.advantages]
    bound = 2 * float(s) * probe.bound(batch, before, after)
    require_equal(f"A({_power(s)} * r)", expected, after.advantages, bound)


def _scale_cases(subject: Subject) -> Any:
    return st.tuples(batches(subject, styles=DYADIC), _factors(subject, -4, 4))


def _extreme_cases(subject: Subject) -> Any:
    """Powers of two far from 1; their squares still fit the floating type."""

    def factors(batch: Batch) -> Any:
        limit = 50 if subject.numbers == "torch" and batch.dtype == "float32" else 200
        exponents = st.sampled_from([-limit, limit, -limit // 2, limit // 2])
        return st.tuples(st.just(batch), exponents.map(lambda k: Fraction(2) ** k))

    return batches(subject, styles=DYADIC).flatmap(factors)


def _scale_invariant(probe: Probe, case: tuple[Batch, Fraction]) -> None:
    batch, s = case
    scaled = batch.mapped(lambda r: s * r)
    assume(probe.exact(batch) and probe.exact(scaled))
    before, after = probe(batch), probe(scaled)
    rows = [row for row in batch.rows if row not in without_baseline(probe.subject, batch, before)]
    largest = max((abs(a) for a in before.advantages), default=0)
    # s*r / (s*sigma + eps) differs from r / (sigma + eps) by a relative eps/sigma or eps/(s*sigma).
    eps = probe.subject.options.get("eps")
    eps = (
        (float(eps) if isinstance(eps, (int, float, Fraction)) else 1e-4) / _least_deviation(batch) / min(1.0, float(s))
    )
    bound = 2 * probe.bound(batch, before, after) + eps * float(largest)
    require_equal(f"A({_power(s)} * r)", before.advantages, after.advantages, bound, rows)


def _least_deviation(batch: Batch) -> float:
    """Of the deviations of a group and of the whole batch, whichever of them an estimator divides by."""
    squares = []
    for rows in (*batch.groups.values(), batch.rows):
        values = [batch.rewards[row] for row in rows]
        mean = sum(values, Fraction(0)) / max(len(values), 1)
        squares.append(sum(((value - mean) ** 2 for value in values), Fraction(0)))
    least = min((total for total in squares if total), default=Fraction(1))
    return float(least / max(len(batch), 1)) ** 0.5


def _scale_invariant_cases(subject: Subject) -> Any:
    factors = [Fraction(2) ** power for power in (-10, -14, -2, 1, 8)]  # searches dwell on the first
    return st.tuples(batches(subject, styles=DYADIC), st.sampled_from(factors))


def _factors(subject: Subject, low: int, high: int) -> Any:
    powers = st.integers(low, high).map(lambda k: Fraction(2) ** k)
    return st.one_of(powers, st.just(Fraction(10, 3))) if subject.numbers == "exact" else powers


def _power(s: Fraction) -> str:
    exponent = s.numerator.bit_length() - s.denominator.bit_length()
    return f"2**{exponent}" if s == Fraction(2) ** exponent and abs(exponent) > 8 else str(s)


def _group_local(probe: Probe, batch: Batch) -> None:
    whole = probe(batch)
    for label in batch.groups:
        rows = [row for row in range(len(batch)) if batch.group_ids[row] == label]
        alone = probe(batch.take(rows))
        expected = [whole.advantages[row] for row in rows]
        bound = probe.bound(batch, whole, alone)
        require_equal(f"A of group {label!r} without the other groups", expected, alone.advantages, bound)


def _pairs(strategy: Any, styles: Any = ANY) -> Any:
    return lambda subject: batches(subject, styles=styles).flatmap(strategy)


LAWS = (
    Law(
        "permutation",
        "A(r[p], g[p]) = A(r, g)[p] for every order p of the rows",
        frozenset(),
        # Dyadic, here and for `group_local`: in others the mean of equal rewards may round, as `constant_zero` shows.
        _pairs(reordered, DYADIC),
        _permutation,
    ),
    Law(
        "relabel",
        "A(r, f(g)) = A(r, g) for every renaming f of the labels that keeps distinct ones distinct",
        frozenset(),
        _pairs(lambda batch: relabelled(batch).map(lambda others: (batch, others))),
        _relabel,
        max_examples=60,
    ),
    Law(
        "copies",
        "K copies of a batch under new labels, K up to thousands, receive K copies of the same advantages",
        frozenset(),
        _copies_cases,
        _copies,
        max_examples=20,
    ),
    Law("shift", "A(r + c) = A(r) for every constant c", frozenset({"shift"}), _shift_cases, _shift),
    Law("scale", "A(s*r) = s*A(r) for every s > 0", frozenset({"scale"}), _scale_cases, _scale),
    Law(
        "extreme_scale",
        "A(s*r) = s*A(r) for huge and tiny s: no hidden eps, no overflow, no underflow",
        frozenset({"scale"}),
        _extreme_cases,
        _scale,
    ),
    Law(
        "scale_invariant",
        "A(s*r) = A(r) for every s > 0, up to the divisor's eps",
        frozenset({"scale_invariant"}),
        _scale_invariant_cases,
        _scale_invariant,
    ),
    Law(
        "group_local",
        "A of a group does not change when the other groups are taken away",
        frozenset({"group_local"}),
        lambda subject: batches(subject, styles=DYADIC, masks=True),
        _group_local,
    ),
)
