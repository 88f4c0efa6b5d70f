"""The toy estimators of this folder can be named, as an author's own module can in his directory."""

from pathlib import Path

import pytest

collect_ignore = ["outside"]  # a package of its own, whose tests one of ours runs


@pytest.fixture(autouse=True)
def toys_on_path(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
