"""What a `HistoryState` must satisfy, and reading one from untrusted data.

Types, ranges and what no rounding can break. That sums which are possible each for itself belong together is not
checked: a state cannot tell who wrote it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from refbase import validate
from refbase.history import FORMAT, VERSION, HistoryState, Key, KeyHistory, WindowEntry, check_usable

WHERE = "HistoryState.from_dict"
STATE_FIELDS = ("format", "version", "window", "decay", "max_keys", "updates", "last_step", "keys")
KEY_FIELDS = ("key", *(f.name for f in fields(KeyHistory)))
POSITIVE = ("groups", "groups_squared", "inverse_sizes")
NOT_NEGATIVE = ("between_squares", "within_squares", "within_dof", "spread")

#: Rounding of what many updates made is below one part in this many. An int, so that Fractions stay Fractions.
SLACK = 10**6

#: What to do about data that `to_dict` did not write.
UNCHANGED = "Pass what HistoryState.to_dict() returned, unchanged."
#: And about parts that do not make a state.
BUILD = "Start from HistoryState.empty() and let update_history fill it."


# --- a state in memory --------------------------------------------------------------------------------


def check_parts(window: Any, decay: Any, max_keys: Any, updates: Any, last_step: Any, keys: Any) -> None:
    """The arguments of `HistoryState`; numbers may be of any type that an update computes with."""
    where = "HistoryState"
    _check_settings(where, window, decay, max_keys, updates, last_step)
    if not isinstance(keys, Mapping):
        validate.reject_type(where, "keys", "be a mapping from history keys", type(keys).__name__, BUILD)
    _check_count(where, len(keys), max_keys, BUILD)
    for key, history in keys.items():
        place = f"keys[{key!r}]"
        _check_key(where, place, key, BUILD)
        if not isinstance(history, KeyHistory):
            validate.reject_type(where, place, "be a KeyHistory", type(history).__name__, BUILD)
        _check_history(where, place, history, window, updates, BUILD)


def _check_settings(
    where: str, window: Any, decay: Any, max_keys: Any, updates: Any, last_step: Any, remedy: str = ""
) -> None:
    validate.check_integer(where, "window", window, 1, remedy)
    validate.check_number(where, "decay", decay, 0, 1, open_high=True, remedy=remedy)
    validate.check_integer(where, "max_keys", max_keys, 1, remedy)
    validate.check_integer(where, "updates", updates, 0, remedy)
    if last_step is not None:
        validate.check_integer(where, "last_step", last_step, 0, remedy)
        if updates == 0:
            validate.reject(where, "last_step", "be None before the first update", repr(last_step), remedy or BUILD)


def _check_count(where: str, count: int, max_keys: int, remedy: str) -> None:
    if count > max_keys:
        validate.reject(where, "keys", f"hold at most max_keys={max_keys} keys", str(count), remedy)


def _check_key(where: str, place: str, key: Any, remedy: str) -> None:
    if key is not None and type(key) not in (str, int):  # updates make keys of subclasses plain
        validate.reject_type(where, place, "be a string, an integer or None", repr(key), remedy)


def _check_integer(where: str, place: str, value: Any, low: int, remedy: str) -> None:
    """A plain int: those of NumPy are not JSON's."""
    if type(value) is not int:
        validate.reject_type(where, place, "be an integer", f"{value!r} of type {type(value).__name__}", remedy)
    if value < low:
        validate.reject(where, place, f"be at least {low}", repr(value), remedy)


def _check_history(where: str, place: str, history: KeyHistory, window: int, updates: int, remedy: str) -> None:
    for name in (*POSITIVE, *NOT_NEGATIVE, "mean"):
        value = getattr(history, name)
        validate.check_number(where, f"{place}.{name}", value, remedy=remedy)
        if name in POSITIVE and value <= 0:
            validate.reject(where, f"{place}.{name}", "be positive", repr(value), remedy)
        if name in NOT_NEGATIVE and value < 0:
            validate.reject(where, f"{place}.{name}", "not be negative", repr(value), remedy)
    _check_integer(where, f"{place}.last_update", history.last_update, 1, remedy)
    if history.last_update > updates:
        got = f"{history.last_update} after {updates} updates"
        validate.reject(where, f"{place}.last_update", "not exceed `updates`", got, remedy)
    _check_window(where, f"{place}.window", history.window, window, history.last_update, remedy)
    if history.within_squares > 0 and history.within_dof == 0:
        got = f"{history.within_squares!r} with a within_dof of 0"
        validate.reject(where, f"{place}.within_squares", "be 0 while no group of two was seen", got, remedy)
    # Bounds that decay cannot break: the newest step counts fully, and weights are at most 1.
    newest, groups = history.window[-1].count, history.groups
    bounds = [("groups", newest, math.inf), ("groups_squared", newest, groups), ("inverse_sizes", 0, groups)]
    if len(history.window) < window or len(history.window) == history.last_update:  # it holds all steps of the key
        means = [entry.mean for entry in history.window]
        bounds.append(("mean", min(means), max(means)))
    for name, low, high in bounds:
        value = getattr(history, name)
        slack = max(abs(x) for x in (low, value, high) if x != math.inf) / SLACK
        if not low - slack <= value <= high + slack:
            validate.reject(where, f"{place}.{name}", f"lie in [{low}, {high}]", repr(value), remedy)
    check_usable(where, place, history)


def _check_window(where: str, place: str, entries: Any, window: int, last_update: int, remedy: str) -> None:
    if not isinstance(entries, tuple) or not 1 <= len(entries) <= window:
        got = f"{len(entries)} entries" if isinstance(entries, tuple) else type(entries).__name__
        validate.reject(where, place, f"hold 1 to {window} entries", got, remedy)
    if len(entries) > last_update:
        got = f"{len(entries)} entries after {last_update} updates"
        validate.reject(where, place, "not have more entries than there were updates", got, remedy)
    for k, entry in enumerate(entries):
        if not isinstance(entry, WindowEntry):
            validate.reject_type(where, f"{place}[{k}]", "be a WindowEntry", type(entry).__name__, remedy)
        _check_integer(where, f"{place}[{k}].count", entry.count, 1, remedy)
        validate.check_number(where, f"{place}[{k}].mean", entry.mean, remedy=remedy)
        validate.check_number(where, f"{place}[{k}].squares", entry.squares, remedy=remedy)
        if entry.squares < 0:
            validate.reject(where, f"{place}[{k}].squares", "not be negative", repr(entry.squares), remedy)
        if entry.count == 1 and entry.squares != 0:
            validate.reject(where, f"{place}[{k}].squares", "be 0 for one group", repr(entry.squares), remedy)


# --- a state from data --------------------------------------------------------------------------------


def read_state(data: Any) -> HistoryState:
    """The state that `HistoryState.to_dict` described; see `HistoryState.from_dict`."""
    _check_fields("state", data, STATE_FIELDS)
    if data["format"] != FORMAT:
        remedy = f"This is not a history file. {UNCHANGED}"
        validate.reject(WHERE, "format", f"be {FORMAT!r}", repr(data["format"]), remedy)
    if type(data["version"]) is not int or data["version"] != VERSION:
        remedy = "It was written by another version of refbase; read it with that one."
        validate.reject(WHERE, "version", f"be {VERSION}", repr(data["version"]), remedy)
    for name, low in (("window", 1), ("max_keys", 1), ("updates", 0), ("last_step", 0)):
        if name != "last_step" or data[name] is not None:
            _check_integer(WHERE, name, data[name], low, UNCHANGED)
    window, max_keys, updates, last_step = (data[name] for name in ("window", "max_keys", "updates", "last_step"))
    decay = _float("decay", data["decay"])
    _check_settings(WHERE, window, decay, max_keys, updates, last_step, UNCHANGED)
    if not isinstance(data["keys"], list):
        validate.reject_type(WHERE, "keys", "be a list", type(data["keys"]).__name__, UNCHANGED)
    _check_count(WHERE, len(data["keys"]), max_keys, UNCHANGED)
    histories: dict[Key, KeyHistory] = {}
    for position, item in enumerate(data["keys"]):
        place = f"keys[{position}]"
        key, history = _read_key(place, item)
        _check_history(WHERE, place, history, window, updates, UNCHANGED)
        if key in histories:
            validate.reject(WHERE, f"{place}.key", "be new", f"{key!r} a second time", UNCHANGED)
        histories[key] = history
    return HistoryState._of(window, decay, max_keys, updates, last_step, histories)


def _read_key(place: str, item: Any) -> tuple[Key, KeyHistory]:
    """A key's numbers as floats, its window as entries; what they may be is checked afterwards."""
    _check_fields(place, item, KEY_FIELDS)
    _check_key(WHERE, f"{place}.key", item["key"], UNCHANGED)
    numbers = {name: _float(f"{place}.{name}", item[name]) for name in (*POSITIVE, *NOT_NEGATIVE, "mean")}
    entries = item["window"]
    if not isinstance(entries, list):
        validate.reject_type(WHERE, f"{place}.window", "be a list of entries", type(entries).__name__, UNCHANGED)
    window = tuple(_read_entry(f"{place}.window[{k}]", entry) for k, entry in enumerate(entries))
    return item["key"], KeyHistory(**numbers, window=window, last_update=item["last_update"])


def _read_entry(place: str, entry: Any) -> WindowEntry:
    if not isinstance(entry, list) or len(entry) != 3:
        validate.reject(WHERE, place, "be [count, mean, squares]", repr(entry), UNCHANGED)
    _float(f"{place}.count", entry[0])  # one that no float holds would overflow later
    return WindowEntry(entry[0], _float(f"{place}.mean", entry[1]), _float(f"{place}.squares", entry[2]))


def _float(place: str, value: Any) -> float:
    if type(value) not in (int, float):
        got = f"{value!r} of type {type(value).__name__}"
        validate.reject_type(WHERE, place, "be a number", got, UNCHANGED)
    number = validate.plain_number(value)
    if not math.isfinite(number):
        validate.reject(WHERE, place, "be finite", repr(number), UNCHANGED)
    return float(number)


def _check_fields(place: str, data: Any, expected: Collection[str]) -> None:
    if not isinstance(data, Mapping):
        validate.reject_type(WHERE, place, "be a mapping", type(data).__name__, UNCHANGED)
    missing = [name for name in expected if name not in data]
    unknown = [name for name in data if name not in expected]
    if missing or unknown:
        got = "; ".join(
            text
            for names, text in (
                (missing, f"missing {', '.join(missing)}"),
                (unknown, f"unknown {', '.join(map(repr, unknown))}"),
            )
            if names
        )
        validate.reject(WHERE, place, f"have exactly the fields {', '.join(expected)}", got, UNCHANGED)
