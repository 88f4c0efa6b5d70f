"""Hypothesis strategies for batches: small, ragged, unordered, tied, constant, masked, offset.

Rewards are drawn as exact numbers and handed to a subject in its own number type. Everything shrinks towards
few rows, group ``a``, reward 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from refbase.checks.subject import Batch, Subject, smallest_group

NAMES = "abcdefghijklmnopqrstuvwxyz"


def _over(denominator: int, largest: int) -> SearchStrategy[Fraction]:
    return st.integers(-largest, largest).map(lambda k: Fraction(k, denominator))


BINARY = st.sampled_from([Fraction(0), Fraction(1)])
INTEGERS = _over(1, 4)
EIGHTHS = _over(8, 32)
TENTHS = _over(10, 30)
THIRDS = _over(3, 12)
OFFSET = st.sampled_from([Fraction(10**6), Fraction(10**6 + 1)])

#: Flags to draw from: half of the rows valid, most of them, all of them, none of them.
_SOME, _MOST = (True, False), (True, True, True, True, True, False)
MASKS = (_SOME, _MOST, (True,), _SOME, _MOST, (True,), (False,))

#: Rewards that every floating type represents, as are their small shifts and doublings.
DYADIC = (BINARY, INTEGERS, EIGHTHS)
#: With values that binary floats round, and a large offset.
ANY = (*DYADIC, TENTHS, THIRDS, OFFSET)


#: Rollouts of a group from which on it is a large one, and of the largest; runs commonly draw 8 or 16 per prompt.
WIDE, WIDEST = 7, 16
#: Groups of a batch at most.
MOST = 9


@st.composite
def group_codes(
    draw: st.DrawFn, ragged: bool = True, max_rows: int = 20, least: int = 1, several: int = 1
) -> list[int]:
    """Group codes in any row order: up to `MOST` groups, most of one to five rows and some of up to `WIDEST`.

    Parameters
    ----------
    least
        Rows of the smallest group. Groups that do not fit into `max_rows` are cut or left out.
    several
        Groups of two rows and more that there are at least, if more than one and if they fit.
    """
    most = draw(st.sampled_from([3, 1, MOST]))  # how many groups; a single one would be rare otherwise
    top = min(least + 4, max_rows)
    usual, wide = st.integers(least, top), st.integers(max(least, WIDE), max(least, WIDEST))
    if ragged:
        small = st.integers(min(max(least, 2), top), top) if draw(st.booleans()) else usual
        sizes = draw(st.lists(small, min_size=1, max_size=most))
        if several > 1:
            pair = max(least, draw(st.sampled_from([3, 2])))
            count = draw(st.integers(several, max(MOST, several)))
            alone = [least] * draw(st.integers(0, 1))  # beside groups that have a mean, one that may have none
            sizes = [*alone, *[pair] * count, *sizes][: max(MOST, several)]
        else:
            kind = draw(st.sampled_from(["any"] * 3 + ["ones"] * 2 + ["wide"]))
            if kind == "ones":
                sizes = [least] * len(sizes)
            elif kind == "wide":
                sizes[0] = draw(wide)
        sizes = _fitting(sizes, max_rows, least)
    else:
        size = draw(st.one_of(usual, usual, wide))
        size = min(size, max_rows)
        fitting = max(1, max_rows // size)
        sizes = [size] * draw(st.integers(min(several, fitting), min(max(most, several), max(5, several), fitting)))
    rows = [code for code, size in enumerate(sizes) for _ in range(size)]
    return list(draw(st.permutations(rows)))


def _fitting(sizes: Sequence[int], max_rows: int, least: int) -> list[int]:
    fitting: list[int] = []
    for size in sizes:
        size = min(size, max_rows - sum(fitting))
        if size >= least:
            fitting.append(size)
    return fitting


@st.composite
def rewards_for(draw: st.DrawFn, codes: Sequence[int], styles: Sequence[SearchStrategy[Any]]) -> list[Any]:
    """Rewards of one style, sometimes without ties; often some of the groups are constant."""
    values = draw(st.sampled_from(list(styles)))
    distinct = values in (EIGHTHS, TENTHS) and draw(st.booleans())
    rewards = draw(st.lists(values, min_size=len(codes), max_size=len(codes), unique=distinct))
    if draw(st.booleans()):
        constant = draw(st.sets(st.sampled_from(sorted(set(codes)))))
        first = {code: rewards[codes.index(code)] for code in constant}
        rewards = [first.get(code, reward) for code, reward in zip(codes, rewards, strict=True)]
    return rewards


@st.composite
def batches(
    draw: st.DrawFn,
    subject: Subject,
    *,
    styles: Sequence[SearchStrategy[Any]] = ANY,
    masks: bool = False,
    max_rows: int = 20,
    dtypes: Sequence[str] | None = None,
) -> Batch:
    """A batch that the subject's signature can express.

    Parameters
    ----------
    masks
        Also draw a validity flag per row (all rows may be invalid), if the subject takes them.
    max_rows
        But at least one group of the smallest size that the subject takes.
    dtypes
        By default the subject's.
    """
    rows = max(min(max_rows, subject.max_rows), subject.min_group)
    codes = draw(group_codes(subject.ragged, rows, subject.min_group, subject.several))
    rewards = draw(rewards_for(codes, styles))
    valid = None
    if masks and subject.masks:
        flags = draw(st.sampled_from(MASKS))
        valid = tuple(draw(st.lists(st.sampled_from(flags), min_size=len(codes), max_size=len(codes))))
    dtype = draw(st.sampled_from(list(dtypes or subject.dtypes)))
    batch = Batch(tuple(rewards), tuple(NAMES[code] for code in codes), valid, dtype)
    assume(smallest_group(batch) >= subject.min_group and len(batch.rows) >= subject.min_valid)
    return batch


def reordered(batch: Batch) -> SearchStrategy[tuple[Batch, list[int]]]:
    """The batch with an order of its rows."""
    return st.permutations(range(len(batch))).map(lambda order: (batch, list(order)))


_TEXT = "What is 2 + 2?"

#: Pools of labels that public code has confused (numeric-looking strings, ints, tuples, None, mixtures), or that
#: are one after cutting, stripping or folding: prompts themselves are labels, too.
LABEL_POOLS: dict[str, tuple[Any, ...]] = {
    "strings": ("a", "b", "c", "d", "e", "f", "g", "h", ""),
    "digits": ("7", "007", "07", "7.0", "+7", "7 ", "٧", "0x7", "1e0"),
    "ints": (7, -7, 0, 2**40, 2**53, 2**53 + 1, -(2**40), 12, -1),
    "tuples": ((1, 2), (12,), ("1", "2"), (), (1, "2"), ((1,), 2), ("a",), (0,), (None,)),
    "mixed": (None, 1, "1", (1,), "None", 1.5, "1.5", b"1", frozenset({1})),
    "texts": (
        _TEXT,
        _TEXT.lower(),
        _TEXT.upper(),
        *(_TEXT.replace("?", end) for end in ("", "? ", "?\n", "??", "？", "?\0")),
    ),
    "prefixes": tuple(f"{'Think step by step. ' * 4}{_TEXT[:-2]}{k}?" for k in range(9)),
    "uuids": tuple(f"3f2b8c1e-{k:04d}-4c1d-9e0f-0a1b2c3d4e5f" for k in range(9)),
}


def relabelled(batch: Batch) -> SearchStrategy[list[Batch]]:
    """The same grouping under labels from each of `LABEL_POOLS`."""
    names = sorted(set(batch.group_ids), key=str)
    places = st.lists(st.integers(0, MOST - 1), min_size=len(names), max_size=len(names), unique=True)

    def renamed(chosen: list[int], pool: tuple[Any, ...]) -> Batch:
        new = {name: pool[place] for name, place in zip(names, chosen, strict=True)}
        return replace(batch, group_ids=tuple(new[name] for name in batch.group_ids))

    return places.map(lambda chosen: [renamed(chosen, pool) for pool in LABEL_POOLS.values()])
