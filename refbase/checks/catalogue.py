"""The catalogue's estimators as subjects: the spec on exact numbers, the spec on floats, the kernel."""

from __future__ import annotations

from typing import Any

from refbase.catalog import CATALOG, lookup
from refbase.checks.subject import NUMBERS, Subject


def catalogue_subject(name: str, numbers: str = "torch", **options: Any) -> Subject:
    """The catalogue's estimator `name` as a subject that claims its catalogued traits.

    Parameters
    ----------
    numbers
        "torch" for the kernel, "exact" or "float" for the spec function.
    """
    entry = lookup(name)
    target = entry.kernel if numbers == "torch" else entry.spec
    module, _, function = target.partition(":")
    return Subject(
        name=f"{name}[{'kernel' if numbers == 'torch' else f'spec, {numbers}'}]",
        call=entry.load_kernel() if numbers == "torch" else entry.load_spec(),
        claims=entry.traits,
        numbers=numbers,
        options=options,
        code=f"from {module} import {function} as estimator",
        reference=entry.load_spec(),
    )


def catalogue_subjects() -> list[Subject]:
    """All of them, in all number types."""
    return [catalogue_subject(name, numbers) for name in CATALOG for numbers in NUMBERS]
