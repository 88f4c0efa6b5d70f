"""Which rows go into which mini-batch: whole groups where they fit."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

__all__ = ["pack_groups"]


def pack_groups(
    groups: Sequence[Hashable],
    sessions: Sequence[Hashable],
    filler: Sequence[bool],
    n_batches: int,
    seed: int | None = None,
) -> list[list[int]]:
    """Rows of `n_batches` mini-batches of equal size, with as few groups apart as a simple rule gets.

    A group that two mini-batches share is two smaller groups to a loss that needs the group's mean, and a
    group of one teaches nothing. Largest groups go first, each to the fullest mini-batch it fits in; what
    fits nowhere is spread over the emptiest ones, sessions in one piece where possible and never a single
    rollout left over where it can be helped.

    Parameters
    ----------
    groups, sessions
        (N,) labels of each row; a session belongs to one group.
    filler
        (N,) padding rows, which go wherever there is room.
    n_batches
        Must divide N.
    seed
        Shuffles the order of groups of equal size; None keeps the order of first appearance.

    Returns
    -------
    list of list of int
        Rows of each mini-batch, ascending.
    """
    n = len(groups)
    if n % n_batches:
        raise ValueError(f"pack_groups: {n_batches} mini-batches do not divide {n} rows")
    tree: dict[Hashable, dict[Hashable, list[int]]] = {}
    padding = []
    for row, (group, session, pad) in enumerate(zip(groups, sessions, filler, strict=True)):
        if pad:
            padding.append(row)
        else:
            tree.setdefault(group, {}).setdefault(session, []).append(row)
    whole = [list(by_session.values()) for by_session in tree.values()]
    if seed is not None:
        random.Random(seed).shuffle(whole)
    whole.sort(key=lambda pieces: -sum(map(len, pieces)))

    batches: list[list[int]] = [[] for _ in range(n_batches)]
    room = [n // n_batches] * n_batches

    def put(batch: int, rows: list[int]) -> None:
        batches[batch].extend(rows)
        room[batch] -= len(rows)

    left_over = []
    for pieces in whole:
        rows = [row for piece in pieces for row in piece]
        fitting = [batch for batch in range(n_batches) if room[batch] >= len(rows)]
        if fitting:
            put(min(fitting, key=lambda batch: room[batch]), rows)
        else:
            left_over.append(pieces)
    for pieces in left_over:
        while pieces:
            batch = max(range(n_batches), key=lambda batch: room[batch])
            taken, free = 0, room[batch]
            while taken < len(pieces) and len(pieces[taken]) <= free:
                free -= len(pieces[taken])
                taken += 1
            if len(pieces) - taken == 1 and taken > 2:
                taken -= 1
            if taken == 0:  # a session larger than any room that is left
                put(batch, pieces[0][:free])
                pieces = [pieces[0][free:], *pieces[1:]]
                continue
            put(batch, [row for piece in pieces[:taken] for row in piece])
            pieces = pieces[taken:]
    for row in padding:
        put(max(range(n_batches), key=lambda batch: room[batch]), [row])
    return [sorted(rows) for rows in batches]
