"""Histories of the groups of a batch as tensors, in the batch's unit and origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from refbase.history import HistoryState, Key, KeyHistory, check_state, group_keys, reject_overflow
from refbase.kernels._segments import Batch


@dataclass(frozen=True)
class Pasts:
    """Histories by group; values of cold groups are NaN."""

    batch: Batch
    histories: list[KeyHistory | None]
    keys: list[Key] | None = None  # by group; None where all have the one key None

    @property
    def known(self) -> Tensor:
        """(G,) bool."""
        return self._tensor(lambda past: 1.0).isfinite()

    @property
    def mean(self) -> Tensor:
        """(G,) H from the batch's origin, in its unit."""
        return self._tensor(lambda past: past.mean) / self.batch.unit - self.batch.origin

    def deviation(self, read: Callable[[KeyHistory], Any]) -> Tensor:
        """(G,) root of a variance, in the caller's unit.

        Histories and the batch may differ in scale by more than a square can hold, so variances of the two are
        only ever compared by their roots.
        """
        return self._tensor(read).sqrt()

    def number(self, read: Callable[[KeyHistory], Any]) -> Tensor:
        """(G,) a quantity as it is."""
        return self._tensor(read)

    def _tensor(self, read: Callable[[KeyHistory], Any]) -> Tensor:
        # Groups share few keys as a rule, so each distinct history is read once.
        distinct = {id(past): past for past in self.histories if past is not None}
        try:
            values = {name: float(read(past)) for name, past in distinct.items()}
        except OverflowError:  # a history of Fractions, which the exact forms can use
            reject_overflow(self.batch.where, "state")
        listed = [torch.nan if past is None else values[id(past)] for past in self.histories]
        return torch.tensor(listed, dtype=torch.float64, device=self.batch.codes.device)


def read_pasts(batch: Batch, state: HistoryState, history_keys: Any) -> Pasts:
    check_state(batch.where, state)
    n_groups = batch.size.shape[0]
    if history_keys is None:
        return Pasts(batch, [state.keys.get(None)] * n_groups)
    total = batch.rows.rewards.shape[0]
    kept = range(total) if batch.rows.kept is None else batch.rows.kept.tolist()
    keys = group_keys(batch.where, history_keys, kept, batch.codes.tolist(), n_groups, total)
    return Pasts(batch, [state.keys.get(key) for key in keys], keys)
