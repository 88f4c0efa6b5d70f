"""What a training step knows beyond what verl hands to an advantage estimator.

verl calls an estimator with rewards, mask, uids and ``config.algorithm``, nothing else. Our trainer puts a
`Step` around that call; an adapter that finds none (`current` is None) runs in a stock trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from verl_ext.sessions import Sessions

__all__ = ["Step", "active", "current"]


@dataclass
class Step:
    """One advantage computation; rows are in the order in which the estimator sees them.

    Attributes
    ----------
    number
        The trainer's global step, one id for all that happens in it.
    keys
        TransferQueue key of each row, ``{uid}_{session}_{index}``.
    metrics
        verl's metrics of the step: what is put here, every logger shows.
    sessions
        Which rows are one rollout; None if every row is its own.
    padding
        Rows that verl appended to fill the batch.
    history_keys
        What the prompt of each row is remembered under; None if there is one history for all.
    scores
        (N, T) token-level scores without the KL penalty; only with `sessions` and KL in the reward.
    exact_gvpo
        Whether the actor recomputes GVPO's weights, so that plain centred returns are what it needs.
    """

    number: int
    keys: tuple[str, ...]
    metrics: dict[str, Any] = field(default_factory=dict)
    padding: tuple[bool, ...] | None = None
    history_keys: tuple[Any, ...] | None = None
    sessions: Sessions | None = None
    scores: Tensor | None = None
    exact_gvpo: bool = False


_current: ContextVar[Step | None] = ContextVar("refbase_step", default=None)


def current() -> Step | None:
    """The step whose advantages are being computed, or None outside our trainer."""
    return _current.get()


@contextmanager
def active(step: Step) -> Iterator[Step]:
    """Make `step` the current one."""
    token = _current.set(step)
    try:
        yield step
    finally:
        _current.reset(token)
