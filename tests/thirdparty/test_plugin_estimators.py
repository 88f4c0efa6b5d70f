"""The plug-in's estimators, found in verl's registry and called as verl calls them, keep what they claim."""

import pytest

from refbase.checks import LAWS, as_subject, judge

pytestmark = pytest.mark.verl

#: BV-Blend is not here: in a stock trainer its memory grows from batch to batch.
NAMES = ("shrinkage", "shrinkage_js", "group_mean", "batch_mean", "gvpo", "refbase_rloo", "refbase_grpo", "refbase_opo")


@pytest.mark.parametrize("name", NAMES)
def test_claimed_laws_hold_through_verl(name):
    pytest.importorskip("verl")
    # GVPO's factor for groups of different sizes depends on the largest group of the batch.
    options = {"gvpo": {"size_correction": False}} if name == "gvpo" else {}
    subject = as_subject(f"verl:{name}", **options)
    results = [
        judge(subject, law, max_examples=10, shrink=False) for law in LAWS.values() if law.traits <= subject.claims
    ]
    assert sum(result.holds for result in results) > 20
    for result in results:
        assert result.status in ("holds", "not_applicable"), result.report()
