"""Mini-batches of whole groups."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.packing import pack_groups


def pack(sizes, n_batches, seed=None, session_rows=1):
    """Groups of these sizes (in sessions), padded; returns the mini-batches as lists of (group, session)."""
    rows = [(g, s) for g, size in enumerate(sizes) for s in range(size) for _ in range(session_rows)]
    padding = -len(rows) % n_batches
    groups = [g for g, _ in rows] + ["pad"] * padding
    sessions = [*rows, *range(padding)]
    filler = [False] * len(rows) + [True] * padding
    batches = pack_groups(groups, sessions, filler, n_batches, seed)
    assert sorted(row for batch in batches for row in batch) == list(range(len(groups)))
    assert {len(batch) for batch in batches} == {len(groups) // n_batches}
    return [[(groups[row], sessions[row]) for row in batch if groups[row] != "pad"] for batch in batches]


def test_equal_groups_stay_whole():
    for batch in pack([4] * 8, 4):
        assert sorted(Counter(group for group, _ in batch).values()) == [4, 4]


def test_ragged_groups_that_fit_stay_whole():
    batches = pack([5, 3, 4, 4, 6, 2], 3)
    assert sorted(tuple(sorted(Counter(g for g, _ in batch).values())) for batch in batches) == [(2, 6), (3, 5), (4, 4)]


def test_a_group_that_must_be_split_leaves_no_singleton():
    batches = pack([6, 5, 5], 2)
    assert all(n > 1 for batch in batches for n in Counter(g for g, _ in batch).values())


def test_a_group_larger_than_a_mini_batch():
    batches = pack([12], 3)
    assert [len(batch) for batch in batches] == [4, 4, 4]


def test_sessions_stay_in_one_piece():
    batches = pack([5, 3], 2, session_rows=2)
    homes = {}
    for number, batch in enumerate(batches):
        for item in batch:
            homes.setdefault(item, set()).add(number)
    assert all(len(places) == 1 for places in homes.values())


def test_seed_shuffles_groups():
    first, again, other = pack([4] * 16, 4, seed=1), pack([4] * 16, 4, seed=1), pack([4] * 16, 4, seed=2)
    assert first == again != other
    assert all(n == 4 for batch in other for n in Counter(g for g, _ in batch).values())


def test_number_of_batches_must_divide():
    with pytest.raises(ValueError, match="do not divide"):
        pack_groups(["a"] * 3, [0, 1, 2], [False] * 3, 2)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 5),
    st.none() | st.integers(0, 3),
    st.integers(1, 3),
)
def test_always_a_partition(sizes, n_batches, seed, session_rows):
    pack(sizes, n_batches, seed, session_rows)
