"""Tests that need verl; skipped, with the reason, where it is not installed."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("verl") is None:
        skip = pytest.mark.skip(reason="verl is not installed")
        for item in items:
            if item.get_closest_marker("verl") or item.get_closest_marker("e2e"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def fresh_memory():
    """BV-Blend's history belongs to a process; no test may see another's."""
    from verl_ext import history

    history.reset()
    yield
    history.reset()
