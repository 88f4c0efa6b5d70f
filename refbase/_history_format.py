"""Reading a `HistoryState` from untrusted data: every field is checked before a state exists."""

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


def read_state(data: Any) -> HistoryState:
    _check_fields("state", data, STATE_FIELDS)
    if data["format"] != FORMAT:
        validate.reject(WHERE, "format", f"be {FORMAT!r}", repr(data["format"]), "This is not a history file.")
    if type(data["version"]) is not int or data["version"] != VERSION:
        remedy = "It was written by another version of refbase; read it with that one."
        validate.reject(WHERE, "version", f"be {VERSION}", repr(data["version"]), remedy)
    empty = HistoryState.empty(data["window"], _float("decay", data["decay"]), data["max_keys"])
    validate.check_integer(WHERE, "updates", data["updates"], 0)
    if data["last_step"] is not None:
        validate.check_integer(WHERE, "last_step", data["last_step"], 0)
        if data["updates"] == 0:
            validate.reject(WHERE, "last_step", "be null before the first update", repr(data["last_step"]))
    if not isinstance(data["keys"], list):
        validate.reject_type(WHERE, "keys", "be a list", type(data["keys"]).__name__)
    if len(data["keys"]) > empty.max_keys:
        validate.reject(WHERE, "keys", f"hold at most max_keys={empty.max_keys} keys", str(len(data["keys"])))
    histories: dict[Key, KeyHistory] = {}
    for position, item in enumerate(data["keys"]):
        key, history = _read_key(f"keys[{position}]", item, empty.window, data["updates"])
        if key in histories:
            validate.reject(WHERE, f"keys[{position}].key", "be new", f"{key!r} a second time")
        histories[key] = history
    return HistoryState(empty.window, empty.decay, empty.max_keys, data["updates"], data["last_step"], histories)


def _read_key(place: str, item: Any, window: int, updates: int) -> tuple[Key, KeyHistory]:
    _check_fields(place, item, KEY_FIELDS)
    key = item["key"]
    if isinstance(key, bool) or not (key is None or isinstance(key, (str, int))):
        validate.reject_type(WHERE, f"{place}.key", "be a string, an integer or null", repr(key))
    numbers = {name: _float(f"{place}.{name}", item[name]) for name in (*POSITIVE, *NOT_NEGATIVE, "mean")}
    for name in POSITIVE:
        if numbers[name] <= 0:
            validate.reject(WHERE, f"{place}.{name}", "be positive", repr(numbers[name]))
    for name in NOT_NEGATIVE:
        if numbers[name] < 0:
            validate.reject(WHERE, f"{place}.{name}", "not be negative", repr(numbers[name]))
    validate.check_integer(WHERE, f"{place}.last_update", item["last_update"], 1)
    if item["last_update"] > updates:
        got = f"{item['last_update']} after {updates} updates"
        validate.reject(WHERE, f"{place}.last_update", "not exceed `updates`", got)
    entries = item["window"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= window:
        got = f"{len(entries)} entries" if isinstance(entries, list) else type(entries).__name__
        validate.reject(WHERE, f"{place}.window", f"be a list of 1 to {window} entries", got)
    steps = tuple(_read_entry(f"{place}.window[{k}]", entry) for k, entry in enumerate(entries))
    if len(steps) > updates:
        validate.reject(WHERE, f"{place}.window", "not exceed `updates`", f"{len(steps)} entries of {updates} updates")
    history = KeyHistory(**numbers, window=steps, last_update=item["last_update"])
    # Bounds that decay cannot break: the newest step counts fully, and weights are at most 1.
    slack = 1 + 1e-9
    newest, groups = steps[-1].count, numbers["groups"]
    for name, low, high in (
        ("groups", newest, math.inf),
        ("groups_squared", newest, groups),
        ("inverse_sizes", 0.0, groups),
    ):
        if not low <= numbers[name] * slack or not numbers[name] <= high * slack:
            validate.reject(WHERE, f"{place}.{name}", f"lie in [{low:g}, {high:g}]", repr(numbers[name]))
    check_usable(WHERE, place, history)
    return key, history


def _read_entry(place: str, entry: Any) -> WindowEntry:
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        validate.reject(WHERE, place, "be [count, mean, squares]", repr(entry))
    validate.check_integer(WHERE, f"{place}[0]", entry[0], 1)
    _float(f"{place}[0]", entry[0])
    mean, squares = _float(f"{place}[1]", entry[1]), _float(f"{place}[2]", entry[2])
    if squares < 0:
        validate.reject(WHERE, f"{place}[2]", "not be negative", repr(squares))
    return WindowEntry(entry[0], mean, squares)


def _float(place: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        validate.reject_type(WHERE, place, "be a number", f"{value!r} of type {type(value).__name__}")
    number = validate.plain_number(value)
    if not math.isfinite(number):
        validate.reject(WHERE, place, "be finite", repr(number))
    return float(number)


def _check_fields(place: str, data: Any, expected: Collection[str]) -> None:
    if not isinstance(data, Mapping):
        validate.reject_type(WHERE, place, "be a mapping", type(data).__name__)
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
        validate.reject(WHERE, place, f"have exactly the fields {', '.join(expected)}", got)
