"""What goes in and what comes out: types, shapes, storage, gradients, repeatability, refusals."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from refbase.checks.law import Law
from refbase.checks.laws._common import needs_torch, require_equal, show
from refbase.checks.strategies import BINARY, INTEGERS, batches
from refbase.checks.subject import Batch, Probe, Subject, SubjectError, Violation, read_answer, render_labels
from refbase.estimate import Estimate
from refbase.validate import is_tensor

FLOATS = ("float32", "float64", "bfloat16", "float16")
#: Types of whole numbers, and what they hold of the numbers that are tried.
WHOLE = {"int64": (-4, 4), "int32": (-4, 4), "uint8": (0, 4), "bool": (0, 1)}


def _finite(probe: Probe, batch: Batch) -> None:
    # |A| <= max r - min r, or is in units of a deviation; what the type cannot hold, it rounds to infinity.
    largest = max((abs(r) for r in probe.scope(probe.seen(batch))), default=0)
    assume(2 * largest <= largest_number(probe.subject, batch.dtype))
    answer = probe(batch)
    for name in ("advantages", "baseline", "weight"):
        values = getattr(answer, name) or []
        if not all(map(math.isfinite, values)):
            held = "" if probe.subject.numbers == "exact" else f" of rewards up to {float(largest):g}"
            raise Violation(f"non-finite {name}{held}", "finite numbers", show(values))


def largest_number(subject: Subject, dtype: str) -> float:
    """The largest finite number of what the subject computes with; no number but infinity for exact ones."""
    if subject.numbers == "exact":
        return math.inf
    if subject.numbers == "float":
        return sys.float_info.max
    import torch

    return float(torch.finfo(getattr(torch, dtype)).max)


def _deterministic(probe: Probe, case: tuple[Batch, Batch, int]) -> None:
    batch, other, seed = case
    first = probe(batch)
    probe(other)
    # Hypothesis gives every input the same random numbers: without other ones, what is random now and then is not seen.
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that an estimator would draw from unawares
    for _ in range(8):
        del probe.calls[2:]
        again = probe(batch)
        require_equal("A of the same batch, read again after another one", first.advantages, again.advantages)


def _empty(probe: Probe, batch: Batch) -> None:
    """`ValueError` and `TypeError` say that the caller is at fault; other exceptions are accidents."""
    empty = batch.take([])
    try:
        answer = probe(empty)
    except SubjectError as error:
        if isinstance(error.__cause__, (ValueError, TypeError)):
            return
        raise Violation("an empty batch", "a ValueError, or no advantages", str(error)) from error
    require_equal("an empty batch", [], answer.advantages)


def _nan_contained(probe: Probe, case: tuple[Batch, int, float]) -> None:
    batch, row, junk = case
    assume(row in batch.rows)
    poisoned = batch.with_reward(row, junk)
    try:
        answer = probe(poisoned)
    except SubjectError as error:
        if isinstance(error.__cause__, (ValueError, TypeError)):
            return
        raise
    others = [answer.advantages[k] for k in batch.rows if k != row]
    if not all(map(math.isfinite, others)):
        message = f"a reward of {junk} at rollout {row} made other rollouts' advantages non-finite"
        raise Violation(message, "an error, or finite advantages elsewhere", show(answer.advantages))


def _nan_cases(subject: Subject) -> Any:
    junk = st.sampled_from([math.nan, math.inf, -math.inf])
    return batches(subject).flatmap(lambda batch: st.tuples(st.just(batch), st.integers(0, len(batch) - 1), junk))


def _output_dtype(probe: Probe, batch: Batch) -> None:
    rewards = probe.rewards(batch)
    result = probe.raw(batch, rewards)
    for name, tensor in _tensors(result).items():
        if tensor.dtype != rewards.dtype or tensor.device != rewards.device:
            got = f"{tensor.dtype} on {tensor.device}"
            raise Violation(f"{name} for {rewards.dtype} rewards", f"{rewards.dtype} on {rewards.device}", got)


def _whole_numbers(probe: Probe, batch: Batch) -> None:
    as_floats = probe(batch)
    for dtype, (low, high) in WHOLE.items():
        if all(low <= r <= high for r in batch.rewards):
            del probe.calls[1:]  # of all types, the report shows the one that fails
            as_whole = probe(replace(batch, dtype=dtype))
            bound = probe.bound(batch, as_floats, as_whole)
            require_equal(f"A of {dtype} rewards", as_floats.advantages, as_whole.advantages, bound)


def _whole_cases(subject: Subject) -> Any:
    return batches(subject, styles=(BINARY, INTEGERS), dtypes=("float32",))


def _view(probe: Probe, batch: Batch, layout: str) -> tuple[Any, str]:
    """The rewards as a view, with other numbers between them, and its text."""

    def spread(*beside: int) -> Batch:
        return replace(batch, rewards=tuple(r + k for r in batch.rewards for k in beside))

    if layout == "every second":
        whole = spread(0, 1)
        return probe.rewards(whole)[::2], f"{probe.literal(whole)}[::2]"
    if layout == "column":
        whole = spread(1, 0, 2)
        return probe.rewards(whole).reshape(-1, 3)[:, 1], f"{probe.literal(whole)}.reshape(-1, 3)[:, 1]"
    one = batch.take([0])  # stride 0: one number for all rows
    return probe.rewards(one).expand(len(batch)), f"{probe.literal(one)}.expand({len(batch)})"


def _strided(probe: Probe, case: tuple[Batch, str]) -> None:
    batch, layout = case
    if layout == "expanded":
        batch = batch.mapped(lambda _: batch.rewards[0])
    plain = probe(batch)
    view, shown = _view(probe, batch, layout)
    if probe.subject.two_dimensional:
        shown = f"{probe.literal(batch)}.T.contiguous().T"
    assume(not view.is_contiguous() or len(batch) == 1)
    answer = read_answer(probe.raw(batch, view, shown=shown), len(batch))
    require_equal(f"A of a strided view ({layout})", plain.advantages, answer.advantages)


def _untouched(probe: Probe, batch: Batch) -> None:
    rewards, valid, group_ids = probe.rewards(batch), probe.valid(batch), list(batch.group_ids)
    probe.raw(batch, rewards, valid, group_ids)
    fresh = probe.rewards(batch), probe.valid(batch)
    for name, before, after in zip(("rewards", "valid"), fresh, (rewards, valid), strict=True):
        same = bool((before == after).all()) if is_tensor(before) else before == after
        if not same:
            probe.listing = "\n".join([*_named(probe, batch), f"print({name})"])
            raise Violation(f"the call changed its argument `{name}`", before, after)
    if not _same_labels(group_ids, batch.group_ids):
        labels = render_labels(batch.group_ids)
        *before, call = _named(probe, batch)
        call = call.replace(labels, "group_ids", 1)
        probe.listing = "\n".join([f"group_ids = {labels}", *before, call, "print(group_ids)"])
        raise Violation("the call changed its argument `group_ids`", list(batch.group_ids), group_ids)


def _same_labels(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Also in type, and a label that is not equal to itself is the same one."""
    if len(a) != len(b):
        return False
    return all(x is y or (type(x) is type(y) and x == y) for x, y in zip(a, b, strict=True))


def _own_storage(probe: Probe, batch: Batch) -> None:
    rewards, valid = probe.rewards(batch), probe.valid(batch)
    result = probe.raw(batch, rewards, valid)
    seen: dict[int, str] = {}
    for name, value in {"the rewards given": rewards, "the flags given": valid, **_outputs(result)}.items():
        if value is None:
            continue
        place = _place(value)
        if place in seen:
            probe.listing = "\n".join([*_named(probe, batch), _compared(result, seen[place], name)])
            raise Violation("two results share memory", "storage of its own", f"{name} and {seen[place]} are one")
        seen[place] = name


def _place(value: Any) -> int:
    """Where an array's memory begins; a list is its own."""
    if is_tensor(value):
        return int(value.untyped_storage().data_ptr())
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return id(value)


def _named(probe: Probe, batch: Batch) -> list[str]:
    """The call as Python, its arguments and its result under names."""
    call = probe.render(batch, {}, "rewards")
    lines = [f"rewards = {probe.literal(batch)}"]
    flags = probe.flags(batch)
    if f"valid={flags}" in call:
        lines.append(f"valid = {flags}")
        call = call.replace(f"valid={flags}", "valid=valid")
    return [*lines, f"result = {call}"]


def _compared(result: Any, *names: str) -> str:
    """Python that says whether two of the things in the call are one."""
    places = {"the rewards given": "rewards", "the flags given": "valid"}
    for k, name in enumerate(_outputs(result)):
        single = not isinstance(result, tuple)
        places[name] = f"result.{name}" if isinstance(result, Estimate) else "result" if single else f"result[{k}]"
    a, b = (places[name] for name in names)
    if is_tensor(result) or any(is_tensor(value) for value in _outputs(result).values()):
        return f"print({a}.untyped_storage().data_ptr() == {b}.untyped_storage().data_ptr())"
    if any(isinstance(value, np.ndarray) for value in _outputs(result).values()):
        return f"print(np.shares_memory({a}, {b}))"
    return f"print({a} is {b})"


def _no_graph(probe: Probe, batch: Batch) -> None:
    rewards = probe.rewards(batch).requires_grad_()
    result = probe.raw(batch, rewards, shown=f"{probe.literal(batch)}.requires_grad_()")
    for name, tensor in _tensors(result).items():
        if tensor.requires_grad or tensor.grad_fn is not None:
            got = f"{name} with grad_fn {type(tensor.grad_fn).__name__}"
            raise Violation("rewards that require a gradient", "results without a graph", got)


def _outputs(result: Any) -> dict[str, Any]:
    """The arrays among the results, by name."""
    if isinstance(result, Estimate):
        return {name: value for name, value in vars(result).items() if value is not None}
    listed = result if isinstance(result, tuple) else (result,)
    return {"advantages" if k == 0 else f"output {k}": value for k, value in enumerate(listed)}


def _tensors(result: Any) -> dict[str, Any]:
    return {name: value for name, value in _outputs(result).items() if is_tensor(value)}


def _two(subject: Subject) -> Any:
    return st.tuples(batches(subject), batches(subject, max_rows=4), st.integers(0, 2**32 - 1))


def _float_dtypes(subject: Subject) -> Any:
    return batches(subject, styles=(INTEGERS,), dtypes=FLOATS, masks=True, max_rows=4)


LAWS = (
    Law(
        "finite",
        "finite rewards whose range their type can hold give finite advantages, whatever the groups",
        frozenset(),
        lambda subject: batches(subject, masks=True),
        _finite,
    ),
    Law(
        "deterministic",
        "A(x) is the same before and after A(y): the estimator keeps no state",
        frozenset(),
        _two,
        _deterministic,
        max_examples=30,
    ),
    Law(
        "empty_batch",
        "N = 0 raises a ValueError, or returns no advantages",
        frozenset(),
        lambda subject: batches(subject, max_rows=1),
        _empty,
        lambda subject: None if subject.ragged else "a matrix of groups has no empty form",
        max_examples=3,
    ),
    Law(
        "nan_contained",
        "a non-finite reward on a valid row raises a ValueError, or leaves the other advantages finite",
        frozenset(),
        _nan_cases,
        _nan_contained,
        max_examples=30,
    ),
    Law(
        "output_dtype",
        "A has the floating dtype and the device of r",
        frozenset(),
        _float_dtypes,
        _output_dtype,
        needs_torch,
        max_examples=30,
    ),
    Law(
        "whole_numbers",
        "integer and boolean rewards give the advantages of the same numbers as floats",
        frozenset(),
        _whole_cases,
        _whole_numbers,
        needs_torch,
        max_examples=30,
    ),
    Law(
        "strided",
        "A of a strided view (a column, every second element, stride 0) equals A of a contiguous copy",
        frozenset(),
        lambda subject: st.tuples(
            batches(subject, styles=(INTEGERS,)), st.sampled_from(["every second", "column", "expanded"])
        ),
        _strided,
        needs_torch,
        max_examples=30,
    ),
    Law(
        "inputs_untouched",
        "a call changes none of its arguments",
        frozenset(),
        lambda subject: batches(subject, masks=True),
        _untouched,
        max_examples=30,
    ),
    Law(
        "own_storage",
        "results share memory neither with each other nor with the arguments",
        frozenset(),
        lambda subject: batches(subject, masks=True, max_rows=4),
        _own_storage,
        max_examples=20,
    ),
    Law(
        "no_graph",
        "rewards that require a gradient give results without one",
        frozenset(),
        lambda subject: batches(subject, max_rows=4),
        _no_graph,
        needs_torch,
        max_examples=20,
    ),
)
