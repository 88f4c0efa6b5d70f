"""Every catalogued estimator obeys every law that it claims, in each number type."""

from __future__ import annotations

import pytest

from refbase.catalog import TRAITS
from refbase.checks import LAWS, binding_laws, catalogue_subjects, run_law

PAIRS = [(subject, law) for subject in catalogue_subjects() for law in binding_laws(subject)]


@pytest.mark.parametrize(("subject", "law"), PAIRS, ids=[f"{s.name}-{law.id}" for s, law in PAIRS])
def test_claimed_law_holds(subject, law):
    result = run_law(subject, law)
    if result.status == "not_applicable":
        pytest.skip(result.reason)
    assert result.holds, result.report()
    assert result.examples > 0


def test_traits_named_by_laws_exist():
    assert set().union(*(law.traits for law in LAWS.values())) <= set(TRAITS)
