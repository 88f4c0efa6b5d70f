"""The only place that rejects user input; every message is built here.

A message names the function, the argument, the requirement, the value with its place, and the remedy. Where a plug-in
calls for somebody who used other names, `worded` puts those into the messages.
Nothing here imports torch: tensors are recognised and checked through their own methods.
"""

from __future__ import annotations

import difflib
import math
import numbers
import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np

from refbase.groups import factorise, first_unhashable


class InputError(ValueError):
    """An argument has an unusable value or shape."""


class InputTypeError(TypeError):
    """An argument has an unusable type."""


class DegenerateBatchWarning(UserWarning):
    """The batch is legal but almost certainly not what was meant, such as one group per rollout."""


@dataclass(frozen=True)
class Rows:
    """Validated sequence input: the valid rows and the group of each."""

    values: list[Any]  # rewards of the kept rows
    kept: list[int]  # their positions in the caller's batch
    codes: list[int]  # their dense group codes
    labels: list[Hashable]  # distinct labels, by code
    total: int  # N, kept or not


@dataclass(frozen=True)
class TensorRows:
    """Validated tensor input; `codes` lie on the rewards' device."""

    values: Any  # (n_kept,) float64
    kept: Any  # (n_kept,) int64 positions in the caller's batch, or None when all rows are kept
    codes: Any  # (n_kept,) int64
    n_groups: int
    labels: list[Hashable] | None  # distinct labels by code, when they were factorised on the host
    rewards: Any  # the caller's tensor, for dtype, device and N


SQUARABLE = 1e75  # its fourth power is a float
SINGLETONS = ("raw", "zero", "error")
SHRINKAGE_VARIANTS = ("paper", "released")
BVBLEND_LOCALS = ("mean", "loo")
BVBLEND_SCALES = ("blend", "group", "none")
BVBLEND_EB_SCALES = ("none", "history")
REDUCTIONS = ("mean", "sum", "none")

#: NumPy counts both among the integers; neither is a reward.
_TIMES = (np.datetime64, np.timedelta64)

# Remedies that several messages share.
EACH = "Pass one for each rollout, invalid ones included."
ONE_EACH = "Pass one entry per rollout; sum token-level values first."
SEQUENCE = "Pass a list, an array or a tensor."
AS_TENSOR = "Convert it with torch.as_tensor."
FLAGS = "Pass booleans."


# --- messages -----------------------------------------------------------------------------------------


def closest(name: str, valid: Collection[str]) -> str:
    """', did you mean ...?' where something is near, and the list of valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Valid: {', '.join(names)}."


def unknown_name(where: str, kind: str, name: object, valid: Collection[str]) -> InputError:
    return InputError(f"{where}: unknown {kind} {name!r}; {closest(str(name), valid)}")


def reject(where: str, argument: str, requirement: str, got: str, remedy: str) -> NoReturn:
    raise InputError(_message(where, argument, requirement, got, remedy))


def reject_type(where: str, argument: str, requirement: str, got: str, remedy: str) -> NoReturn:
    raise InputTypeError(_message(where, argument, requirement, got, remedy))


def _message(where: str, argument: str, requirement: str, got: str, remedy: str) -> str:
    return f"{_name(where)}: `{_name(argument)}` must {requirement}; got {got}. {remedy}"


@dataclass(frozen=True)
class _Wording:
    names: Mapping[str, str] = field(default_factory=dict)
    options: str = ""


_OURS = _Wording()
_wording: ContextVar[_Wording] = ContextVar("refbase_wording", default=_OURS)


@contextmanager
def worded(names: Mapping[str, str], options: str) -> Iterator[None]:
    """Messages and warnings in the words of who called whoever calls us.

    Parameters
    ----------
    names
        Their names of functions and arguments, by ours.
    options
        Where they set options: ``singletons="zero"`` becomes ``<options>.singletons=zero``.
    """
    token = _wording.set(_Wording(names, options))
    try:
        yield
    finally:
        _wording.reset(token)


def _name(ours: str) -> str:
    return _wording.get().names.get(ours, ours)


def _option(name: str, value: str) -> str:
    section = _wording.get().options
    return f"{section}.{name}={value}" if section else f'{name}="{value}"'


# --- options ------------------------------------------------------------------------------------------


def check_choice(where: str, argument: str, value: object, allowed: Collection[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        near = closest(str(value), allowed)
        reject(where, argument, f"be one of {', '.join(map(repr, allowed))}", repr(value), near[0].upper() + near[1:])


def check_number(
    where: str,
    argument: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    open_low: bool = False,
    open_high: bool = False,
    remedy: str = "",
) -> None:
    """A finite real number inside the interval; numbers of any type (Fraction, sympy) are compared as they are."""
    if isinstance(value, (bool, str)) or value is None or not _is_number(value):
        got = f"{value!r} of type {type(value).__name__}"
        reject_type(where, argument, "be a real number", got, remedy or _as_number(value))
    left = "" if low is None else f"{low} {'<' if open_low else '<='} "
    right = "" if high is None else f" {'<' if open_high else '<='} {high}"
    requirement = f"be a finite number with {left}{argument}{right}" if left or right else "be a finite number"
    below = above = False
    if finite := _is_finite(value):
        below = low is not None and (value < low or (open_low and value == low))
        above = high is not None and (value > high or (open_high and value == high))
    if not finite or below or above:
        reject(where, argument, requirement, repr(value), remedy or "Pass a number that is.")


def check_integer(where: str, argument: str, value: Any, low: int, remedy: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        got = f"{value!r} of type {type(value).__name__}"
        reject_type(where, argument, "be an integer", got, remedy or "Pass a whole number.")
    if value < low:
        reject(where, argument, f"be at least {low}", repr(value), remedy or f"Pass {low} or more.")


def _as_number(value: Any) -> str:
    """What to do about something that is no number, or none that formulas can be computed with."""
    if isinstance(value, Decimal):
        return "Convert it with Fraction(...), which is exact, or with float(...)."
    if isinstance(value, str):
        return "Pass the number itself, without quotes."
    return "Pass an int, a float, a Fraction or a sympy number."


# --- batches ------------------------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    """True for a torch tensor, without importing torch."""
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "dtype")


def read_rows(where: str, rewards: Any, group_ids: Any, valid: Any = None, nonfinite: str = "raise") -> Rows:
    """Check a batch given as sequences and split it into valid rows with dense group codes."""
    check_choice(where, "nonfinite", nonfinite, ("raise", "exclude"))
    values = [plain_number(value) for value in _as_list(where, "rewards", rewards)]
    labels = _as_list(where, "group_ids", group_ids)
    _check_lengths(where, len(values), len(labels))
    keep = _read_valid(where, valid, len(values))
    kept = []
    for row, value in enumerate(values):
        if not keep[row]:
            continue
        if isinstance(value, (str, bytes)) or not _is_number(value):
            got = f"{value!r} of type {type(value).__name__} at rollout {row}"
            reject_type(where, "rewards", "hold one number per rollout", got, _as_number(value))
        if _is_finite(value):
            kept.append(row)
        elif nonfinite == "raise":
            _reject_nonfinite(where, value, row, labels[row])
    codes, distinct = _factorise(where, labels, kept)
    return Rows([values[row] for row in kept], kept, codes.tolist(), distinct, len(values))


def read_tensor_rows(
    where: str, rewards: Any, group_ids: Any, valid: Any = None, nonfinite: str = "raise"
) -> TensorRows:
    """Check a batch whose rewards are a torch tensor; the counterpart of `read_rows` for kernels."""
    check_choice(where, "nonfinite", nonfinite, ("raise", "exclude"))
    rewards = rewards.detach()
    if rewards.dim() != 1:
        got = f"a tensor of shape {tuple(rewards.shape)}"
        remedy = "Sum token-level rewards first (refbase.tokens.sequence_returns), or flatten with one label per row."
        reject(where, "rewards", "have shape (N,), one number per rollout", got, remedy)
    if rewards.is_complex():
        reject_type(where, "rewards", "be real", f"dtype {rewards.dtype}", "Pass their real part.")
    if str(rewards.layout) != "torch.strided":
        reject_type(where, "rewards", "be dense", f"layout {rewards.layout}", "Call .to_dense() first.")
    total = rewards.shape[0]
    labels = group_ids if is_tensor(group_ids) else _as_list(where, "group_ids", group_ids, keep_numpy=True)
    if is_tensor(labels) and labels.dim() != 1:
        got = f"a tensor of shape {tuple(labels.shape)}"
        reject(where, "group_ids", "have shape (N,)", got, "Flatten it to one label per rollout.")
    _check_lengths(where, total, len(labels))
    values = rewards.double()
    keep = _read_valid_tensor(where, valid, values)
    finite = values.isfinite()
    bad = ~finite if keep is None else ~finite & keep
    if bad.any():
        if nonfinite == "raise":
            row = int(bad.nonzero()[0, 0])
            _reject_nonfinite(where, values[row].item(), row, _item(labels[row]))
        keep = finite if keep is None else finite & keep
    kept = None if keep is None or bool(keep.all()) else keep.nonzero()[:, 0]
    if kept is not None:
        values = values[kept]
    codes, n_groups, distinct = _tensor_codes(where, labels, kept, values)
    return TensorRows(values, kept, codes, n_groups, distinct, rewards)


def read_per_row(where: str, argument: str, values: Any, total: int) -> list[Any]:
    """A second per-rollout sequence (lengths, log-probabilities, history keys), as a list of length N."""
    listed = _as_list(where, argument, values)
    if len(listed) != total:
        reject(where, argument, f"have one entry per rollout ({total})", f"{len(listed)} entries", EACH)
    return listed


def check_tensor_per_row(where: str, argument: str, values: Any, total: int) -> None:
    """A second per-rollout tensor must have shape (N,)."""
    if not is_tensor(values):
        got = type(values).__name__
        reject_type(where, argument, f"be a torch tensor, as `{_name('rewards')}` is one", got, AS_TENSOR)
    if tuple(values.shape) != (total,):
        reject(where, argument, f"have shape ({total},)", f"shape {tuple(values.shape)}", EACH)


def check_squarable(where: str, rows: Rows) -> None:
    """Floats whose squares (and products of squares) a float cannot hold would give wrong weights in silence."""
    largest, row = max(
        ((abs(value), row) for value, row in zip(rows.values, rows.kept, strict=True) if isinstance(value, float)),
        default=(0.0, 0),
    )
    if largest > SQUARABLE or 0 < largest < 1 / SQUARABLE:
        requirement = f"have a largest magnitude between {1 / SQUARABLE:g} and {SQUARABLE:g} as floats"
        remedy = "Pass Fractions, or a torch tensor, which is rescaled by its largest number, or rescale."
        reject(where, "rewards", requirement, f"{largest!r} at rollout {row}", remedy)


def warn_all_singletons(where: str, n_groups: int, n_rows: int) -> None:
    """A batch of groups of one is legal and never what was meant: the group key is unique per rollout."""
    if n_groups == n_rows and n_rows > 1:
        warnings.warn(
            f"{_name(where)}: each of the {n_rows} valid rollouts is alone in its group, so no group baseline exists. "
            f"Check that `{_name('group_ids')}` names the prompt and not the rollout.",
            DegenerateBatchWarning,
            stacklevel=4,
        )


def warn_no_signal(where: str) -> None:
    """All groups constant while the batch is not: legal when every prompt is solved or hopeless, else a wrong key."""
    warnings.warn(
        f"{_name(where)}: no rollout has an advantage, since the rewards differ between the groups but within none. "
        f"If this persists, check that `{_name('group_ids')}` names the prompt and not a trajectory or a reward level.",
        DegenerateBatchWarning,
        stacklevel=4,
    )


def reject_singleton(where: str, group: str) -> NoReturn:
    raw, zero = _option("singletons", "raw"), _option("singletons", "zero")
    remedy = f"Pass {raw} to keep the raw reward or {zero} for a zero advantage."
    reject(where, "group_ids", "give each group at least two valid rollouts", f"one in {group}", remedy)


def plain_number(value: Any) -> Any:
    """NumPy scalars and integers as Python numbers that divide without truncation; others as they are."""
    if isinstance(value, np.generic) and not isinstance(value, _TIMES):
        value = value.item()
    try:
        return float(value) if isinstance(value, int) else value
    except OverflowError:  # reported as every number that is no finite float
        return math.inf if value > 0 else -math.inf


# --- parts --------------------------------------------------------------------------------------------


def _as_list(where: str, argument: str, values: Any, keep_numpy: bool = False) -> Any:
    if values is None or isinstance(values, (str, bytes)):
        got = "None" if values is None else f"the string {values!r}"
        reject_type(where, argument, "be a sequence with one entry per rollout", got, SEQUENCE)
    if isinstance(values, np.ma.MaskedArray):
        remedy = "Pass a plain array, and which rollouts to leave out as flags."
        reject_type(where, argument, "have a value in every row", "a masked array", remedy)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            reject(where, argument, "have shape (N,)", f"an array of shape {values.shape}", ONE_EACH)
        if values.dtype.kind in "mM":
            return list(values)  # as Python objects, NaT is None, or a number that equals itself
        return values if keep_numpy and values.dtype.kind in "iu" else values.tolist()
    if is_tensor(values):
        if values.dim() != 1:
            reject(where, argument, "have shape (N,)", f"a tensor of shape {tuple(values.shape)}", ONE_EACH)
        return values.detach().cpu().tolist()
    if isinstance(values, (set, frozenset, Mapping)):
        remedy = "Its order is not that of the rows: pass a list."
        reject_type(where, argument, "be a sequence with one entry per rollout", type(values).__name__, remedy)
    if not isinstance(values, (Sequence, Iterable)):
        reject_type(where, argument, "be a sequence with one entry per rollout", type(values).__name__, SEQUENCE)
    listed = list(values)
    if argument == "rewards":
        for row, value in enumerate(listed):
            if isinstance(value, (list, tuple, np.ndarray)):
                remedy = "Pass one number per rollout; sum token-level rewards first."
                reject(where, argument, "have shape (N,)", f"a {type(value).__name__} at rollout {row}", remedy)
    return listed


def _check_lengths(where: str, n_rewards: int, n_labels: int) -> None:
    if n_rewards == 0:
        reject(where, "rewards", "hold at least one rollout", "an empty batch", "Skip the step instead.")
    if n_rewards != n_labels:
        reject(where, "group_ids", f"have one label per rollout ({n_rewards})", f"{n_labels} labels", EACH)


def _read_valid(where: str, valid: Any, total: int) -> list[bool]:
    if valid is None:
        return [True] * total
    flags = _as_list(where, "valid", valid)
    if len(flags) != total:
        reject(where, "valid", f"have one flag per rollout ({total})", f"{len(flags)} flags", EACH)
    for row, flag in enumerate(flags):
        if not isinstance(flag, (bool, np.bool_)) and flag not in (0, 1):
            reject(where, "valid", "hold booleans or 0 and 1", f"{flag!r} at rollout {row}", FLAGS)
    return [bool(flag) for flag in flags]


def _read_valid_tensor(where: str, valid: Any, values: Any) -> Any:
    if valid is None:
        return None
    if not is_tensor(valid):
        flags = _read_valid(where, valid, values.shape[0])
        return values.new_tensor(flags).bool()
    if valid.shape != values.shape:
        reject(where, "valid", f"have shape {tuple(values.shape)}", f"shape {tuple(valid.shape)}", EACH)
    flags = valid.to(values.device).to(values.dtype)  # the small dtypes lack most operations
    keep = flags.bool()
    if str(valid.dtype) != "torch.bool":
        odd = (keep != flags).nonzero()
        if odd.numel():
            row = int(odd[0, 0])
            reject(where, "valid", "hold booleans or 0 and 1", f"{valid[row].item()!r} at rollout {row}", FLAGS)
    return keep


def _factorise(where: str, labels: Sequence[Any], kept: Sequence[int]) -> tuple[np.ndarray, list[Hashable]]:
    """Codes of the kept rows; the labels of other rows are never looked at."""
    chosen = labels if len(kept) == len(labels) else [labels[row] for row in kept]
    try:
        codes, distinct = factorise(chosen)
    except TypeError:
        position = first_unhashable(chosen)
        if position is None:
            raise
        bad, row = chosen[position], kept[position]
        got = f"a {type(bad).__name__} at rollout {row}"
        reject_type(where, "group_ids", "hold hashable labels", got, "Use strings, ints or tuples.")
    for code, label in enumerate(distinct):
        if _differs_from_itself(label):
            row = kept[int(np.flatnonzero(codes == code)[0])]
            remedy = "Give the prompt a label, or mark the rollout as not valid."
            reject(where, "group_ids", "hold labels that equal themselves", f"{label!r} at rollout {row}", remedy)
        if is_tensor(label):  # hashed by identity: each would be a group of its own
            row = kept[int(np.flatnonzero(codes == code)[0])]
            remedy = "Pass one tensor of labels, or its .tolist()."
            reject_type(where, "group_ids", "hold plain labels", f"a tensor at rollout {row}", remedy)
    return codes, distinct


def _tensor_codes(where: str, labels: Any, kept: Any, values: Any) -> tuple[Any, int, list[Hashable] | None]:
    if is_tensor(labels) and not labels.dtype.is_floating_point:
        chosen = labels.to(values.device)
        chosen = chosen if kept is None else chosen[kept]
        distinct, codes = chosen.unique(return_inverse=True)
        return _by_appearance(codes, distinct.shape[0]), distinct.shape[0], None
    if isinstance(labels, np.ndarray):
        chosen = labels if kept is None else labels[kept.cpu().numpy()]
        distinct, first, codes = np.unique(chosen, return_index=True, return_inverse=True)
        order = np.argsort(first)  # codes follow the first appearance, as for all other labels
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return _to_device(rank[codes], values), len(distinct), distinct[order].tolist()
    listed = labels.detach().cpu().tolist() if is_tensor(labels) else labels
    rows = range(len(listed)) if kept is None else kept.tolist()
    codes, names = _factorise(where, listed, rows)
    return _to_device(codes, values), len(names), names


def _by_appearance(codes: Any, n_groups: int) -> Any:
    """Sorted codes renumbered by first appearance, as for all other labels."""
    rows = codes.new_ones(codes.shape).cumsum(0) - 1
    first = codes.new_zeros(n_groups).scatter_reduce(0, codes, rows, "amin", include_self=False)
    rank = codes.new_zeros(n_groups)
    rank[first.argsort()] = rows[:n_groups]
    return rank[codes]


def _to_device(codes: np.ndarray, like: Any) -> Any:
    import torch  # the caller passed a tensor, so torch is loaded already

    return torch.from_numpy(np.ascontiguousarray(codes)).to(like.device)


def _reject_nonfinite(where: str, value: Any, row: int, label: object) -> NoReturn:
    remedy = f"Pass {_option('nonfinite', 'exclude')} to leave such rollouts out."
    reject(where, "rewards", "be finite", f"{value!r} at rollout {row} (group {label!r})", remedy)


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        return False
    if isinstance(value, (Decimal, *_TIMES)):  # Decimal mixes neither with floats nor with Fractions
        return False
    # sympy numbers and symbols register with numbers only in part; they all know `is_finite`.
    return isinstance(value, numbers.Number) or hasattr(value, "is_finite")


def _is_finite(value: Any) -> bool:
    if isinstance(value, numbers.Rational):  # of any size
        return True
    if isinstance(value, numbers.Real):
        return math.isfinite(value)
    return value.is_finite is not False  # sympy: True, False or None (a symbol)


def _differs_from_itself(label: Any) -> bool:
    try:
        return not bool(label == label)
    except Exception:  # an ambiguous comparison, such as pandas.NA, cannot name a group
        return True
