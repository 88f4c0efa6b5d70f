"""What BV-Blend remembers a prompt under."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from refbase import InputError, InputTypeError
from verl_ext.history_keys import check_source, columns, key_function, keys_of_rows
from verl_ext.options import parse

PROMPT = {"data_source": "math", "extra_info": {"level": 3, "topic": "algebra", "absent": None}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("data_source", "math"),
        ("extra_info.level", 3),
        ("extra_info.topic", "algebra"),
        (f"{__name__}:by_topic", "algebra/3"),
        (f"{__name__}:Keys.none", None),
    ],
)
def test_forms(source, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, Here())
    assert key_function(source)(PROMPT) == expected


class Keys:
    @staticmethod
    def none(prompt):
        return None


class Here:
    """This module, whatever pytest calls it."""

    Keys = Keys
    number = 3

    @staticmethod
    def by_topic(prompt):
        return f"{prompt['extra_info']['topic']}/{prompt['extra_info']['level']}"

    @staticmethod
    def half(prompt):
        return 0.5

    @staticmethod
    def flag(prompt):
        return True


@pytest.mark.parametrize("bad", ["", "uid", "extra_info", "extra_info.", "data_source ", "a.b", "lambda p: 1", "m:f()"])
def test_other_forms_are_refused_with_the_options(bad):
    with pytest.raises(InputError, match=r"'none', 'data_source', 'extra_info.<field>' or '<module>:<function>'"):
        parse("bvblend", {"bvblend": {"history_key": bad}})


def test_the_type_is_checked():
    with pytest.raises(InputTypeError, match="history_key"):
        check_source("algorithm.bvblend", 3)


def test_nothing_is_evaluated():
    with pytest.raises(InputError):
        check_source("x", "os:system('touch /tmp/x')")
    with pytest.raises(InputError, match="can import"):
        key_function("no_such_module_anywhere:f")


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("os:no_such_function", InputError, "without .no_such_function"),
        ("os:sep", InputError, "object of type str"),
        (f"{__name__}:half", InputTypeError, "0.5 of type float"),
        (f"{__name__}:flag", InputTypeError, "True of type bool"),
    ],
)
def test_bad_functions(function, error, message, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, Here())
    with pytest.raises(error, match=message) as caught:
        key_function(function)(PROMPT)
    assert function in str(caught.value)


@pytest.mark.parametrize("field", ["other", "absent"])
def test_a_row_without_the_field_is_not_mixed_with_others(field):
    with pytest.raises(InputError, match=rf"'{field}' in each row"):
        key_function(f"extra_info.{field}")(PROMPT)
    with pytest.raises(InputError, match="extra_info"):
        key_function("extra_info.level")({"data_source": "math"})


def test_numpys_scalars_become_pythons():
    level = key_function("extra_info.level")
    assert type(level({"extra_info": {"level": np.int64(4)}})) is int
    assert type(level({"extra_info": {"level": np.str_("a")}})) is str
    with pytest.raises(InputTypeError):
        level({"extra_info": {"level": np.float64(4)}})
    with pytest.raises(InputTypeError):
        level({"extra_info": {"level": math.nan}})


def test_one_question_per_prompt_and_none_for_padding(monkeypatch):
    asked = []
    here = Here()
    here.count = lambda prompt: asked.append(prompt["data_source"]) or len(asked)
    monkeypatch.setitem(sys.modules, __name__, here)
    keys = keys_of_rows(
        f"{__name__}:count",
        uids=["a", "b", "a", "pad"],
        table={"data_source": ["x", "y", "x", "x"]},
        padding=[False, False, False, True],
    )
    assert keys == (1, 2, 1, None)
    assert asked == ["x", "y"]


def test_only_the_columns_that_are_needed():
    assert columns("none") == ()
    assert columns("data_source") == ("data_source",)
    assert columns("extra_info.level") == ("extra_info",)
    assert "reward_model" in columns("module:function")
