"""The catalogue's estimators as subjects: the spec on exact numbers, the spec on floats, the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

from refbase.catalog import CATALOG, load, lookup
from refbase.checks.subject import NUMBERS, Memory, Subject
from refbase.estimate import Estimate
from refbase.history import HistoryState, KeyHistory, WindowEntry, update_history

#: A stream that leaves every statistic of a history non-zero and 24 groups in it.
PAST = (
    ([0, 1, 1, 1] * 6, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]),
    ([0, 0, 1, 0] * 6, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]),
)

#: Options under which all laws are tried besides: those that change the claims, and a constant weight.
VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("bvblend", {"local": "loo", "scale": "none"}),
    ("bvblend_eb", {"scale": "history"}),
    ("shrinkage", {"weight": Fraction(1, 4)}),
    ("shrinkage", {"variant": "released"}),
    ("rloo", {"singletons": "zero"}),
)


def catalogue_subject(name: str, numbers: str = "torch", **options: Any) -> Subject:
    """The catalogue's estimator `name` as a subject that claims what the catalogue claims for these options.

    Parameters
    ----------
    numbers
        "torch" for the kernel, "exact" or "float" for the spec function.
    options
        Keyword arguments of every call.

    Notes
    -----
    An estimator that reads a history gets one state, `PAST`, for all its calls; the laws about streams build
    their own.
    """
    entry = lookup(name)
    target = entry.kernel if numbers == "torch" else entry.spec
    module, _, function = target.partition(":")
    call = entry.load_kernel() if numbers == "torch" else entry.load_spec()
    reference = entry.load_spec()
    code = f"from {module} import {function} as estimator"
    memory = None
    if entry.needs_history:
        memory = history_memory(target)
        number = Fraction if numbers == "exact" else float
        state = past_state(number)
        call, reference = with_state(call, state), with_state(reference, exact_state(state))
        code = (
            f"from {module} import {function}\nfrom refbase.checks.catalogue import past_state, with_state\n"
            f"estimator = with_state({function}, past_state({number.__name__}))"
        )
    settings = "".join(f", {key}={value!r}" for key, value in options.items())
    return Subject(
        name=f"{name}[{'kernel' if numbers == 'torch' else f'spec, {numbers}'}{settings}]",
        call=call,
        claims=entry.claims(**options),
        numbers=numbers,
        options=options,
        code=code,
        parts=True,
        context=(Fraction(0), Fraction(1)) if entry.needs_history else (),
        reference=reference,
        memory=memory,
    )


def catalogue_subjects() -> list[Subject]:
    """All of them, in all number types, and `VARIANTS`."""
    plain = [catalogue_subject(name, numbers) for name in CATALOG for numbers in NUMBERS]
    variants = [
        catalogue_subject(name, numbers, **options) for name, options in VARIANTS for numbers in ("exact", "torch")
    ]
    return plain + variants


def with_state(estimator: Callable[..., Estimate], state: HistoryState) -> Callable[..., Estimate]:
    """The estimator with its state filled in: ``(rewards, group_ids, valid=None, **options)``."""

    def bound(rewards: Any, group_ids: Any, valid: Any = None, **options: Any) -> Estimate:
        return estimator(rewards, group_ids, state, valid, **options)

    return bound


def history_memory(target: str) -> Memory:
    """`HistoryState` under the estimator ``"module:function"``; it always works in floats."""
    estimator = load(target)

    def empty(window: int, max_keys: int) -> HistoryState:
        return HistoryState.empty(window=window, decay=0.75, max_keys=max_keys)

    def estimate(state: Any, rewards: Any, group_ids: Any, valid: Any, history_keys: Any, **options: Any) -> Estimate:
        return estimator(rewards, group_ids, state, valid, history_keys, **options)

    code = f"from refbase.checks.catalogue import history_memory\nmemory = history_memory({target!r})"
    return Memory(empty, update_history, estimate, HistoryState.to_dict, HistoryState.from_dict, code)


def past_state(number: Callable[[Any], Any] = float) -> HistoryState:
    """The state after `PAST`, in numbers of that type."""
    state = HistoryState.empty(decay=number(Fraction(3, 4)))
    for rewards, group_ids in PAST:
        state = update_history(state, [number(r) for r in rewards], group_ids)
    return state


def exact_state(state: HistoryState) -> HistoryState:
    """The same state with its floats as the Fractions that they are."""

    def exact(value: Any) -> Any:
        return Fraction(value) if isinstance(value, float) else value

    def convert(past: KeyHistory) -> KeyHistory:
        parts = {f.name: exact(getattr(past, f.name)) for f in fields(KeyHistory) if f.name != "window"}
        window = tuple(WindowEntry(e.count, exact(e.mean), exact(e.squares)) for e in past.window)
        return KeyHistory(**parts, window=window)

    return replace(state, decay=exact(state.decay), _keys={key: convert(past) for key, past in state.keys.items()})
