"""Every catalogued estimator obeys every law that it claims, in each number type."""

from __future__ import annotations

import pytest

from refbase.catalog import TRAITS
from refbase.checks import LAWS, binding_laws, catalogue_subjects, run_law

#: A single input, or conditions that a good part of the inputs fail.
FEW = ("empty_batch", "masked_absent", "masked_inert", "strided", "own_reward_independent", "shift")

PAIRS = [
    (subject, law) for subject in catalogue_subjects() for law in binding_laws(subject) if law.needs(subject) is None
]


@pytest.mark.parametrize(("subject", "law"), PAIRS, ids=[f"{s.name}-{law.id}" for s, law in PAIRS])
def test_claimed_law_holds(subject, law):
    assert law.needs(subject) is None
    result = run_law(subject, law)
    assert result.holds, result.report()
    # Most inputs met the law's conditions, unless there are few to try.
    assert result.examples >= min(0.6 * law.max_examples, 40) or law.id in FEW


def test_traits_named_by_laws_exist():
    assert set().union(*(law.traits for law in LAWS.values())) <= set(TRAITS)
