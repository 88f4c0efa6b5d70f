"""What the BV-Blend spec functions read from a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refbase.history import HistoryState, KeyHistory, check_state, group_keys
from refbase.spec._groups import Group


def keyed_history(
    where: str, groups: Sequence[Group], state: HistoryState, history_keys: Any, n_rows: int
) -> list[KeyHistory | None]:
    """Each group's history, None where its key is cold."""
    check_state(where, state)
    kept = [row for group in groups for row in group.rows]
    codes = [code for code, group in enumerate(groups) for _ in group.rows]
    keys = group_keys(where, history_keys, kept, codes, len(groups), n_rows)
    return [state.keys.get(key) for key in keys]
