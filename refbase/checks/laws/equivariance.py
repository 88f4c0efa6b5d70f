"""How advantages move with their input: order, labels, shifts, scales, other groups."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import require_equal, without_baseline
from refbase.checks.strategies import DYADIC, batches, relabelled, reordered
from refbase.checks.subject import Batch, Probe, Subject


def _permutation(probe: Probe, case: tuple[Batch, list[int]]) -> None:
    batch, order = case
    before, after = probe(batch), probe(batch.take(order))
    moved = [before.advantages[k] for k in order]
    require_equal("A of the permuted rows", moved, after.advantages, probe.bound(batch, before, after))


def _relabel(probe: Probe, case: tuple[Batch, Batch]) -> None:
    plain, renamed = case
    before, after = probe(plain), probe(renamed)
    require_equal("A under other labels", before.advantages, after.advantages, probe.bound(plain, before, after))


def _shift(probe: Probe, case: tuple[Batch, Fraction]) -> None:
    batch, c = case
    moved = batch.mapped(lambda r: r + c)
    assume(probe.exact(batch) and probe.exact(moved))
    before, after = probe(batch), probe(moved)
    rows = [row for row in batch.rows if row not in without_baseline(batch, before)]
    bound = probe.bound(batch, before) + probe.bound(moved, after)
    require_equal(f"A(r + {c})", before.advantages, after.advantages, bound, rows)


def _shift_cases(subject: Subject) -> st.SearchStrategy[Any]:
    near = st.integers(-16, 16).map(Fraction)
    far = st.sampled_from([Fraction(1000), Fraction(-4096), Fraction(10**6)])
    third = st.just(Fraction(1, 3))  # only exact subjects represent it
    return st.tuples(batches(subject, styles=DYADIC), st.one_of(near, far, third))


def _pairs(strategy: Any) -> Any:
    return lambda subject: batches(subject).flatmap(strategy)


LAWS = (
    Law(
        "permutation",
        "A(r[p], g[p]) = A(r, g)[p] for every order p of the rows",
        frozenset(),
        _pairs(reordered),
        _permutation,
    ),
    Law(
        "relabel",
        "A(r, f(g)) = A(r, g) for every renaming f of the labels that keeps distinct ones distinct",
        frozenset(),
        _pairs(lambda batch: relabelled(batch).map(lambda other: (batch, other))),
        _relabel,
    ),
    Law("shift", "A(r + c) = A(r) for every constant c", frozenset({"shift"}), _shift_cases, _shift),
)
