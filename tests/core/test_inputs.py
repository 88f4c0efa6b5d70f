"""What is refused, in which words, and what is accepted."""

from __future__ import annotations

import re
import warnings
from decimal import Decimal
from fractions import Fraction as F

import numpy as np
import pytest
import sympy
import torch

import refbase
from refbase import InputError, InputTypeError, rloo, validate
from refbase.catalog import TRAITS, lookup
from refbase.groups import factorise, first_unhashable

NAN, INF = float("nan"), float("inf")
SPEC_AND_KERNEL = pytest.mark.parametrize("convert", [list, torch.tensor], ids=["spec", "kernel"])


def test_errors_are_value_and_type_errors():
    assert issubclass(InputError, ValueError)
    assert issubclass(InputTypeError, TypeError)
    assert issubclass(refbase.DegenerateBatchWarning, UserWarning)


@SPEC_AND_KERNEL
def test_empty_batch(convert):
    with pytest.raises(InputError, match=r"rloo: `rewards` must hold at least one rollout; got an empty batch\. Skip"):
        rloo(convert([]), [])


@SPEC_AND_KERNEL
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_non_finite_rewards_name_rollout_and_group(convert, bad):
    with pytest.raises(InputError, match=rf"`rewards` must be finite; got {bad} at rollout 1 \(group 'q17'\)\. Pass"):
        rloo(convert([1.0, bad, bad]), ["p", "q17", "p"])
    estimate = rloo(convert([1.0, bad, 0.0]), ["p", "p", "p"], nonfinite="exclude")
    assert list(map(float, estimate.advantages)) == [1, 0, -1]
    both = rloo(convert([1.0, bad, 0.0, 7.0]), ["p"] * 4, [True, True, True, False], nonfinite="exclude")
    assert list(map(float, both.advantages)) == [1, 0, -1, 0]
    with pytest.raises(InputError, match="`nonfinite` must be one of 'raise', 'exclude'; got 'drop'"):
        rloo(convert([1.0]), ["p"], nonfinite="drop")


@SPEC_AND_KERNEL
def test_lengths_must_match(convert):
    with pytest.raises(InputError, match=r"`group_ids` must have one label per rollout \(2\); got 3 labels"):
        rloo(convert([1.0, 2.0]), ["a", "b", "c"])
    with pytest.raises(InputError, match=r"`valid` must have .*\(?2,?\)?; got .*3"):
        rloo(convert([1.0, 2.0]), ["a", "a"], convert([True, True, True]))


@SPEC_AND_KERNEL
def test_flags_are_booleans_or_zero_and_one(convert):
    rewards = convert([1.0, 2.0])
    assert list(map(float, rloo(rewards, ["a", "a"], convert([1, 1])).advantages)) == [-1, 1]
    assert list(map(float, rloo(rewards, ["a", "a"], [np.True_, np.False_]).advantages)) == [1, 0]
    for flags in (convert([1, 2]), convert([1.0, 0.5])):
        with pytest.raises(InputError, match=r"`valid` must hold booleans or 0 and 1; got (2|0\.5) at rollout 1"):
            rloo(rewards, ["a", "a"], flags)


@SPEC_AND_KERNEL
def test_labels_must_be_hashable_and_equal_themselves(convert):
    rewards = convert([1.0, 2.0, 3.0])
    with pytest.raises(InputTypeError, match="`group_ids` must hold hashable labels; got a list at rollout 2"):
        rloo(rewards, ["a", "a", ["a"]])
    with pytest.raises(InputTypeError, match="got a dict at rollout 2"):
        rloo(rewards, ["a", {}, {}], [True, False, True])
    with pytest.raises(InputError, match="`group_ids` must hold labels that equal themselves; got nan at rollout 1"):
        rloo(rewards, ["a", NAN, "a"])
    rloo(rewards, ["a", NAN, "a"], [True, False, True])  # nobody looks at the label of a masked row
    for wrong in (None, "aaa", b"aaa", 7):
        with pytest.raises(InputTypeError, match="`group_ids` must be a sequence with one entry per rollout"):
            rloo(rewards, wrong)


NAT = {
    "days": np.array(["2026-01-01", "NaT", "NaT"], dtype="datetime64[D]"),  # .tolist() gives None
    "nanoseconds": np.array(["2026-01-01", "NaT", "NaT"], dtype="datetime64[ns]"),  # .tolist() gives an int
    "a span": np.array([1, "NaT", "NaT"], dtype="timedelta64[s]"),
    "objects": [np.datetime64("2026-01-01"), np.datetime64("NaT"), np.datetime64("NaT")],
    "floats": np.array([1.0, NAN, NAN]),
    "a tensor": torch.tensor([1.0, NAN, NAN]),
}


@SPEC_AND_KERNEL
@pytest.mark.parametrize("kind", NAT)
def test_a_label_that_is_no_time_or_no_number_is_refused(convert, kind):
    """NaT != NaT: as labels, two of them are neither one prompt nor two."""
    rewards = convert([1.0, 2.0, 4.0])
    with pytest.raises(InputError, match=r"`group_ids` must hold labels that equal themselves; got .*(NaT|nan).* at"):
        rloo(rewards, NAT[kind])
    rloo(rewards, NAT[kind], [True, False, False])


@SPEC_AND_KERNEL
@pytest.mark.parametrize("unit", ["D", "ns"])
def test_times_are_labels_but_no_rewards(convert, unit):
    labels = np.array(["2026-01-01", "2026-01-02", "2026-01-01"], dtype=f"datetime64[{unit}]")
    assert list(map(float, rloo(convert([1.0, 2.0, 4.0]), labels).advantages)) == [-3, 2, 3]
    with pytest.raises(InputTypeError, match=r"one number per rollout; got .* of type datetime64 at rollout 0"):
        rloo(labels, ["a", "a", "a"])
    with pytest.raises(InputTypeError, match="of type timedelta64 at rollout 0"):
        rloo(labels - labels[0], ["a", "a", "a"])


def test_times_are_no_history_keys():
    keys = np.array(["NaT"], dtype="datetime64[D]")
    with pytest.raises(InputTypeError, match=r"`history_keys` must hold strings, ints or None; got .*NaT"):
        refbase.update_history(refbase.HistoryState.empty(), [1.0], ["a"], history_keys=keys)


@SPEC_AND_KERNEL
def test_masked_arrays_say_what_is_missing_in_their_own_way(convert):
    labels = np.ma.array([1, 2, 1], mask=[False, True, False])
    with pytest.raises(InputTypeError, match="`group_ids` must have a value in every row; got a masked array"):
        rloo(convert([1.0, 2.0, 4.0]), labels)
    with pytest.raises(InputTypeError, match="`rewards` must have a value in every row"):
        rloo(np.ma.array([1.0, 2.0], mask=[False, True]), ["a", "a"])


ROLLOUTS = [1.0, 0.0], ["a", "a"]
TENSOR = torch.tensor([1.0, 0.0])
REFUSED = {
    "empty": lambda: rloo([], []),
    "nonfinite": lambda: rloo([1.0, NAN], ["a", "a"]),
    "nonfinite option": lambda: rloo(*ROLLOUTS, nonfinite="drop"),
    "labels": lambda: rloo([1.0, 0.0], ["a"]),
    "no labels": lambda: rloo([1.0, 0.0], None),
    "set of labels": lambda: rloo([1.0, 0.0], {"a", "b"}),
    "a number of labels": lambda: rloo([1.0, 0.0], 2),
    "matrix of labels": lambda: rloo([1.0, 0.0], np.zeros((2, 1))),
    "matrix of labels for the kernel": lambda: rloo(TENSOR, torch.zeros(2, 1)),
    "unhashable label": lambda: rloo([1.0, 0.0], ["a", []]),
    "nan label": lambda: rloo([1.0, 0.0], ["a", NAN]),
    "tensor label": lambda: rloo([1.0, 0.0], ["a", torch.tensor(1)]),
    "flags": lambda: rloo(*ROLLOUTS, [True]),
    "flags of the kernel": lambda: rloo(TENSOR, ["a", "a"], torch.tensor([True])),
    "flag": lambda: rloo(*ROLLOUTS, [True, 2]),
    "flag of the kernel": lambda: rloo(TENSOR, ["a", "a"], torch.tensor([1, 2])),
    "text": lambda: rloo(["1", 0.0], ["a", "a"]),
    "complex": lambda: rloo(torch.zeros(2, dtype=torch.complex64), ["a", "a"]),
    "sparse": lambda: rloo(TENSOR.to_sparse(), ["a", "a"]),
    "matrix": lambda: rloo(torch.zeros(2, 2), ["a", "a"]),
    "rows of tokens": lambda: rloo([[1.0], [0.0]], ["a", "a"]),
    "squares": lambda: rloo([1e200, 0.0], ["a", "a"]),
    "singleton": lambda: rloo([1.0], ["a"], singletons="error"),
    "number as text": lambda: refbase.shrinkage(*ROLLOUTS, weight="0.5"),
    "number of another kind": lambda: refbase.shrinkage(*ROLLOUTS, weight=[0.5]),
    "range": lambda: refbase.shrinkage(*ROLLOUTS, weight=1.5),
    "infinite option": lambda: refbase.shrinkage(*ROLLOUTS, weight=INF),
    "choice": lambda: refbase.shrinkage(*ROLLOUTS, variant="papr"),
    "lengths": lambda: refbase.opo(*ROLLOUTS, lengths=[1]),
    "list for a tensor": lambda: refbase.gvpo_weights(TENSOR, ["a", "a"], [0.0, 0.0], TENSOR, 1.0),
    "short tensor": lambda: refbase.gvpo_weights(TENSOR, ["a", "a"], TENSOR[:1], TENSOR, 1.0),
    "state": lambda: refbase.bvblend(*ROLLOUTS, {}),
    "step": lambda: refbase.update_history(ONE, *ROLLOUTS, step=1.5),
    "negative step": lambda: refbase.update_history(ONE, *ROLLOUTS, step=-1),
    "key": lambda: refbase.update_history(ONE, *ROLLOUTS, history_keys=[1.5, 1.5]),
    "keys": lambda: refbase.update_history(ONE, *ROLLOUTS, history_keys=["x", "y"]),
    "overflow": lambda: refbase.update_history(ONE, [1e300, 0.0], ["a", "a"]),
    "window": lambda: refbase.HistoryState.empty(window=0),
    "format": lambda: refbase.HistoryState.from_dict({}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_messages_name_function_argument_requirement_value_and_remedy(case):
    with pytest.raises((InputError, InputTypeError)) as caught:
        REFUSED[case]()
    assert re.fullmatch(r"[\w.]+: `[^`]+` must .+; got .+[.)] [A-Z].+[.?]", str(caught.value), re.S), caught.value


def test_a_plug_in_puts_its_callers_names_into_messages():
    with validate.worded({"rloo": "my_rloo", "group_ids": "index"}, "config.rloo"):
        with pytest.raises(InputError, match=r"my_rloo: `index` must .*Pass config\.rloo\.singletons=raw to keep"):
            rloo([1.0], ["a"], singletons="error")
        with pytest.warns(refbase.DegenerateBatchWarning, match=r"my_rloo: each .* Check that `index` names"):
            rloo([1.0, 0.0], ["a", "b"])
        with pytest.warns(refbase.DegenerateBatchWarning, match=r"my_rloo: no rollout .* check that `index` names"):
            rloo([1.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b"])
    with pytest.raises(InputError, match=r'rloo: `group_ids` must .*Pass singletons="raw" to keep'):
        rloo([1.0], ["a"], singletons="error")


class Ambiguous:
    """Compares to something that has no truth value, as pandas.NA does."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return np.array([True, False])


def test_labels_with_an_ambiguous_comparison():
    with pytest.raises(InputError, match="hold labels that equal themselves"):
        rloo([1.0], [Ambiguous()])


class HashRaises:
    def __hash__(self):
        raise TypeError("no hash today")


def test_unhashable_labels_are_found():
    assert first_unhashable(["a", 1, None]) is None
    assert first_unhashable(["a", []]) == 1
    with pytest.raises(InputTypeError, match="got a HashRaises at rollout 0"):
        rloo([1.0], [HashRaises()])


def test_labels_keep_their_type():
    labels = ["7", "007", 7, "7", (7,), None, 7.0]
    codes, distinct = factorise(labels)
    assert codes.tolist() == [0, 1, 2, 0, 3, 4, 2]  # 7 == 7.0, as in a dict
    assert distinct == ["7", "007", 7, (7,), None]
    assert codes.dtype == np.int64
    rewards = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    expected = [-3, 2, -4, 3, 5, 6, 4]
    for values in (rewards, torch.tensor(rewards), np.array(rewards)):
        assert list(map(float, rloo(values, labels).advantages)) == expected
        assert list(map(float, rloo(values, np.array(labels, dtype=object)).advantages)) == expected


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_labels_as_arrays(dtype):
    labels = np.array([5, 1, 5], dtype=dtype)
    for values in ([1.0, 2.0, 3.0], torch.tensor([1.0, 2.0, 3.0])):
        assert list(map(float, rloo(values, labels).advantages)) == [-2, 2, 2]
        assert list(map(float, rloo(values, labels, [True, True, False]).advantages)) == [1, 2, 0]
    big = np.array([2**63, 2**63 + 1, 2**63], dtype=np.uint64)
    assert rloo(torch.tensor([1.0, 2.0, 3.0]), big).advantages.tolist() == [-2, 2, 2]


def test_labels_as_tensors():
    rewards = torch.tensor([1.0, 2.0, 3.0])
    assert rloo(rewards, torch.tensor([5, 1, 5])).advantages.tolist() == [-2, 2, 2]
    assert rloo(rewards, torch.tensor([5, 1, 5]), [True, True, False]).advantages.tolist() == [1, 2, 0]
    assert rloo([1.0, 2.0, 3.0], torch.tensor([5, 1, 5])).advantages == [-2, 2, 2]
    with pytest.raises(InputError, match=r"`group_ids` must have shape \(N,\); got a tensor of shape \(3, 1\)"):
        rloo(rewards, torch.tensor([[5], [1], [5]]))
    with pytest.raises(InputError, match=r"`group_ids` must have shape \(N,\); got a tensor of shape \(3, 1\)"):
        rloo([1.0, 2.0, 3.0], torch.tensor([[5], [1], [5]]))
    with pytest.raises(InputError, match=r"finite; got inf at rollout 1 \(group 1\)"):
        rloo(torch.tensor([1.0, INF]), torch.tensor([5, 1]))


def test_rewards_of_two_dimensions_are_never_flattened():
    with pytest.raises(InputError, match=r"`rewards` must have shape \(N,\), one number per rollout; .* \(2, 2\)"):
        rloo(torch.zeros(2, 2), ["a", "b"])
    with pytest.raises(InputError, match=r"`rewards` must have shape \(N,\); got an array of shape \(2, 2\)"):
        rloo(np.zeros((2, 2)), ["a", "b"])
    for row in ([1.0, 0.0], (1.0, 0.0), np.zeros(2)):
        with pytest.raises(InputError, match="Pass one number per rollout; sum token-level rewards first"):
            rloo([row, row], ["a", "b"])


def test_rewards_must_be_numbers():
    with pytest.raises(InputTypeError, match="must hold one number per rollout; got '1' of type str at rollout 1"):
        rloo([0.0, "1"], ["a", "a"])
    with pytest.raises(InputTypeError, match="got None of type NoneType at rollout 0"):
        rloo([None, 1.0], ["a", "a"])
    with pytest.raises(InputTypeError, match="`rewards` must be real; got dtype torch"):
        rloo(torch.zeros(1, dtype=torch.complex64), ["a"])
    with pytest.raises(InputTypeError, match="`rewards` must be a sequence"):
        rloo(None, ["a"])
    assert rloo(["text", 1.0, 0.0], ["a"] * 3, [False, True, True]).advantages == [0, 1, -1]


def test_number_types_come_back():
    third = F(1, 3)
    assert rloo([third, F(0)], ["a", "a"]).advantages == [third, -third]
    assert rloo([1, True], ["a", "a"]).advantages == [0.0, 0.0]
    assert rloo([np.float32(1.5), np.int64(1)], ["a", "a"]).advantages == [0.5, -0.5]
    x = sympy.Symbol("x")
    assert rloo([x, sympy.Integer(0)], ["a", "a"]).advantages == [x, -x]
    with pytest.raises(InputError, match="must be finite"):
        rloo([sympy.oo, sympy.Integer(0)], ["a", "a"])


ONE = refbase.update_history(refbase.HistoryState.empty(), [1.0, 0.0], ["a", "a"])
DECIMALS = {
    "rewards": lambda d: rloo([d, 1.0], ["a", "a"]),
    "rewards in an array": lambda d: rloo(np.array([d, d], dtype=object), ["a", "a"]),
    "rewards of a history": lambda d: refbase.update_history(ONE, [d, d], ["a", "a"]),
    "eps": lambda d: refbase.grpo([1.0, 0.0], ["a", "a"], eps=d),
    "weight": lambda d: refbase.shrinkage([1.0, 0.0], ["a", "a"], weight=d),
    "weight of the kernel": lambda d: refbase.shrinkage(torch.tensor([1.0, 0.0]), ["a", "a"], weight=d),
    "min_scale": lambda d: refbase.bvblend([1.0, 0.0], ["a", "a"], ONE, min_scale=d),
    "lengths": lambda d: refbase.opo([1.0, 0.0], ["a", "a"], lengths=[d, 1]),
    "log_probs": lambda d: refbase.gvpo_weights([1.0, 0.0], ["a", "a"], [d, 0.0], [0.0, 0.0], 1.0),
    "beta": lambda d: refbase.gvpo_weights([1.0, 0.0], ["a", "a"], [0.0, 0.0], [0.0, 0.0], d),
    "decay": lambda d: refbase.HistoryState.empty(decay=d),
}


@pytest.mark.parametrize("place", DECIMALS)
def test_decimals_are_no_rewards_and_no_options(place):
    """They mix neither with floats, which options and histories hold, nor with Fractions."""
    with pytest.raises(InputTypeError, match=r"got Decimal\('0\.5'\) of type Decimal.*Fraction\(\.\.\.\)"):
        DECIMALS[place](Decimal("0.5"))


@SPEC_AND_KERNEL
def test_decimals_are_labels_like_any_other(convert):
    labels = [Decimal("1.50"), Decimal("1.5"), 1.5, "1.5"]
    assert list(map(float, rloo(convert([1.0, 0.0, 0.5, 4.0]), labels).advantages)) == [0.75, -0.75, 0.0, 4.0]
    with pytest.raises(InputError, match=r"equal themselves; got Decimal\('NaN'\) at rollout 0"):
        rloo(convert([1.0]), [Decimal("nan")])


def test_arrays_come_back():
    for dtype, expected in ((np.float32, np.float32), (np.int64, np.float64), (bool, np.float64)):
        estimate = rloo(np.array([1, 0, 1], dtype=dtype), ["a", "a", "b"])
        assert isinstance(estimate.advantages, np.ndarray)
        assert estimate.advantages.dtype == estimate.local.dtype == expected
        assert estimate.advantages.tolist() == [1, -1, 1]
        assert np.isnan(estimate.local[2])
        assert estimate.target is None
    exact = rloo(np.array([F(1, 3), F(0), F(5)], dtype=object), ["a", "a", "b"])
    assert exact.advantages.dtype == object
    assert exact.advantages.tolist() == [F(1, 3), F(-1, 3), 5]
    assert exact.local[2] is None
    weights = refbase.gvpo_weights(np.array([1.0, 0.0]), ["a", "a"], [0.0, 0.0], [0.0, 0.0], 1.0)
    assert isinstance(weights, np.ndarray)
    assert refbase.gvpo_loss(np.array([1.0, 0.0]), ["a", "a"], [0.0, 0.0], [0.0, 0.0], 1.0) == 0.25


def test_iterables_are_read_once():
    assert rloo((r for r in [1.0, 0.0]), (label for label in "aa"), (f for f in [1, 1])).advantages == [1, -1]


@SPEC_AND_KERNEL
def test_unknown_options_name_the_nearest(convert):
    with pytest.raises(InputTypeError, match="rloo: unknown option 'singleton'; did you mean 'singletons'"):
        rloo(convert([1.0]), ["a"], singleton="raw")
    with pytest.raises(InputTypeError, match=r"rloo: unknown option 'zzz'; Valid: "):
        rloo(convert([1.0]), ["a"], zzz=1)


def test_unknown_estimators_name_the_nearest():
    assert lookup("rloo").name == "rloo"
    with pytest.raises(InputError, match="unknown estimator 'shrinkage_j'; did you mean 'shrinkage_js'"):
        lookup("shrinkage_j")
    with pytest.raises(InputError, match=r"unknown estimator \['rloo'\]"):
        lookup(["rloo"])


@SPEC_AND_KERNEL
def test_a_batch_of_groups_of_one_warns(convert):
    with pytest.warns(refbase.DegenerateBatchWarning, match="each of the 4 valid rollouts is alone in its group"):
        rloo(convert([1.0, 0.0, 1.0, 0.0]), ["u1", "u2", "u3", "u4"])
    with pytest.warns(refbase.DegenerateBatchWarning) as caught:  # that says it all
        rloo(convert([1.0, 0.0]), ["u1", "u2"], singletons="zero")
    assert [str(warning.message).count("alone in its group") for warning in caught] == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rloo(convert([1.0]), ["u1"])
        rloo(convert([1.0, 0.0, 0.0]), ["u1", "u1", "u2"])


@SPEC_AND_KERNEL
def test_groups_without_a_signal_in_a_batch_with_one_warn(convert):
    with pytest.warns(refbase.DegenerateBatchWarning, match="differ between the groups but within none"):
        rloo(convert([1.0, 1.0, 0.0, 0.0]), ["t0", "t0", "t1", "t1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rloo(convert([1.0, 1.0, 1.0, 1.0]), ["t0", "t0", "t1", "t1"])
        rloo(convert([0.0, 0.0, 0.0]), ["t0", "t0", "t1"])
        rloo(convert([1.0, 0.0, 0.0, 0.0]), ["t0", "t0", "t1", "t1"])


@SPEC_AND_KERNEL
@pytest.mark.parametrize("name", [name for name, entry in refbase.CATALOG.items() if not entry.needs_history])
def test_all_rows_masked(convert, name):
    estimate = getattr(refbase, name)(convert([1.0, NAN]), ["a", "b"], [False, False])
    for part in (estimate.advantages, estimate.baseline, estimate.weight):
        assert list(map(float, part)) == [0, 0]


@pytest.mark.parametrize("name", list(refbase.CATALOG))
def test_extreme_but_representable_rewards_stay_finite(name):
    state = (refbase.HistoryState.empty(),) if refbase.CATALOG[name].needs_history else ()
    for scale in (1e300, 1e-300, 5e-324):
        rewards = torch.tensor([1.0, 0.0, 0.5, 0.25, 1.0, 0.75], dtype=torch.float64) * scale
        estimate = getattr(refbase, name)(rewards, list("aabbcc"), *state)
        assert estimate.advantages.isfinite().all()


def test_catalogue_rows_name_known_traits_and_sources():
    for entry in refbase.CATALOG.values():
        assert entry.traits <= set(TRAITS)
        assert entry.citation
        assert entry.docs == f"docs/estimators/{entry.name}.md"


# --- numbers and containers at the edge --------------------------------------------------------------------


@pytest.mark.parametrize("rewards", [[1j, 0, 1], np.array([1j, 0, 1]), [10**400, 0, 1], {1: 2, 3: 4, 5: 6}, {1, 2, 3}])
def test_rewards_that_are_no_numbers_in_order(rewards):
    with pytest.raises((InputError, InputTypeError), match="rewards"):
        refbase.rloo(rewards, ["a", "a", "b"])


def test_fractions_of_any_size():
    huge = F(10**400)
    assert refbase.rloo([huge, F(0)], ["a", "a"]).advantages == [huge, -huge]


@pytest.mark.parametrize("factor", [2e154, 1e-160, 1e308])
@pytest.mark.parametrize("name", ["rloo", "grpo", "shrinkage", "shrinkage_js"])
def test_floats_that_cannot_be_squared_go_to_the_kernel(name, factor):
    rewards = [factor * x for x in (1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0)]
    with pytest.raises(InputError, match="largest magnitude"):
        getattr(refbase, name)(rewards, list("aabbccdd"))
    assert (
        getattr(refbase, name)(torch.tensor(rewards, dtype=torch.float64), list("aabbccdd")).advantages.isfinite().all()
    )


def test_group_ids_whose_order_or_identity_is_no_label():
    with pytest.raises(InputTypeError, match="sequence"):
        refbase.rloo([1.0, 0.0], {"a", "b"})
    with pytest.raises(InputTypeError, match="tensor at rollout 0"):
        refbase.rloo([1.0, 0.0, 1.0], list(torch.tensor([0, 0, 1])))


@pytest.mark.parametrize(
    "ids", [[7, 7, 2, 2], torch.tensor([7, 7, 2, 2]), np.array([7, 7, 2, 2])], ids=lambda v: type(v).__name__
)
def test_group_losses_follow_the_first_appearance_of_labels(ids):
    R, L, Q = torch.tensor([1.0, 0.0, 3.0, 1.0]), torch.tensor([-1.0, -2.0, -3.0, -4.0]), torch.full((4,), -2.0)
    assert refbase.gvpo_loss(R, ids, L, Q, 0.5, reduction="none").tolist() == [0.0625, 0.5625]


def test_gvpo_loss_of_integer_log_probs():
    R, L, Q = torch.tensor([1.0, 0.0]), torch.tensor([-1, -2]), torch.tensor([-2, -2])
    assert float(refbase.gvpo_loss(R, ["a", "a"], L, Q, 0.5)) == 0.0625


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int64, torch.float32, torch.float8_e4m3fn]
)
def test_flags_of_any_dtype(dtype):
    flags = torch.tensor([1, 1, 0], dtype=torch.float32).to(dtype)
    assert refbase.rloo(torch.tensor([1.0, 0.0, 5.0]), ["a"] * 3, flags).advantages.tolist() == [1.0, -1.0, 0.0]


def test_options_that_are_no_strings_and_sparse_rewards():
    with pytest.raises(InputError, match="nonfinite"):
        refbase.rloo([1.0, 0.0], ["a", "a"], nonfinite=np.array(["raise", "exclude"]))
    with pytest.raises(InputTypeError, match="dense"):
        refbase.rloo(torch.tensor([1.0, 0.0]).to_sparse(), ["a", "a"])
