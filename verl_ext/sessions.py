"""Rollouts that occupy several rows.

A multi-turn agent loop may turn one rollout (a *session*) into several rows, with TransferQueue keys
``{uid}_{session}_{index}``. Such a rollout has one outcome and votes once in its prompt's statistics:

* its return is that of its last row that has a valid token; a fully masked row is not there at all, so it
  neither erases the other rows nor votes, and a session without any valid token is invalid;
* with KL in the reward, the penalties of *all* its rows count: the policy's log-probability of a session is
  the sum over its rows;
* its length is the sum over its rows, and every row gets its advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from refbase.groups import factorise
from refbase.validate import InputError

__all__ = ["Sessions", "split_key"]


def split_key(key: str) -> tuple[str, str, int]:
    """``"{uid}_{session}_{index}"`` to its parts; the uid itself may hold underscores.

    >>> split_key("a_b_0_2")
    ('a_b', '0', 2)
    """
    parts = key.rsplit("_", 2)
    if len(parts) != 3 or not parts[2].isdigit():
        raise InputError(
            f"sessions: a TransferQueue key must have the form '{{uid}}_{{session}}_{{index}}'; got {key!r}. "
            "Which version of verl is this? Supported is 0.9.1."
        )
    return parts[0], parts[1], int(parts[2])


@dataclass(frozen=True)
class Sessions:
    """Which rows form which session, N rows and S sessions.

    Attributes
    ----------
    codes
        (N,) session of each row, 0 to S - 1 in order of first appearance.
    index
        (N,) place of the row within its session.
    """

    codes: Tensor
    index: Tensor

    @classmethod
    def of(cls, keys: Sequence[str]) -> Sessions:
        parts = [split_key(key) for key in keys]
        codes, _ = factorise([part[:2] for part in parts])
        return cls(torch.from_numpy(codes), torch.tensor([part[2] for part in parts], dtype=torch.int64))

    def __len__(self) -> int:
        return int(self.codes.max()) + 1 if len(self.codes) else 0

    @property
    def rows(self) -> Tensor:
        """(N,) how many rows the row's session has."""
        return self.codes.bincount(minlength=len(self))[self.codes]

    @property
    def trivial(self) -> bool:
        """Whether every row is a session of its own."""
        return len(self) == len(self.codes)

    def sum(self, values: Tensor) -> Tensor:
        """(N,) to (S,), in the values' dtype."""
        return values.new_zeros(len(self)).index_add_(0, self.codes.to(values.device), values)

    def final(self, valid: Tensor) -> Tensor:
        """(S,) the last valid row of each session; its last row if it has no valid one."""
        valid = valid.to(self.index.device, torch.bool)
        rank = self.index + valid.to(torch.int64) * (self.index.max() + 1)
        best = rank.new_full((len(self),), -1).scatter_reduce_(0, self.codes, rank, "amax")
        rows = torch.arange(len(rank))
        return rows.new_zeros(len(self)).scatter_reduce_(
            0, self.codes, torch.where(rank == best[self.codes], rows, -1), "amax"
        )

    def returns(self, returns: Tensor, valid: Tensor, scores: Tensor | None = None) -> Tensor:
        """(N,) returns of rows to (S,) returns of sessions.

        Parameters
        ----------
        returns
            (N,) return of each row, KL penalty included where the reward has one.
        valid
            (N,) whether the row has a valid token.
        scores
            (N,) the rows' returns without KL penalty. Given, the penalties of all valid rows are counted;
            otherwise the last row's return is the session's.
        """
        final = self.final(valid)
        out = returns[final]
        if scores is None:
            return out
        penalty = torch.where(valid.to(torch.bool), returns - scores, 0)
        return out + self.sum(penalty) - penalty[final]
