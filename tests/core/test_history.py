"""The state of BV-Blend: updating, bounds, and reading it back from untrusted data."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction as F

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import refbase
from refbase import HistoryState, update_history


def filled(**how):
    state = HistoryState.empty(**how)
    state = update_history(state, [0.1, 0.9, 0.4], ["a", "a", "b"], history_keys=["x", "x", 7], step=3)
    return update_history(state, [1.0, 0.0], ["c", "d"], history_keys=[None, "x"], step=5)


def test_statistics_by_hand():
    state = update_history(HistoryState.empty(decay=F(1, 2)), [F(1), F(0), F(1), F(1)], ["a", "a", "b", "b"])
    past = state.keys[None]
    assert (past.groups, past.groups_squared, past.mean) == (2, 2, F(3, 4))
    assert past.between_squares == F(1, 8)
    assert (past.within_squares, past.within_dof, past.inverse_sizes) == (F(1, 2), 2, 1)
    assert past.spread == F(1, 4) + F(1, 16) + F(1, 16)
    assert [(e.count, e.mean, e.squares) for e in past.window] == [(2, F(3, 4), F(1, 8))]
    later = update_history(state, [F(3)], ["c"]).keys[None]
    assert (later.groups, later.groups_squared) == (2, F(3, 2))
    assert later.mean == (F(1, 2) * 2 * F(3, 4) + 3) / 2
    direct = F(1, 2) * (F(1, 8) + 2 * (F(3, 4) - later.mean) ** 2) + (3 - later.mean) ** 2
    assert later.between_squares == direct
    assert (later.within_squares, later.within_dof, later.inverse_sizes) == (F(1, 4), 1, F(3, 2))
    assert later.spread == F(1, 2) * past.spread + (3 - F(3, 4)) ** 2
    assert later.window_variance == F(past.between_squares + 2 * F(3, 4) ** 2 + 9, 3) - F(2 * F(3, 4) + 3, 3) ** 2


def test_one_group_has_no_between_variance():
    past = update_history(HistoryState.empty(), [1.0, 0.0], ["a", "a"]).keys[None]
    assert past.between_variance == 0
    assert past.effective_groups == 1
    lone = update_history(HistoryState.empty(), [1.0, 0.0], ["a", "b"]).keys[None]
    assert lone.within_variance == 0  # no group of two was seen


def test_least_recently_used_keys_go_first():
    state = HistoryState.empty(max_keys=2)
    for step, key in enumerate(["a", "b", "a", "c"]):
        state = update_history(state, [1.0], ["p"], history_keys=[key], step=step)
    assert set(state.keys) == {"a", "c"}


def test_ties_inside_a_step_do_not_depend_on_row_order():
    kept = []
    for keys in (["b", 2, "a", 10], [10, "a", 2, "b"]):
        state = update_history(HistoryState.empty(max_keys=2), [1.0] * 4, [0, 1, 2, 3], history_keys=keys)
        kept.append(set(state.keys))
    assert kept[0] == kept[1] == {"a", "b"}  # int sorts before str


def test_steps_count_once_and_none_always():
    state = filled()
    assert update_history(state, [5.0], ["a"], step=5) is state
    assert update_history(state, [5.0], ["a"], step=0) is state
    again = update_history(state, [5.0], ["a"])
    assert again.updates == state.updates + 1
    assert again.last_step == 5
    assert update_history(again, [5.0], ["a"], step=6).last_step == 6


def test_a_step_without_valid_rows_is_a_step():
    state = update_history(HistoryState.empty(), [float("nan")], ["a"], [False], step=1)
    assert (state.updates, state.last_step, dict(state.keys)) == (1, 1, {})


def test_tensors_and_exclusion():
    state = update_history(
        HistoryState.empty(), torch.tensor([1.0, float("inf"), 0.0]), ["a", "a", "a"], nonfinite="exclude"
    )
    assert state.keys[None].mean == 0.5


def test_keys_are_read_only():
    with pytest.raises(TypeError):
        filled().keys["y"] = None


def test_states_do_not_depend_on_the_order_of_floats():
    rewards = [0.1, 0.7, 1e6, 0.3, 1e-9, 123.456]
    first = update_history(HistoryState.empty(), rewards, [0, 0, 1, 1, 2, 2])
    turned = update_history(HistoryState.empty(), rewards[::-1], ["z", "z", "y", "y", "x", "x"])
    assert first.to_dict() == turned.to_dict()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"decay": 1.0}, "HistoryState: `decay` must be a finite number with 0 <= decay < 1"),
        ({"decay": -0.1}, "`decay`"),
        ({"window": 0}, "`window` must be at least 1; got 0"),
        ({"max_keys": 0}, "`max_keys` must be at least 1"),
    ],
)
def test_bounds_of_the_settings(how, message):
    with pytest.raises(refbase.InputError, match=message):
        HistoryState.empty(**how)


@pytest.mark.parametrize("how", [{"window": 1.5}, {"window": True}, {"max_keys": "10"}, {"decay": "0.9"}])
def test_types_of_the_settings(how):
    with pytest.raises(refbase.InputTypeError):
        HistoryState.empty(**how)


@pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
def test_step_ids_are_whole_numbers(step):
    with pytest.raises((refbase.InputError, refbase.InputTypeError), match="`step`"):
        update_history(HistoryState.empty(), [1.0], ["a"], step=step)


def test_updating_something_else():
    with pytest.raises(refbase.InputTypeError, match="`state` must be a HistoryState; got dict"):
        update_history({}, [1.0], ["a"])


def test_round_trip():
    state = filled(window=2, decay=0.9, max_keys=5)
    data = json.loads(json.dumps(state.to_dict()))
    assert HistoryState.from_dict(data) == state
    assert HistoryState.from_dict(data).to_dict() == state.to_dict()
    assert [entry["key"] for entry in data["keys"]] == [None, 7, "x"]
    assert HistoryState.from_dict(HistoryState.empty().to_dict()) == HistoryState.empty()


@pytest.mark.parametrize(
    ("number", "what"), [(F(1, 2), "a Fraction"), (torch.tensor(0.5), "a Tensor")], ids=["Fraction", "tensor"]
)
def test_exact_states_live_in_memory_only(number, what):
    state = HistoryState(3, 0.5, 2, 0, None, {})
    object.__setattr__(state, "decay", number)
    with pytest.raises(refbase.InputTypeError, match=f"must hold floats; got {what}"):
        state.to_dict()


def change(path, value):
    def edit(data):
        at = data
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value

    return edit


def drop(field):
    return lambda data: data.pop(field)


BAD = {
    "foreign format": (change(["format"], "pickle"), "`format` must be 'refbase.history'.*not a history file"),
    "other version": (change(["version"], 2), "`version` must be 1; got 2.*another version of refbase"),
    "missing field": (drop("updates"), "`state` must have exactly the fields .*missing updates"),
    "additional field": (change(["extra"], 1), "unknown 'extra'"),
    "decay": (change(["decay"], 1.5), "`decay` must be a finite number with 0 <= decay < 1"),
    "decay infinite": (change(["decay"], float("inf")), "`decay` must be finite"),
    "updates": (change(["updates"], -1), "`updates` must be at least 0"),
    "last_step": (change(["last_step"], -3), "`last_step` must be at least 0"),
    "step without update": (
        lambda d: d.update(updates=0, last_step=3, keys=[]),
        "`last_step` must be None before the first update; got 3",
    ),
    "too many keys": (change(["max_keys"], 2), "`keys` must hold at most max_keys=2 keys; got 3"),
    "key twice": (change(["keys", 1, "key"], None), "`keys\\[1\\].key` must be new; got None a second time"),
    "field of a key": (lambda d: d["keys"][0].pop("mean"), "`keys\\[0\\]` must have exactly the fields.*missing mean"),
    "weight": (change(["keys", 0, "groups"], 0.0), "`keys\\[0\\].groups` must be positive; got 0.0"),
    "squared weight": (change(["keys", 0, "groups_squared"], -1.0), "`keys\\[0\\].groups_squared` must be positive"),
    "inverse sizes": (change(["keys", 0, "inverse_sizes"], 0), "`keys\\[0\\].inverse_sizes` must be positive"),
    "spread": (change(["keys", 0, "spread"], -0.5), "`keys\\[0\\].spread` must not be negative; got -0.5"),
    "within": (change(["keys", 0, "within_squares"], -1), "within_squares` must not be negative"),
    "between": (change(["keys", 0, "between_squares"], -1), "between_squares` must not be negative"),
    "freedom": (change(["keys", 0, "within_dof"], -1), "within_dof` must not be negative"),
    "not finite": (change(["keys", 0, "mean"], float("nan")), "`keys\\[0\\].mean` must be finite"),
    "future": (change(["keys", 0, "last_update"], 9), "last_update` must not exceed `updates`; got 9 after 2 updates"),
    "never": (change(["keys", 0, "last_update"], 0), "last_update` must be at least 1"),
    "empty window": (change(["keys", 0, "window"], []), "window` must hold 1 to 100 entries; got 0 entries"),
    "long window": (change(["window"], 1), "`keys\\[2\\].window` must hold 1 to 1 entries; got 2 entries"),
    "window entry": (change(["keys", 0, "window", 0], [1, 2]), "must be \\[count, mean, squares\\]; got \\[1, 2\\]"),
    "window count": (change(["keys", 0, "window", 0, 0], 0), "window\\[0\\].count` must be at least 1"),
    "window squares": (change(["keys", 0, "window", 0, 2], -1.0), "window\\[0\\].squares` must not be negative"),
}

WRONG_TYPES = {
    "not a mapping": (lambda data: [data], "`state` must be a mapping; got list"),
    "keys": (change(["keys"], {}), "`keys` must be a list; got dict"),
    "key": (change(["keys", 0, "key"], 1.5), "`keys\\[0\\].key` must be a string, an integer or None; got 1.5"),
    "boolean key": (change(["keys", 0, "key"], True), "`keys\\[0\\].key` must be a string"),
    "key entry": (change(["keys", 0], 3), "`keys\\[0\\]` must be a mapping; got int"),
    "window": (change(["keys", 0, "window"], "abc"), "window` must be a list of entries; got str"),
    "text": (change(["keys", 0, "mean"], "0.5"), "`keys\\[0\\].mean` must be a number; got '0.5' of type str"),
    "boolean": (change(["keys", 0, "mean"], True), "`keys\\[0\\].mean` must be a number"),
    "decay": (change(["decay"], None), "`decay` must be a number; got None"),
    "updates": (change(["updates"], 1.0), "`updates` must be an integer"),
    "last_step": (change(["last_step"], "7"), "`last_step` must be an integer"),
}


def edited(edit):
    data = copy.deepcopy(filled().to_dict())
    result = edit(data)
    return result if isinstance(result, list) else data


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_by_name(case):
    edit, message = BAD[case]
    with pytest.raises(refbase.InputError, match=message):
        HistoryState.from_dict(edited(edit))


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_data_of_the_wrong_type_is_refused_by_name(case):
    edit, message = WRONG_TYPES[case]
    with pytest.raises(refbase.InputTypeError, match=message):
        HistoryState.from_dict(edited(edit))


# --- built directly -----------------------------------------------------------------------------------


def parts(**changed):
    """Arguments of a good state with two keys, of exact numbers, and what is wrong about them."""
    state = HistoryState.empty(window=3, decay=F(1, 2), max_keys=4)
    state = update_history(state, [F(1), F(0), F(1)], ["a", "a", "b"], history_keys=["x", "x", 7], step=2)
    good = {field.name: getattr(state, field.name) for field in fields(HistoryState)}
    return {**good, **changed}


def with_history(**changed):
    past = parts()["_keys"]["x"]
    return {"_keys": {"x": replace(past, **changed)}}


def with_entry(**changed):
    entry = parts()["_keys"]["x"].window[0]
    return with_history(window=(replace(entry, **changed),))


ENTRY = parts()["_keys"]["x"].window[0]
BAD_PARTS = {
    "window": ({"window": 0}, "HistoryState: `window` must be at least 1; got 0"),
    "decay": ({"decay": 1}, "`decay` must be a finite number with 0 <= decay < 1; got 1"),
    "max_keys": ({"max_keys": 0}, "`max_keys` must be at least 1"),
    "updates": ({"updates": -1}, "`updates` must be at least 0; got -1"),
    "last_step": ({"last_step": -2}, "`last_step` must be at least 0; got -2"),
    "step without update": ({"updates": 0, "_keys": {}}, "`last_step` must be None before the first update; got 2"),
    "too many keys": ({"max_keys": 1}, "`keys` must hold at most max_keys=1 keys; got 2"),
    "weight": (with_history(groups=F(0)), r"`keys\['x'\].groups` must be positive; got Fraction\(0, 1\). Start from"),
    "not finite": (with_history(mean=float("nan")), r"`keys\['x'\].mean` must be a finite number; got nan"),
    "spread": (with_history(spread=F(-1)), "spread` must not be negative"),
    "more squared weight than weight": (with_history(groups_squared=F(9)), r"groups_squared` must lie in \[1, 1\]"),
    "future": (with_history(last_update=5), "last_update` must not exceed `updates`; got 5 after 1 updates"),
    "no window": (with_history(window=()), "window` must hold 1 to 3 entries; got 0 entries"),
    "a list as window": (with_history(window=[]), "window` must hold 1 to 3 entries; got list"),
    "entries of no step": (with_history(window=(ENTRY, ENTRY)), "not have more entries than there were updates; got 2"),
    "window count": (with_entry(count=0), r"window\[0\].count` must be at least 1"),
    "window squares": (with_entry(squares=F(-1)), r"window\[0\].squares` must not be negative"),
    "an overflow": (with_history(within_squares=1e308, within_dof=1e-5), "finite statistics"),
}
PARTS_OF_OTHER_TYPES = {
    "window": ({"window": 2.0}, "`window` must be an integer; got 2.0"),
    "decay": ({"decay": "0.5"}, "`decay` must be a real number; got '0.5' of type str. Pass the number itself"),
    "keys": ({"_keys": [1]}, "`keys` must be a mapping from history keys; got list. Start from HistoryState.empty"),
    "key": ({"_keys": {1.5: parts()["_keys"]["x"]}}, r"`keys\[1.5\]` must be a string, an integer or None; got 1.5"),
    "history": ({"_keys": {"x": {}}}, r"`keys\['x'\]` must be a KeyHistory; got dict"),
    "number": (with_history(mean=None), r"`keys\['x'\].mean` must be a real number; got None of type NoneType"),
    "entry": (with_history(window=((1, 2, 3),)), r"window\[0\]` must be a WindowEntry; got tuple"),
}


def test_rewards_whose_squares_overflow_are_refused_by_name():
    large, group = [F(10) ** 200, F(0)], ["a", "a"]
    exact = HistoryState.empty(decay=F(1, 2))
    for _ in range(2):
        exact = update_history(exact, large, group)
    assert exact.keys[None].within_squares == F(3, 4) * F(10) ** 400  # Fractions hold it
    with pytest.raises(refbase.InputError, match="`the history of key None` must have finite statistics"):
        update_history(HistoryState.empty(), [float(r) for r in large], group)
    mixed = update_history(HistoryState.empty(decay=0.5), large, group)
    with pytest.raises(refbase.InputError, match="`the history of key None` must have finite statistics"):
        update_history(mixed, large, group)


@pytest.mark.parametrize("name", ["bvblend", "bvblend_eb", "shrinkage_history"])
def test_a_kernel_refuses_exact_numbers_that_no_float_holds(name):
    torch = pytest.importorskip("torch")
    state = update_history(HistoryState.empty(decay=F(1, 2)), [F(10) ** 200, F(0)] * 20, [k // 2 for k in range(40)])
    assert getattr(refbase, name)([F(1), F(0)], ["a", "a"], state).advantages
    with pytest.raises(refbase.InputError, match=f"{name}: `state` must have finite statistics; got an overflow"):
        getattr(refbase, name)(torch.tensor([1.0, 0.0]), ["a", "a"], state)


def test_keys_of_subclasses_are_kept_as_plain_ones():
    """Else a state that went through JSON would order them otherwise, and forget others."""

    class Name(str):
        pass

    state = HistoryState.empty(max_keys=2)
    for keys in ([np.str_("a"), np.str_("a"), "b", "b"], [Name("c"), Name("c"), "b", "b"]):
        state = update_history(state, [1.0, 0.0, 1.0, 1.0], ["x", "x", "y", "y"], history_keys=keys)
        reloaded = HistoryState.from_dict(state.to_dict())
        assert (state, state.to_dict()) == (reloaded, reloaded.to_dict())
        assert {type(key) for key in state.keys} == {str}


def test_good_parts_make_a_state():
    state = HistoryState(**parts())
    assert state == update_history(state, [F(9)], ["z"], step=2)
    assert state.keys == parts()["_keys"]
    floats = filled(window=2, decay=0.9, max_keys=5)
    assert HistoryState(**{field.name: getattr(floats, field.name) for field in fields(HistoryState)}) == floats


@pytest.mark.parametrize("case", BAD_PARTS)
def test_bad_parts_are_refused_by_name(case):
    changed, message = BAD_PARTS[case]
    with pytest.raises(refbase.InputError, match=message):
        HistoryState(**parts(**changed))


@pytest.mark.parametrize("case", PARTS_OF_OTHER_TYPES)
def test_parts_of_the_wrong_type_are_refused_by_name(case):
    changed, message = PARTS_OF_OTHER_TYPES[case]
    with pytest.raises(refbase.InputTypeError, match=message):
        HistoryState(**parts(**changed))


def test_a_state_does_not_share_the_dictionary_that_it_was_built_from():
    keys = dict(parts()["_keys"])
    state = HistoryState(**parts(_keys=keys))
    keys.clear()
    assert set(state.keys) == {"x", 7}


# --- what a float cannot hold ---------------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[1e200, -1e200, 1e200], [1e308, -1e308, 1e308]])
def test_rewards_that_cannot_be_squared_are_refused(rewards):
    with pytest.raises(refbase.InputError, match="statistics"):
        update_history(HistoryState.empty(), rewards, ["a", "a", "b"])


@pytest.mark.parametrize("name", ["bvblend", "bvblend_eb", "shrinkage_history"])
@pytest.mark.parametrize("scale", [1e-155, 1e-300, 1e150, 1e300])
def test_kernels_with_a_history_of_another_scale(name, scale):
    state = update_history(HistoryState.empty(), [1.0, 0.0, 1.0, 1.0], ["a", "a", "b", "b"])
    exact_state = update_history(HistoryState.empty(decay=F(0)), [F(1), F(0), F(1), F(1)], ["a", "a", "b", "b"])
    options = {"local": "loo", "scale": "none"} if name == "bvblend" else {"min_groups": 1}
    rewards = [scale, 0.0, scale, scale, 0.0]
    got = getattr(refbase, name)(torch.tensor(rewards, dtype=torch.float64), list("aaabb"), state, **options)
    exact = getattr(refbase, name)([F(r) for r in rewards], list("aaabb"), exact_state, **options)
    for field in ("advantages", "baseline", "weight"):
        wanted = torch.tensor([float(x) for x in getattr(exact, field)], dtype=torch.float64)
        torch.testing.assert_close(getattr(got, field), wanted, rtol=1e-9, atol=0)


def test_numpy_integers_do_not_enter_the_state():
    state = HistoryState.empty(window=np.int64(3), max_keys=np.int64(9))
    state = update_history(state, [1.0], ["a"], step=np.int64(6))
    assert HistoryState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


@pytest.mark.parametrize(
    "change",
    [
        {"version": True},
        {"version": 1.0},
        {"decay": 10**400},
        {"updates": 0, "keys": []},
        {"groups": 10**400},
        {"groups": 5e-324},
        {"groups_squared": 1e6},
        {"within_dof": 5e-324},
        {"inverse_sizes": 1e308},
        {"window": [[10**400, 0.5, 0.0]]},
        {"window": [[1, 1e308, 0.0], [1, -1e308, 0.0]]},
        {"window": [[1, 0.5, 0.0]] * 3},
        {"window": 100.0},
        {"max_keys": True},
        {"window": [[1, 0.5, 0.25]]},
        {"window": [(1, 0.5, 0.0)]},
        {"within_squares": 0.5, "within_dof": 0.0},
        {"mean": 7.0},
        {"mean": -1e-3},
        {"last_update": 1},
    ],
    ids=str,
)
def test_edited_numbers_are_refused(change):
    data = filled().to_dict()
    assert HistoryState.from_dict(copy.deepcopy(data)) == filled()
    for name, value in change.items():
        target = data if name in data else data["keys"][-1]
        target[name] = value
    with pytest.raises((refbase.InputError, refbase.InputTypeError)):
        HistoryState.from_dict(data)


@pytest.mark.parametrize("field", ["window", "max_keys", "updates", "last_step", "last_update", "count"])
def test_integers_of_numpy_are_refused_as_data(field):
    data = filled().to_dict()
    place, name = {"last_update": (data["keys"][0], field), "count": (data["keys"][0]["window"][0], 0)}.get(
        field, (data, field)
    )
    place[name] = np.int64(place[name])
    with pytest.raises(refbase.InputTypeError, match=r"must be an? (integer|number)"):
        HistoryState.from_dict(data)


SCALES = st.sampled_from([0.0, 1e-320, 1e-160, 1e-30, 0.1, 1.0, 3.0, 1e16, 1e120])
GROUPS = st.lists(st.lists(st.tuples(SCALES, st.floats(-1, 1)), max_size=5), max_size=4)
DECAYS = st.sampled_from([0.0, 1e-300, 1e-160, 1e-9, 0.1, 0.95, 1 - 2**-53])


@settings(max_examples=100)
@given(st.lists(GROUPS, min_size=1, max_size=9), DECAYS, st.integers(1, 5), st.integers(0, 3))
def test_what_updates_made_is_never_refused(steps, decay, window, lead):
    """Sizes, scales and decays at which sums round, underflow or forget; an update may refuse, reading may not."""
    state = HistoryState.empty(window=window, decay=decay, max_keys=2)
    for number, step in enumerate([[]] * lead + steps):
        rewards = [0.0, *(scale * part for group in step for scale, part in group)]
        groups = [9, *(k for k, group in enumerate(step) for _ in group)]
        valid, keys = [k < 9 for k in groups], [k % 3 for k in groups]
        with suppress(refbase.InputError):
            state = update_history(state, rewards, groups, valid, keys, number)
        assert HistoryState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
        assert HistoryState(state.window, state.decay, 2, state.updates, state.last_step, dict(state.keys)) == state
