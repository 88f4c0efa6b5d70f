"""One call, two implementations: the spec on Fractions, and the kernel on the same numbers in float64."""

from __future__ import annotations

import warnings
from fractions import Fraction as F

import pytest
import torch

import refbase

PARTS = ("advantages", "baseline", "weight", "local", "target", "scale")


def both(name, rewards, group_ids, *args, **options):
    """The spec's exact result; fails unless the kernel agrees in every part."""
    estimator = getattr(refbase, name)
    rewards, group_ids = [F(r) for r in rewards], list(group_ids)
    tensor = torch.tensor([float(r) for r in rewards], dtype=torch.float64)
    floats = {
        key: torch.tensor([float(v) for v in value]) if key == "lengths" else value for key, value in options.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", refbase.DegenerateBatchWarning)
        exact = estimator(rewards, group_ids, *args, **options)
        kernel = estimator(tensor, group_ids, *args, **floats)
    for part in PARTS:
        expected, got = getattr(exact, part), getattr(kernel, part)
        expected = [None] * len(rewards) if expected is None else expected
        got = [float("nan")] * len(rewards) if got is None else got.tolist()
        wanted = [float("nan") if value is None else float(value) for value in expected]
        assert got == pytest.approx(wanted, rel=1e-12, abs=1e-12, nan_ok=True), part
    return exact
