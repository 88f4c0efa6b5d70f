"""Estimators that remember: what the state may depend on, and that it survives storage.

A case is a stream of steps. States are compared through their dump, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import absent, require_equal, show
from refbase.checks.laws.masks import JUNK
from refbase.checks.strategies import DYADIC, NAMES, WIDE, rewards_for
from refbase.checks.subject import (
    Answer,
    Batch,
    Memory,
    Probe,
    Subject,
    SubjectError,
    Violation,
    read_answer,
    render_rewards,
)

WINDOW, MAX_KEYS = 3, 4


@dataclass(frozen=True)
class Step:
    """One training step: a batch, and the history key of each group."""

    batch: Batch
    keys: tuple[tuple[Hashable, Any], ...]  # (label, key) pairs

    @property
    def row_keys(self) -> list[Any]:
        return [dict(self.keys)[label] for label in self.batch.group_ids]

    def take(self, order: Sequence[int]) -> Step:
        return replace(self, batch=self.batch.take(order))

    def mapped(self, change: Any) -> Step:
        return replace(self, batch=self.batch.mapped(change))

    def renamed(self) -> Step:
        """Other group labels, the same history keys."""
        ids = tuple(f"new {label}" for label in self.batch.group_ids)
        return Step(replace(self.batch, group_ids=ids), tuple((f"new {label}", key) for label, key in self.keys))


class Stream:
    """Runs steps on a subject's memory and keeps the Python of what it did."""

    def __init__(self, probe: Probe) -> None:
        memory = probe.subject.memory
        assert memory is not None
        self.probe, self.memory = probe, memory
        self.lines = [memory.code]

    def empty(self) -> Any:
        self.note(f"state = memory.empty({WINDOW}, {MAX_KEYS})")
        return self._run(self.memory.empty, WINDOW, MAX_KEYS)

    def update(self, state: Any, step: Step, number: int | None = None) -> Any:
        self.note(f"state = memory.update(state, {self._arguments(step)}, {number})")
        return self._run(self.memory.update, state, *self._values(step), number)

    def estimate(self, state: Any, step: Step) -> Answer:
        self.note(f"print(memory.estimate(state, {self._arguments(step)}{self._options()}))")
        options = self.probe.subject.options
        return read_answer(self._run(self.memory.estimate, state, *self._values(step), **options), len(step.batch))

    def run(self, steps: Sequence[Step], state: Any = None) -> Any:
        state = self.empty() if state is None else state
        for step in steps:
            state = self.update(state, step)
        return state

    def dump(self, state: Any) -> str:
        return json.dumps(self._run(self.memory.dump, state), sort_keys=True)

    def reload(self, state: Any) -> Any:
        self.note("state = memory.load(json.loads(json.dumps(memory.dump(state))))")
        return self._run(self.memory.load, json.loads(self.dump(state)))

    def note(self, line: str) -> None:
        self.lines.append(line)
        self.probe.listing = "\n".join(self.lines)

    def _values(self, step: Step) -> tuple[Any, ...]:
        batch = step.batch
        if self.probe.subject.numbers == "torch":
            return self.probe.rewards(batch), list(batch.group_ids), self.probe.valid(batch), step.row_keys
        valid = None if batch.valid is None else list(batch.valid)
        return [float(r) for r in batch.rewards], list(batch.group_ids), valid, step.row_keys

    def _arguments(self, step: Step) -> str:
        batch = step.batch
        numbers = "torch" if self.probe.subject.numbers == "torch" else "float"
        valid = None if batch.valid is None else list(batch.valid)
        flags = f"torch.tensor({valid})" if numbers == "torch" and valid is not None else valid
        return f"{render_rewards(batch, numbers)}, {list(batch.group_ids)!r}, {flags}, {step.row_keys!r}"

    def _options(self) -> str:
        return "".join(f", {key}={value!r}" for key, value in self.probe.subject.options.items())

    def _run(self, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return self.probe.quietly(function, *arguments, **options)
        except Exception as error:
            raise SubjectError(f"raised {type(error).__name__}: {error}") from error


def same_state(message: str, stream: Stream, expected: Any, got: Any) -> None:
    a, b = stream.dump(expected), stream.dump(got)
    if a != b:
        raise Violation(message, a, b)


# --- cases --------------------------------------------------------------------------------------------


@st.composite
def steps(draw: st.DrawFn, keys: Sequence[Any] = (None, "x", 7), masks: bool = True, min_group: int = 1) -> Step:
    """Up to four groups in eight rows; if groups have to be large, two in sixteen."""
    last, most = (3, 8) if min_group < WIDE else (1, 16)
    codes = draw(st.lists(st.integers(0, last), min_size=min_group, max_size=most))
    rewards = draw(rewards_for(codes, DYADIC))
    valid = None
    if masks and draw(st.booleans()):
        valid = tuple(draw(st.lists(st.sampled_from([True, False]), min_size=len(codes), max_size=len(codes))))
    labels = tuple(NAMES[code] for code in codes)
    chosen = tuple((label, draw(st.sampled_from(list(keys)))) for label in dict.fromkeys(labels))
    return Step(Batch(tuple(rewards), labels, valid), chosen)


def streams(subject: Subject, least: int = 1, **how: Any) -> Any:
    return st.lists(steps(min_group=subject.min_group, **how), min_size=least, max_size=5)


def warm_steps() -> Any:
    """Many small groups under one key, enough for estimators that wait for a minimum of them."""
    sizes = st.lists(st.lists(st.sampled_from([0, 1, 1, 2]), min_size=2, max_size=3), min_size=16, max_size=20)
    return sizes.map(
        lambda groups: Step(
            Batch(
                tuple(Fraction(r) for group in groups for r in group),
                tuple(k for k, group in enumerate(groups) for _ in group),
            ),
            tuple((k, None) for k in range(len(groups))),
        )
    )


def _with_past(subject: Subject) -> Any:
    """A past, often a warm one, and a step to estimate."""
    past = st.one_of(streams(subject), st.lists(warm_steps(), min_size=1, max_size=2))
    return st.tuples(past, steps(min_group=subject.min_group))


def _needs_memory(subject: Subject) -> str | None:
    return None if subject.memory is not None else "it gives no access to its state"


def _needs_floats(subject: Subject) -> str | None:
    if subject.numbers == "exact":
        return "states are stored as floats; its float and torch forms are checked"
    return _needs_memory(subject)


# --- checks -------------------------------------------------------------------------------------------


def _replay(probe: Probe, case: list[Step]) -> None:
    stream = Stream(probe)
    same_state("the same steps gave another state", stream, stream.run(case), stream.run(case))


def _immutable(probe: Probe, case: tuple[list[Step], Step]) -> None:
    past, step = case
    stream = Stream(probe)
    state = stream.run(past)
    before, first = stream.dump(state), stream.estimate(state, step)
    stream.note("kept = state")
    stream.update(state, step)
    stream.note("state = kept")
    again = stream.estimate(state, step)
    if stream.dump(state) != before:
        raise Violation("reading or updating changed the old state", before, stream.dump(state))
    require_equal("A read again from the same state", first.advantages, again.advantages)


def _predictable(probe: Probe, case: tuple[tuple[list[Step], Step], list[Any]]) -> None:
    (past, step), other = case
    stream = Stream(probe)
    state = stream.run(past)
    # Where other prompts enter the target, one prompt changes and its own target must not.
    alone = "group_local" not in probe.subject.claims
    rows = next(iter(step.batch.groups.values()), []) if alone else step.batch.rows
    rewards = tuple(
        other[row % len(other)] if row in rows or not alone else reward for row, reward in enumerate(step.batch.rewards)
    )
    changed = replace(step, batch=replace(step.batch, rewards=rewards))
    before, after = stream.estimate(state, step), stream.estimate(state, changed)
    if before.target is None or after.target is None:
        return
    bound = 4 * before.eps * max((abs(float(t)) for t in before.target if not absent(t)), default=0)
    for row in rows:
        a, b = before.target[row], after.target[row]
        if absent(a) != absent(b) or (not absent(a) and abs(float(a) - float(b)) > bound):
            message = f"the target of rollout {row} moved with rewards of its own {'prompt' if alone else 'step'}"
            raise Violation(message, show(before.target), show(after.target))


def _order_free(probe: Probe, case: tuple[list[Step], int]) -> None:
    past, turn = case
    stream = Stream(probe)
    first = stream.run(past)
    moved = []
    for step in past:
        size = len(step.batch)
        moved.append(step.take([(turn + k) % size for k in range(size)][::-1]).renamed())
    same_state("rows in another order, groups under other labels", stream, first, stream.run(moved))


def _masked(probe: Probe, case: tuple[list[Step], Any]) -> None:
    past, junk = case
    stream = Stream(probe)
    first = stream.run(past)
    dirty = [
        replace(
            step,
            batch=replace(
                step.batch,
                rewards=tuple(
                    r if row in set(step.batch.rows) else (junk if row % 2 else float("nan"))
                    for row, r in enumerate(step.batch.rewards)
                ),
            ),
        )
        for step in past
    ]
    same_state("other rewards on masked rows", stream, first, stream.run(dirty))
    # A step without valid rows counts as a step, so it stays; from the others the masked rows are taken out.
    cut = [step.take(step.batch.rows) if step.batch.rows else step for step in past]
    same_state("masked rows taken out", stream, first, stream.run(cut))


def _round_trip(probe: Probe, case: tuple[list[Step], Step]) -> None:
    past, step = case
    stream = Stream(probe)
    state = stream.run(past)
    first, before = stream.estimate(state, step), stream.dump(state)
    again = stream.reload(state)
    if stream.dump(again) != before:
        raise Violation("the state changed on its way through JSON", before, stream.dump(again))
    require_equal("A from the reloaded state", first.advantages, stream.estimate(again, step).advantages)


def _resumed(probe: Probe, case: tuple[list[Step], int]) -> None:
    past, cut = case
    cut %= len(past)
    stream = Stream(probe)
    straight = stream.run(past)
    state = stream.reload(stream.run(past[:cut]))
    same_state(f"stored and reloaded after step {cut}", stream, straight, stream.run(past[cut:], state))


def _once_per_step(probe: Probe, case: list[Step]) -> None:
    stream = Stream(probe)
    state = stream.empty()
    for number, step in enumerate(case):
        state = stream.update(state, step, number)
    for number in (len(case) - 1, 0):
        again = stream.update(state, case[-1], number)
        same_state(f"step {number} recorded a second time", stream, state, again)


def _key_local(probe: Probe, case: tuple[list[Step], Step, Step]) -> None:
    past, step, other = case
    stream = Stream(probe)
    state = stream.run(past)
    first = stream.estimate(state, step)
    foreign = replace(other, keys=tuple((label, "another key") for label, _ in other.keys))
    later = stream.estimate(stream.update(state, foreign), step)
    require_equal("A after a step under another key", first.advantages, later.advantages)


def _affine(probe: Probe, case: tuple[list[Step], Step, Fraction, Fraction]) -> None:
    past, step, a, c = case
    stream = Stream(probe)

    def moved(r: Any) -> Any:
        return a * r + c

    plain = stream.estimate(stream.run(past), step)
    later = [earlier.mapped(moved) for earlier in past]
    after = stream.estimate(stream.run(later), step.mapped(moved))
    assert plain.baseline is not None
    assert after.baseline is not None
    nothing: list[Any] = [None] * len(step.batch)
    every = [r for one in (*past, step) for r in one.batch.rewards]
    eps = max(plain.eps, after.eps)
    bound = float(a) * probe.span(every, eps) + probe.span([moved(r) for r in every], eps)
    for row in step.batch.rows:
        if absent((plain.local or nothing)[row]) and absent((plain.target or nothing)[row]):
            continue
        expected = float(a) * float(plain.baseline[row]) + float(c)
        require_equal(f"b({a}*r + {c}) of rollout {row}", [expected], [after.baseline[row]], bound)


def _in_range(probe: Probe, case: tuple[list[Step], Step]) -> None:
    past, step = case
    stream = Stream(probe)
    answer = stream.estimate(stream.run(past), step)
    every = [r for one in (*past, step) for r in one.batch.rewards]
    width = float(max(every) - min(every)) + probe.span(every, answer.eps)
    floor = float(probe.subject.options.get("min_scale", 0.1))
    nothing: list[Any] = [None] * len(step.batch)
    for row in step.batch.rows:
        if absent((answer.local or nothing)[row]) and absent((answer.target or nothing)[row]):
            continue
        limit = width if answer.scale is None or absent(answer.scale[row]) else width / floor
        if abs(float(answer.advantages[row])) > limit * (1 + 2 * answer.eps):
            raise Violation(f"|A| of rollout {row}", f"at most {limit:.6g}", show(answer.advantages[row]))


def _bounded(probe: Probe, case: list[Step]) -> None:
    """Fill the memory to its limits, then feed it new keys."""
    stream = Stream(probe)
    state = stream.empty()
    full = 0
    for number in range(2 * WINDOW + 6):
        base = case[number % len(case)]
        groups = tuple(f"g{k}" for k in range(MAX_KEYS))
        rewards = tuple(base.batch.rewards[k % len(base.batch)] for k in range(MAX_KEYS))
        age = 0 if number < 2 * WINDOW else number
        step = Step(Batch(rewards, groups), tuple((g, f"key {age} {g}") for g in groups))
        state = stream.update(state, step)
        size = _count(json.loads(stream.dump(state)))
        full = max(full, size) if age == 0 else full
        if age and size > full:
            message = f"the state holds more after step {number} than when every key had its full window"
            raise Violation(message, f"at most {full} values", f"{size} values")
    if number_of_values(stream.memory, state) == 0:
        raise Violation("the state after the stream", "something remembered", "nothing")


def number_of_values(memory: Memory, state: Any) -> int:
    return _count(memory.dump(state))


def _count(data: Any) -> int:
    """Scalars in nested data."""
    if isinstance(data, dict):
        return sum(map(_count, data.values()))
    if isinstance(data, (list, tuple)):
        return sum(map(_count, data))
    return 1


# --- the laws -----------------------------------------------------------------------------------------

_HISTORY = frozenset({"history"})


def _law(id: str, statement: str, cases: Any, check: Any, needs: Any = _needs_floats, examples: int = 20) -> Law:
    return Law(f"history_{id}", statement, _HISTORY, cases, check, needs, examples, sized=False)


def _stream_and_number(subject: Subject) -> Any:
    return st.tuples(streams(subject), st.integers(0, 5))


def _affine_cases(subject: Subject) -> Any:
    past = st.one_of(streams(subject, masks=False), st.lists(warm_steps(), min_size=1, max_size=1))
    factors = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 4)])
    shifts = st.sampled_from([Fraction(0), Fraction(1), Fraction(-3), Fraction(1000)])
    return st.tuples(past, steps(masks=False, min_group=subject.min_group), factors, shifts).filter(
        lambda case: case[2:] != (1, 0)
    )


def _predictable_cases(subject: Subject) -> Any:
    return st.tuples(_with_past(subject), st.lists(st.integers(-4, 4).map(Fraction), min_size=1, max_size=4))


LAWS = (
    _law("replay", "the same steps give the same state", streams, _replay),
    _law(
        "immutable",
        "reading S twice gives the same A, and neither reading nor updating changes S",
        _with_past,
        _immutable,
    ),
    _law(
        "predictable",
        "the target at step t does not change with the rewards of step t (if other prompts matter: of the own prompt)",
        _predictable_cases,
        _predictable,
    ),
    _law(
        "order_free",
        "the state does not change, to the last bit, with the order of rows or the names of groups in a step",
        _stream_and_number,
        _order_free,
    ),
    _law(
        "masked",
        "the state does not change with what masked rows hold, nor when they are taken out",
        lambda subject: st.tuples(streams(subject), JUNK),
        _masked,
    ),
    _law(
        "round_trip",
        "load(dump(S)) equals S bit for bit, also through JSON, and gives the same A",
        _with_past,
        _round_trip,
    ),
    _law(
        "resumed",
        "steps 1..k, dump, load, steps k+1..n give the state of steps 1..n",
        _stream_and_number,
        _resumed,
    ),
    _law("once_per_step", "a step id not larger than the last one changes nothing", streams, _once_per_step),
    _law(
        "key_local",
        "A does not change with what is recorded under other keys",
        lambda subject: st.tuples(streams(subject), steps(min_group=subject.min_group), steps()),
        _key_local,
    ),
    _law("affine", "b(a*r + c) = a*b(r) + c for the whole stream, a > 0", _affine_cases, _affine),
    _law(
        "in_range",
        "|A| <= (range of all rewards so far) / min_scale, or <= range without a scale",
        lambda subject: st.tuples(
            st.one_of(streams(subject, masks=False), st.lists(warm_steps(), min_size=1, max_size=2)),
            steps(masks=False, min_group=subject.min_group),
        ),
        _in_range,
    ),
    _law(
        "bounded",
        "new keys do not let the state grow beyond max_keys keys of window steps",
        streams,
        _bounded,
        examples=5,
    ),
)
