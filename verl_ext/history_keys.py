"""What BV-Blend remembers a prompt under: ``algorithm.bvblend.history_key``.

=========================  =====================================================================================
``none``                   one history for all prompts
``data_source``            verl's column of that name: one history for each data set
``extra_info.<field>``     a field of the row's ``extra_info``, such as ``extra_info.level``
``<module>:<function>``    ``function(prompt)`` for a mapping with the prompt's columns of the data set
                           (`COLUMNS`); imported by name in the trainer's process, never evaluated
=========================  =====================================================================================

A key is a string or an integer; a function may also return None, the key of the one history that ``none`` has.
Each prompt of a batch is asked for once, padding rows never.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import numpy as np

from refbase import validate

__all__ = ["COLUMNS", "check_source", "columns", "key_function", "keys_of_rows"]

#: Columns of verl's data sets that a function may look at, where the batch has them.
COLUMNS = ("data_source", "extra_info", "reward_model", "raw_prompt", "index")

_FIELD = re.compile(r"extra_info\.([^.:\s]+)")
_FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")

Key = str | int | None


def check_source(where: str, source: Any) -> None:
    """Refuse what has none of the four forms."""
    if not isinstance(source, str):
        got = f"{source!r} of type {type(source).__name__}"
        validate.reject_type(where, "history_key", "be a string", got, "Write 'none' for one history for all prompts.")
    if source in ("none", "data_source") or _FIELD.fullmatch(source) or _FUNCTION.fullmatch(source):
        return
    forms = "be 'none', 'data_source', 'extra_info.<field>' or '<module>:<function>'"
    validate.reject(where, "history_key", forms, repr(source), "Write 'none' for one history for all prompts.")


def columns(source: str) -> tuple[str, ...]:
    """The columns that the keys are made from."""
    if source == "none":
        return ()
    if source == "data_source":
        return ("data_source",)
    return ("extra_info",) if _FIELD.fullmatch(source) else COLUMNS


def key_function(source: str) -> Callable[[Mapping[str, Any]], Key]:
    """From a prompt's columns to its key.

    Raises
    ------
    InputError
        A module that cannot be imported, or that has no such function.
    """
    if source == "data_source":
        return lambda prompt: _present(source, prompt, "data_source", "column")
    field = _FIELD.fullmatch(source)
    if field:
        return lambda prompt: _present(source, _extra_info(source, prompt), field[1], "field of extra_info")
    function = _load(source)

    def key(prompt: Mapping[str, Any]) -> Key:
        return _checked(source, function(prompt), optional=True)

    return key


def keys_of_rows(
    source: str, uids: Sequence[str], table: Mapping[str, Sequence[Any]], padding: Sequence[bool]
) -> tuple[Key, ...]:
    """The key of each row; None for padding.

    Parameters
    ----------
    source
        ``algorithm.bvblend.history_key``.
    uids
        Which prompt a row answers; rows of one prompt get one key.
    table
        The columns of `columns`, those that the batch has.
    padding
        Rows that verl appended to fill a batch: copies of a prompt they do not belong to.
    """
    function = key_function(source)
    found: dict[str, Key] = {}
    for row, uid in enumerate(uids):
        if not padding[row] and uid not in found:
            found[uid] = function({name: values[row] for name, values in table.items()})
    return tuple(None if padding[row] else found[uid] for row, uid in enumerate(uids))


def _extra_info(source: str, prompt: Mapping[str, Any]) -> Mapping[str, Any]:
    info = prompt.get("extra_info")
    if not isinstance(info, Mapping):
        _reject(source, "find `extra_info` in each row of the data set", repr(info))
    return info


def _present(source: str, record: Mapping[str, Any], name: str, kind: str) -> Key:
    value = record.get(name)
    if value is None:  # in a parquet file a field that a row lacks is null
        _reject(source, f"find the {kind} {name!r} in each row of the data set", f"a row with {', '.join(record)}")
    return _checked(source, value)


def _checked(source: str, value: Any, *, optional: bool = False) -> Key:
    if isinstance(value, (np.str_, np.integer)):
        value = value.item()
    if (optional and value is None) or isinstance(value, str) or (isinstance(value, int) and type(value) is not bool):
        return value
    allowed = "strings, integers or None" if optional else "strings or integers"
    got = f"{value!r} of type {type(value).__name__}"
    remedy = f"It is {source!r}: convert what it gives, or name another source."
    validate.reject_type("algorithm.bvblend", "history_key", f"give {allowed}", got, remedy)


def _load(source: str) -> Callable[[Mapping[str, Any]], Any]:
    match = _FUNCTION.fullmatch(source)
    assert match, source
    found: Any
    try:
        found = import_module(match[1])
    except ImportError as error:
        _reject(source, "name a module that the trainer's process can import", str(error))
    for name in match[2].split("."):
        if not hasattr(found, name):
            _reject(source, f"name a function of {match[1]!r}", f"a module without {match[2]!r}")
        found = getattr(found, name)
    if not callable(found):
        _reject(source, "name a function", f"an object of type {type(found).__name__}")
    return found


def _reject(source: str, requirement: str, got: str) -> NoReturn:
    remedy = f"It is {source!r}: correct that, or the data."
    validate.reject("algorithm.bvblend", "history_key", requirement, got, remedy)
