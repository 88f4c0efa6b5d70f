"""What BV-Blend remembers: decayed statistics of earlier steps per history key, as an immutable value.

Estimators read a state, `update_history` returns a new one. Statistics are kept as counts, means and
squared deviations from the mean, merged step by step, so that no offset costs digits and a constant stream
has exactly zero spread.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NoReturn

from refbase import validate

Key = str | int | None

FORMAT, VERSION = "refbase.history", 1


@dataclass(frozen=True)
class WindowEntry:
    """Group means of one of the key's own steps."""

    count: int
    mean: Any
    squares: Any  # sum of squared deviations from `mean`


@dataclass(frozen=True)
class KeyHistory:
    """Decayed sums over the groups of one key; a group of age a steps of this key has weight decay**a."""

    groups: Any  # sum of weights, N
    groups_squared: Any  # sum of squared weights
    mean: Any  # weighted mean of the group means, H
    between_squares: Any  # weighted squared deviations of the group means from `mean`
    within_squares: Any  # weighted sum over groups of sum_j (r_ij - mu_i)^2
    within_dof: Any  # weighted sum of (m_i - 1)
    inverse_sizes: Any  # weighted sum of 1/m_i
    spread: Any  # weighted sum of mean_j (r_ij - H)^2, each with the H of its time
    window: tuple[WindowEntry, ...]  # oldest first
    last_update: int  # the state's update count when this key was last written

    @property
    def effective_groups(self) -> Any:
        """Kish's effective sample size of the decayed weights, N^2 / sum of squared weights."""
        return self.groups * self.groups / self.groups_squared

    @property
    def window_variance(self) -> Any:
        """Variance (ddof 0) of the group means in the window, sigma_u^2."""
        count = sum(entry.count for entry in self.window)
        centre = self.window[0].mean
        offset = _sum([e.count * (e.mean - centre) for e in self.window]) / count
        gaps = [e.mean - centre - offset for e in self.window]
        squares = [e.squares + e.count * gap * gap for e, gap in zip(self.window, gaps, strict=True)]
        return _sum(squares) / count

    @property
    def within_variance(self) -> Any:
        """Pooled within-group variance; 0 while no group of two was seen."""
        return self.within_squares / self.within_dof if self.within_dof else self.within_squares

    @property
    def spread_variance(self) -> Any:
        """Decayed mean of mean_j (r_ij - H)^2, sigma_H^2."""
        return self.spread / self.groups

    @property
    def mean_noise(self) -> Any:
        """Sampling variance that an average group mean carries: within variance times mean 1/m."""
        return self.within_variance * self.inverse_sizes / self.groups

    @property
    def between_variance(self) -> Any:
        """Spread of the true group means: unbiased variance of the observed ones less their noise, or 0."""
        dof = self.groups - self.groups_squared / self.groups
        if dof <= 0:
            return self.between_squares * 0
        estimate = self.between_squares / dof - self.mean_noise
        return estimate if estimate > 0 else estimate * 0

    @property
    def mean_variance(self) -> Any:
        """Variance of `mean` as an estimate of the mean of means."""
        return (self.between_variance + self.mean_noise) / self.effective_groups

    def drift(self, decay: Any) -> Any:
        """Squared error of `mean` beyond `mean_variance`: how far the level of the prompts has moved away from it.

        Over the steps in the window, with `decay` as weight: the mean of e^2 - k V, where e is a step's mean less
        the decayed mean of the steps before it, V the variance of group means by that step alone (within it, and
        from the step before) and k V what e^2 would be on average if nothing moved. What is within two standard
        errors of that mean counts as none; beyond, t (1 - 4 var/t^2). At most `between_variance`, which moves too.
        """
        zero = self.between_squares * 0
        gaps = []
        entry = self.window[0]
        groups, squared, centre = zero + entry.count, zero + entry.count, entry.mean
        for before, entry in pairwise(self.window):
            surprise, jump, n = entry.mean - centre, entry.mean - before.mean, entry.count
            change = jump * jump * before.count * n / (before.count + n)  # V on average, like a square of one freedom
            variance = (3 * entry.squares + 2 * change) / (3 * n - 1)  # neighbouring changes share a mean: 2/3 each
            gaps.append(surprise * surprise - (squared / (groups * groups) + (zero + 1) / n) * variance)
            groups, squared = decay * groups + n, decay * decay * squared + n
            centre = centre + surprise * (n / groups)
        if len(gaps) < 2:
            return zero
        weights = [zero + 1]
        while len(weights) < len(gaps):
            weights.insert(0, decay * weights[0])
        mass, mass2 = _sum(weights), _sum([w * w for w in weights])
        average = _sum([w * gap for w, gap in zip(weights, gaps, strict=True)]) / mass
        freedom = mass * mass - mass2  # Bessel's correction of a weighted mean's variance, times mass^2
        if average <= 0 or freedom <= 0:
            return zero
        ratios = [w * (gap / average - 1) for w, gap in zip(weights, gaps, strict=True)]
        kept = 1 - 4 * _sum([r * r for r in ratios]) / freedom
        if kept <= 0:
            return zero
        moved, seen = average * kept, self.between_variance
        return moved if moved < seen else seen


@dataclass(frozen=True)
class HistoryState:
    """State of the estimators that read a history: one `KeyHistory` per history key, and how to update them.

    `empty` and `update_history` make states. Built directly, or read with `from_dict`, one is checked as a whole.

    Parameters
    ----------
    window
        Number of a key's own steps that its window variance covers, at least 1.
    decay
        Weight in [0, 1) that a step keeps at the key's next step.
    max_keys
        Keys kept at most; the least recently updated go first, ties of one step in the order of type name
        and ``repr`` of the key.
    updates
        Number of updates applied.
    last_step
        Largest step id seen; `update_history` ignores ids up to it.

    Raises
    ------
    InputError, InputTypeError
        A part of the wrong type, or outside the range that updates can reach; the message names the field.

    Examples
    --------
    >>> state = HistoryState.empty(decay=0.5)
    >>> state = update_history(state, [1.0, 0.0, 0.0, 0.0], ["a", "a", "b", "b"], step=1)
    >>> state.keys[None].mean, state.keys[None].groups
    (0.25, 2.0)
    >>> state is update_history(state, [1.0, 1.0], ["c", "c"], step=1)
    True
    >>> HistoryState.from_dict(state.to_dict()) == state
    True
    """

    window: int
    decay: Any
    max_keys: int
    updates: int = 0
    last_step: int | None = None
    _keys: dict[Key, KeyHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from refbase._history_format import check_parts

        check_parts(self.window, self.decay, self.max_keys, self.updates, self.last_step, self._keys)
        # NumPy's numbers are not JSON's; an int decay is exact; and the caller's dictionary stays his.
        last_step = None if self.last_step is None else int(self.last_step)
        decay = self.decay if isinstance(self.decay, int) else validate.plain_number(self.decay)
        self._set(int(self.window), decay, int(self.max_keys), int(self.updates), last_step, dict(self._keys))

    def _set(self, *values: Any) -> HistoryState:
        for part, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, part.name, value)
        return self

    @classmethod
    def _of(cls, *values: Any) -> HistoryState:
        """A state of parts that are known to be good: checking all keys again at each step would take seconds."""
        return object.__new__(cls)._set(*values)

    @classmethod
    def empty(cls, window: int = 100, decay: Any = 0.95, max_keys: int = 65536) -> HistoryState:
        """A state without history.

        Raises
        ------
        InputError, InputTypeError
            `decay` outside [0, 1); `window` or `max_keys` not an integer of at least 1.
        """
        return cls(window, decay, max_keys)

    @property
    def keys(self) -> Mapping[Key, KeyHistory]:
        """Read-only view of the histories by key."""
        return MappingProxyType(self._keys)

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON-able data, equal for equal states; floats survive JSON bit for bit."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "window": self.window,
            "decay": _plain(self.decay),
            "max_keys": self.max_keys,
            "updates": self.updates,
            "last_step": self.last_step,
            "keys": [{"key": key, **_key_to_dict(self._keys[key])} for key in sorted(self._keys, key=_canonical)],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HistoryState:
        """The state that `to_dict` described.

        Raises
        ------
        InputError, InputTypeError
            A foreign format or version, a missing or additional field, a value of the wrong type or outside the
            range that updates can reach, a repeated key. The message names the field.
        """
        from refbase._history_format import read_state

        return read_state(data)


def update_history(
    state: HistoryState,
    rewards: Any,
    group_ids: Sequence[Hashable],
    valid: Any = None,
    history_keys: Sequence[Key] | None = None,
    step: int | None = None,
    *,
    nonfinite: str = "raise",
) -> HistoryState:
    """The state after one training step.

    Call it once per step, after the advantages of the step are computed: what an estimator reads at step t
    then holds earlier steps only, which own-reward independence needs.

    Parameters
    ----------
    state
        The state before the step; it is not changed.
    rewards, group_ids, valid
        The step's batch, as for the estimators; tensors or sequences.
    history_keys
        (N,) strings, ints or None: what each rollout's prompt is remembered under. All valid rollouts of a
        group must have the same key. By default there is one key, None.
    step
        Id of the trainer's step, growing. A step whose id is not larger than the last one seen changes
        nothing, so retries count once (their batch is not even looked at). None always counts.

    Returns
    -------
    HistoryState
        For each key in the batch, with decay d and n_t groups: N <- d*N + n_t, and likewise the sums of
        group means and their squares, within-group squares, degrees of freedom, 1/m_i and squared
        deviations from H.

    Notes
    -----
    Sums over a step are correctly rounded (``math.fsum``), so a state does not depend on the order of rows,
    groups or keys, to the last bit. At a key's first step there is no earlier H to measure the spread from;
    the step's own mean stands in.
    """
    where = "update_history"
    check_state(where, state)
    if step is not None:
        validate.check_integer(where, "step", step, 0)
        step = int(step)
        if state.last_step is not None and step <= state.last_step:
            return state
    rows = validate.read_rows(where, rewards, group_ids, valid, nonfinite)
    keys = group_keys(where, history_keys, rows.kept, rows.codes, len(rows.labels), rows.total)
    members: list[list[Any]] = [[] for _ in rows.labels]
    for code, value in zip(rows.codes, rows.values, strict=True):
        members[code].append(value)
    by_key: dict[Key, list[list[Any]]] = {}
    for key, group in zip(keys, members, strict=True):
        by_key.setdefault(key, []).append(group)

    count = state.updates + 1
    histories = dict(state._keys)
    for key, groups in by_key.items():
        place = f"the history of key {key!r}"
        try:
            histories[key] = _advance(histories.get(key), groups, state, count)
        except OverflowError:  # a Fraction met a float, such as the decay
            reject_overflow(where, place)
        check_usable(where, place, histories[key])
    if len(histories) > state.max_keys:
        oldest = sorted(histories, key=lambda key: (histories[key].last_update, *_canonical(key)))
        for key in oldest[: len(histories) - state.max_keys]:
            del histories[key]
    last_step = state.last_step if step is None else step
    return HistoryState._of(state.window, state.decay, state.max_keys, count, last_step, histories)


def check_state(where: str, state: Any) -> None:
    if not isinstance(state, HistoryState):
        remedy = "Start from refbase.HistoryState.empty()."
        validate.reject_type(where, "state", "be a HistoryState", type(state).__name__, remedy)


def group_keys(
    where: str, history_keys: Any, kept: Sequence[int], codes: Sequence[int], n_groups: int, total: int
) -> list[Key]:
    """The history key of each group, from those of its valid rows, which must agree.

    ``kept`` are the valid rows' positions among the `total` rows, ``codes`` their groups.
    """
    if history_keys is None:
        return [None] * n_groups
    listed = validate.read_per_row(where, "history_keys", history_keys, total)
    keys: list[Any] = [_UNSET] * n_groups
    for row, code in zip(kept, codes, strict=True):
        key = listed[row]
        if not (key is None or isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool))):
            got = f"{key!r} of type {type(key).__name__} at rollout {row}"
            remedy = "Convert them, for instance with str."
            validate.reject_type(where, "history_keys", "hold strings, ints or None", got, remedy)
        if key is not None:  # a subclass, such as NumPy's strings, would not come back from JSON as what it was
            key = str.__str__(key) if isinstance(key, str) else int(key)
        if keys[code] is _UNSET:
            keys[code] = key
        elif type(keys[code]) is not type(key) or keys[code] != key:
            got = f"{keys[code]!r} and {key!r} (rollout {row}) in one group"
            remedy = "Give all rollouts of a prompt the prompt's key."
            validate.reject(where, "history_keys", "be the same for all rollouts of a group", got, remedy)
    return keys


def check_usable(where: str, place: str, history: KeyHistory) -> None:
    """What estimators read of a history must be finite; floats overflow in squares of large rewards."""
    try:
        numbers = [
            history.mean,
            history.effective_groups,
            history.window_variance,
            history.within_variance,
            history.spread_variance,
            history.between_variance,
            history.mean_variance,
        ]
        usable = all(math.isfinite(value) for value in numbers if isinstance(value, (int, float)))
    except (OverflowError, ZeroDivisionError, ValueError):
        usable = False
    if not usable:
        reject_overflow(where, place)


def reject_overflow(where: str, place: str) -> NoReturn:
    remedy = "Rewards (or edited numbers) are too large or too small to be squared; rescale them."
    validate.reject(where, place, "have finite statistics", "an overflow", remedy)


_UNSET = object()


def _advance(past: KeyHistory | None, groups: Sequence[Sequence[Any]], state: HistoryState, count: int) -> KeyHistory:
    """One key's history after the groups of one step."""
    means = [_mean(group) for group in groups]
    squares = [_sum([(r - mu) * (r - mu) for r in group]) for group, mu in zip(groups, means, strict=True)]
    step_mean = _mean(means)
    step_squares = _sum([(mu - step_mean) * (mu - step_mean) for mu in means])
    reference = step_mean if past is None else past.mean
    # mean_j (r_j - H)^2 = within (ddof 0) + (mu - H)^2
    spread = _sum(
        [
            s / len(group) + (mu - reference) * (mu - reference)
            for group, s, mu in zip(groups, squares, means, strict=True)
        ]
    )
    n = step_mean * 0 + len(groups)
    within = _sum(squares)
    dof = n * 0 + sum(len(group) - 1 for group in groups)
    inverse = _sum([(n * 0 + 1) / len(group) for group in groups])
    entry = WindowEntry(len(groups), step_mean, step_squares)
    if past is None:
        return KeyHistory(n, n, step_mean, step_squares, within, dof, inverse, spread, (entry,), count)
    d = state.decay
    old = d * past.groups
    new = old + n
    gap = step_mean - past.mean
    dof = d * past.within_dof + dof
    return KeyHistory(
        groups=new,
        groups_squared=d * d * past.groups_squared + n,
        mean=past.mean + gap * (n / new),
        between_squares=d * past.between_squares + step_squares + gap * gap * (old * n / new),
        within_squares=d * past.within_squares + within if dof else within,  # a past whose dof underflowed is gone
        within_dof=dof,
        inverse_sizes=d * past.inverse_sizes + inverse,
        spread=d * past.spread + spread,
        window=(*past.window, entry)[-state.window :],
        last_update=count,
    )


def _sum(values: Sequence[Any]) -> Any:
    """Sum that does not depend on the order of floats; exact types are exact anyway."""
    if all(isinstance(value, float) for value in values):
        return math.fsum(values)
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def _mean(values: Sequence[Any]) -> Any:
    """Mean about a member, so that equal values have exactly that mean; the smallest, whatever the order."""
    anchor = min(values)
    return anchor + _sum([value - anchor for value in values]) / len(values)


def _canonical(key: Key) -> tuple[str, str]:
    return type(key).__name__, repr(key)


def _key_to_dict(history: KeyHistory) -> dict[str, Any]:
    data: dict[str, Any] = {f.name: _plain(getattr(history, f.name)) for f in fields(KeyHistory) if f.name != "window"}
    data["window"] = [[entry.count, _plain(entry.mean), _plain(entry.squares)] for entry in history.window]
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    what = "a Fraction" if isinstance(value, Fraction) else f"a {type(value).__name__}"
    validate.reject_type("HistoryState.to_dict", "state", "hold floats", what, "Exact states live in memory only.")
