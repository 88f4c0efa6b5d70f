"""Roots and maxima of the number types that the formulas run on."""

import math
from fractions import Fraction as F

import sympy

from refbase.spec._numbers import larger, square_root


def test_a_root_is_exact_where_its_type_has_it():
    assert square_root(F(4, 9)) == F(2, 3)
    assert isinstance(square_root(F(4, 9)), F)
    for without in (F(2, 9), F(4, 3), F(2, 3)):
        assert square_root(without) == math.sqrt(without)
    assert square_root(2.25) == 1.5
    x = sympy.Symbol("x", positive=True)
    assert square_root(x * x) == x


def test_the_larger_of_symbols_stays_open():
    x, y = sympy.symbols("x y")
    assert larger(x, y) == sympy.Max(x, y)
    assert larger(x, F(1, 2)) == sympy.Max(x, F(1, 2)) == larger(F(1, 2), x)
    assert (larger(F(1, 2), F(1, 3)), larger(1, 2), larger(2.0, 2)) == (F(1, 2), 2, 2.0)
