"""Square root and ordering for number types that do not share them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


def square_root(value: Any) -> Any:
    """Exact where the number type has an exact root (sympy; perfect-square fractions), else a float."""
    if hasattr(value, "as_base_exp"):  # sympy
        import sympy

        return sympy.sqrt(value)
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def larger(a: Any, b: Any) -> Any:
    """Maximum, symbolic where the order of symbols is unknown."""
    if hasattr(a, "as_base_exp") or hasattr(b, "as_base_exp"):
        import sympy

        return sympy.Max(a, b)
    return a if a >= b else b
