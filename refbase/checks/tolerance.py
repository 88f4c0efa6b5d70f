"""How far a result may be off, computed from the input.

Each bound follows from the eps of the number type that came out, the number of rows, and the magnitudes and gaps of
the rewards. Exact numbers get 0.

Algebraic laws (shift, scale, permutation, ...) compare two results of the same code. They forgive what a
plain implementation in the output's own precision loses, so that they speak about formulas:

* a sum of N numbers of magnitude at most R carries an error of at most ``N*eps*R``, and so does a mean;
* a variance about such a mean has relative error ``N*eps*R/s``, where the standard deviation s of rewards
  that are not all equal is at least ``gap/sqrt(2*N)``, gap being the smallest distance between two distinct
  rewards. A weight built from variances inherits this and multiplies a difference of means, at most
  ``D = max - min``; a division by a standard deviation multiplies ``N*eps*R`` by at most ``sqrt(2*N)/gap``.

Hence ``algebraic = 4 * N * eps * R * (1 + (D + unit) * sqrt(2*N) / gap)``, where ``unit`` is 1 for results in units of
a standard deviation and 0 for results in the rewards' own, so that there the bound scales with the rewards. The 4
is two results that are compared, each with a mean of means. What a float32 mean loses at an offset of a million is
thereby forgiven here; the accuracy laws (`accurate`, which are about arithmetic) do not forgive it.

``accurate`` compares with the exact value of the formula on the rewards as given: statistics in float64, one
rounding to the output type. It is the bound above with float64's eps, plus half an ulp of the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

EPS64 = 2.0**-52


def algebraic(rewards: Iterable[Any], eps: float, unit: float = 1.0) -> float:
    """Rounding allowance for an advantage or baseline computed from these rewards in precision `eps`.

    Parameters
    ----------
    unit
        0 for results that are known to be in the rewards' unit.
    """
    if eps == 0:
        return 0.0
    size, width, gap, count = extent(rewards)
    amplified = (width + unit) * math.sqrt(2 * count) / gap if gap else 0.0
    return 4 * count * eps * size * (1 + amplified)


def accurate(rewards: Iterable[Any], exact: Any, eps: float, smallest: float = 0.0) -> float:
    """Allowance for a result whose exact value is `exact`, rounded once to precision `eps`.

    Parameters
    ----------
    smallest
        The spacing of the output type near 0, for results that underflow.
    """
    return algebraic(rewards, EPS64) + eps * abs(float(exact)) + smallest


def extent(rewards: Iterable[Any]) -> tuple[float, float, float, int]:
    """Largest magnitude, max - min, smallest non-zero distance (0 when all are equal), and count."""
    finite = sorted(Fraction(r) for r in rewards if math.isfinite(r))
    if not finite:
        return 0.0, 0.0, 0.0, 0
    gaps = [b - a for a, b in itertools.pairwise(finite) if b > a]
    size = max(abs(finite[0]), abs(finite[-1]))
    return float(size), float(finite[-1] - finite[0]), float(min(gaps, default=0)), len(finite)


def close(a: Any, b: Any, bound: float) -> bool:
    """|a - b| <= bound, exactly when the bound is 0; two NaNs or two equal infinities are not close."""
    if a is None or b is None:
        return a is b
    if bound == 0:
        return bool(a == b)
    return bool(abs(float(a) - float(b)) <= bound)
