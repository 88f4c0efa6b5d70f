"""The memory of BV-Blend in the process that computes advantages.

verl calls an estimator with a batch and nothing else: no step id, and no promise to call once per step. A
memory that changed on every call would count a retried step twice, and would let a retry see itself. So a
batch is only *noted* when its advantages are computed, and enters the state when the next, different batch
arrives, or when a snapshot is taken. A step then reads earlier steps only, and reading twice is reading once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refbase import HistoryState, update_history

__all__ = ["History", "history_for", "remembered", "reset", "restore", "snapshot"]


@dataclass(frozen=True)
class _Batch:
    """What of a batch enters the state."""

    rewards: Sequence[float]
    group_ids: Sequence[Hashable]
    keys: Sequence[Any] | None
    step: int | None

    def repeats(self, other: _Batch) -> bool:
        """Whether both are one step: by its id, or the same rollouts in any order.

        verl's group labels are fresh for each prompt it draws, so that equal rewards alone do not make two
        steps one.
        """
        if self.step is not None or other.step is not None:
            return self.step == other.step
        try:
            return Counter(zip(self.group_ids, self.rewards, strict=True)) == Counter(
                zip(other.group_ids, other.rewards, strict=True)
            )
        except TypeError:  # labels that cannot be hashed: the estimator says so
            return False


class History:
    """One `HistoryState`, and the batch that has not entered it yet."""

    def __init__(self, **memory: Any) -> None:
        self._state = HistoryState.empty(**memory)
        self._noted: _Batch | None = None

    def read(
        self,
        estimate: Callable[[HistoryState], Any],
        *,
        rewards: Sequence[float],
        group_ids: Sequence[Hashable],
        keys: Sequence[Any] | None = None,
        step: int | None = None,
    ) -> Any:
        """``estimate(state before this batch)``, and note the batch.

        Parameters
        ----------
        estimate : callable
            Takes a `HistoryState`. If it raises, nothing is noted.
        rewards, group_ids, keys : sequences
            The valid rows of the batch.
        step : int, optional
            Identifies the batch; without it, its labels and rewards do.
        """
        batch = _Batch(tuple(rewards), tuple(group_ids), None if keys is None else tuple(keys), step)
        if self._noted is not None and not batch.repeats(self._noted):
            self._state, self._noted = self.current, None
        result = estimate(self._state)
        self._noted = batch
        return result

    @property
    def before(self) -> HistoryState:
        """The state that the last batch was given."""
        return self._state

    @property
    def current(self) -> HistoryState:
        """The state after everything seen so far."""
        batch = self._noted
        if batch is None or not batch.rewards:
            return self._state
        return update_history(self._state, batch.rewards, batch.group_ids, None, batch.keys, batch.step)

    def snapshot(self) -> dict[str, Any]:
        """`current` as JSON-able data."""
        return self.current.to_dict()

    def restore(self, data: Mapping[str, Any]) -> None:
        """Continue from a snapshot; raises, and changes nothing, if ``data`` is not one."""
        self._state, self._noted = HistoryState.from_dict(data), None


_histories: dict[tuple[tuple[str, Any], ...], History] = {}


def history_for(memory: Mapping[str, Any]) -> History:
    """The history of this process for these arguments of `HistoryState.empty`; made at the first call."""
    key = tuple(sorted(memory.items()))
    if key not in _histories:
        _histories[key] = History(**memory)
    return _histories[key]


def remembered(memory: Mapping[str, Any]) -> int:
    """Keys in the history that the batch read last was given."""
    return len(history_for(memory).before.keys)


def reset() -> None:
    """Forget everything."""
    _histories.clear()


def snapshot(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint has to hold for this history."""
    return history_for(memory).snapshot()


def restore(memory: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Put a snapshot back; its window, decay and key limit must be those configured."""
    state = HistoryState.from_dict(data)
    for name, value in memory.items():
        if getattr(state, name) != value:
            from refbase import validate

            got = f"{value!r}, while the saved history has {getattr(state, name)!r}"
            remedy = "Set it back, or start from a checkpoint without a history."
            validate.reject("algorithm.bvblend", name, "be what it was when the history was saved", got, remedy)
    history_for(memory).restore(data)
