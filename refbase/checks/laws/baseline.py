"""The baseline: how advantages follow from it, what it may depend on, where it lies."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import absent, needs_estimate, show
from refbase.checks.strategies import INTEGERS, batches
from refbase.checks.subject import Batch, Probe, Subject, Violation
from refbase.checks.tolerance import close


def _identity(probe: Probe, batch: Batch) -> None:
    seen, answer = probe.seen(batch), probe(batch)
    assert answer.baseline is not None
    for row in range(len(batch)):
        a: Any = answer.advantages[row]
        b: Any = answer.baseline[row]
        scale: Any = answer.scale[row] if answer.scale else None
        scale = 1 if absent(scale) else scale
        r = seen.rewards[row] if row in batch.rows else b
        # One rounding each of A, b and scale.
        bound = 4 * answer.eps * float(abs(r) + abs(b) + abs(a * scale))
        if not close(a * scale, _minus(r, b), bound) or scale <= 0:
            got = f"A = {show(a)}, scale = {show(scale)}"
            raise Violation(f"rollout {row} with baseline {show(b)}", show(_minus(r, b)), got)


def _blend(probe: Probe, batch: Batch) -> None:
    answer = probe(batch)
    assert answer.baseline is not None
    assert answer.weight is not None
    nothing: list[Any] = [None] * len(batch)
    for row in batch.rows:
        b: Any = answer.baseline[row]
        w: Any = answer.weight[row]
        local: Any = (answer.local or nothing)[row]
        target: Any = (answer.target or nothing)[row]
        if not 0 <= w <= 1:
            raise Violation(f"weight of rollout {row}", "0 <= weight <= 1", show(w))
        if absent(local) and absent(target):
            expected, bound = 0 * b, 0.0
        elif absent(local) or absent(target):
            expected = target if absent(local) else local
            bound = 4 * answer.eps * float(abs(expected))
        else:
            # One rounding each of b, weight, local and target.
            expected = (1 - w) * local + w * target
            bound = 4 * answer.eps * float(abs(b) + abs(local) + abs(target))
        if not close(expected, b, bound):
            parts = f"local = {show(local)}, target = {show(target)}, weight = {show(w)}"
            raise Violation(f"baseline of rollout {row}, {parts}", show(expected), show(b))


def _own_reward(probe: Probe, case: tuple[Batch, int, Any]) -> None:
    batch, row, value = case
    assume(row in batch.rows)
    changed = batch.with_reward(row, value)
    assume(probe.exact(batch) and probe.exact(changed))
    before, after = probe(batch), probe(changed)
    bound = probe.bound(batch, before) + probe.bound(changed, after)
    if before.baseline is not None and after.baseline is not None:
        pair = before.baseline[row], after.baseline[row]
    else:
        pair = batch.rewards[row] - before.advantages[row], value - after.advantages[row]
    if not close(*pair, bound):
        if before.baseline is not None:
            probe.calls = [f"{call}.baseline" for call in probe.calls]
        probe.notes = {k: f"r - A of rollout {row}: {show(pair[k])}" for k in range(2)}
        message = f"the baseline of rollout {row} moved when its own reward became {show(value)}"
        raise Violation(message, show(pair[0]), show(pair[1]))


def _own_reward_cases(subject: Subject) -> Any:
    styles = None if subject.numbers == "exact" else (INTEGERS,)
    some = batches(subject, masks=True) if styles is None else batches(subject, masks=True, styles=styles)
    return some.flatmap(lambda batch: st.tuples(st.just(batch), st.integers(0, len(batch) - 1), INTEGERS))


def _minus(r: Any, b: Any) -> Any:
    """r - b without mixing floats into exact numbers."""
    return float(r) - b if isinstance(b, float) else r - b


LAWS = (
    Law(
        "baseline_identity",
        "advantages = (rewards - baseline) / scale with scale > 0",
        frozenset(),
        lambda subject: batches(subject, masks=True),
        _identity,
        needs_estimate,
    ),
    Law(
        "convex_weight",
        "baseline = (1 - w)*local + w*target with 0 <= w <= 1, the one that exists, or 0 where neither does",
        frozenset({"convex_weight"}),
        lambda subject: batches(subject, masks=True),
        _blend,
        needs_estimate,
    ),
    Law(
        "own_reward_independent",
        "b_ij does not change when r_ij alone changes",
        frozenset({"own_reward_independent"}),
        _own_reward_cases,
        _own_reward,
        max_examples=80,
    ),
)
