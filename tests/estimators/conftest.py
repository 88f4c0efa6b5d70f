"""Degenerate batches are tried on purpose here; the tests of the warning itself ask for it."""

from __future__ import annotations

import warnings

import pytest

import refbase


@pytest.fixture(autouse=True)
def _no_degenerate_batch_warnings():
    warnings.simplefilter("ignore", refbase.DegenerateBatchWarning)
