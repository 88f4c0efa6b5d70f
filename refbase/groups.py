"""Arbitrary group labels to dense codes, by equality alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np


def factorise(labels: Sequence[Hashable]) -> tuple[np.ndarray, list[Hashable]]:
    """Dense codes of ``labels`` in order of first appearance, and the distinct labels.

    Two rows share a code if and only if their labels are equal and hash alike, as in a ``dict``: ``"7"``,
    ``"007"`` and ``7`` are three labels, ``1`` and ``1.0`` are one. Labels are never coerced, parsed or
    sorted.

    Parameters
    ----------
    labels
        (N,) hashables of any kinds, mixed or not.

    Returns
    -------
    codes
        (N,) int64 in ``0..G-1``.
    distinct
        The G labels, ``distinct[codes[t]] == labels[t]``.

    Raises
    ------
    TypeError
        A label is not hashable.

    Examples
    --------
    >>> codes, distinct = factorise(["b", 7, "b", "7"])
    >>> codes.tolist(), distinct
    ([0, 1, 0, 2], ['b', 7, '7'])
    """
    index = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    codes = np.fromiter(map(index.__getitem__, labels), dtype=np.int64, count=len(labels))
    return codes, list(index)


def first_unhashable(labels: Iterable[Any]) -> int | None:
    """Position of the first label that cannot be hashed, or None."""
    for position, label in enumerate(labels):
        try:
            hash(label)
        except TypeError:
            return position
    return None
