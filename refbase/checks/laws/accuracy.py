"""Arithmetic: the exact value of the formula, rounded once, whatever the dtype and offset."""

from __future__ import annotations

import math
import sys
import warnings
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks import tolerance
from refbase.checks.law import Law
from refbase.checks.laws._common import absent, require_equal, show, without_baseline
from refbase.checks.strategies import ANY, BINARY, batches
from refbase.checks.subject import Answer, Batch, Probe, Subject, Violation, read_answer
from refbase.validate import is_tensor

PARTS = ("advantages", "baseline", "weight", "local", "target", "scale")


def _reference(probe: Probe, batch: Batch) -> None:
    seen = probe.seen(batch)
    assume(all(math.isfinite(seen.rewards[row]) for row in batch.rows))
    reference = probe.subject.reference
    assert reference is not None
    kept = None if seen.valid is None else list(seen.valid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = read_answer(
            reference(list(seen.rewards), list(seen.group_ids), kept, **probe.subject.options), len(seen)
        )
    answer = probe(batch)
    smallest, largest = _limits(answer)
    scope = probe.scope(seen)
    for name in PARTS if answer.is_estimate else PARTS[:1]:
        expected, got = getattr(exact, name) or [None] * len(seen), getattr(answer, name) or [None] * len(seen)
        for row in batch.rows:
            if absent(expected[row]) or absent(got[row]):
                agree = absent(expected[row]) and absent(got[row])
            else:
                bound = tolerance.accurate(scope, expected[row], answer.eps, smallest)
                agree = tolerance.close(expected[row], got[row], bound)
                if abs(expected[row]) > largest:  # beyond the output type, infinity is the rounded value
                    agree = got[row] == math.copysign(math.inf, expected[row])
            if not agree:
                raise Violation(f"{name} of rollout {row} against the exact formula", show(expected), show(got))


def _limits(answer: Answer) -> tuple[float, float]:
    """Spacing of the output type near 0, and its largest number."""
    raw = answer.raw[0] if isinstance(answer.raw, tuple) else getattr(answer.raw, "advantages", answer.raw)
    if is_tensor(raw):
        import torch

        info = torch.finfo(raw.dtype)
        return info.smallest_normal * info.eps, info.max
    return math.ulp(0.0), sys.float_info.max


#: Each is a float16, their difference is not.
EDGE = st.sampled_from([Fraction(60000), Fraction(-60000), Fraction(0)])


def _reference_cases(subject: Subject) -> Any:
    dtypes = ("float32", "float64", "bfloat16", "float16") if subject.numbers == "torch" else subject.dtypes
    return batches(subject, masks=True, dtypes=dtypes, styles=(*ANY, EDGE))


def _needs_reference(subject: Subject) -> str | None:
    if subject.numbers == "exact":
        return "it is exact"
    return None if subject.reference is not None else "it has no exact counterpart here"


def _large_offset(probe: Probe, batch: Batch) -> None:
    far = batch.mapped(lambda r: r + 10**6)
    near, moved = probe(batch), probe(far)
    rows = [row for row in batch.rows if row not in without_baseline(probe.subject, batch, near)]
    for row in rows:
        bound = tolerance.accurate(probe.scope(far), near.advantages[row], near.eps) + near.eps
        require_equal("A(r + 1000000)", near.advantages, moved.advantages, 2 * bound, [row])


def _large_offset_cases(subject: Subject) -> Any:
    return batches(subject, styles=(BINARY, st.sampled_from([Fraction(0), Fraction(1), Fraction(2)])))


LAWS = (
    Law(
        "reference",
        "every part of the result is the exact value of the formula, rounded once from float64 statistics (to infinity "
        "beyond the type's range)",
        frozenset(),
        _reference_cases,
        _reference,
        _needs_reference,
        max_examples=100,
    ),
    Law(
        "large_offset",
        "A(r + 10**6) = A(r) to the output's precision for r in {0, 1, 2}",
        frozenset({"shift"}),
        _large_offset_cases,
        _large_offset,
        max_examples=40,
    ),
)
