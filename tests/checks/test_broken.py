"""The suite is calibrated: every mistake is rejected, and every law rejects a mistake."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from refbase.catalog import TRAITS
from refbase.checks import LAWS, run_law
from refbase.checks.broken import BROKEN
from refbase.checks.broken_memory import memory_subject
from refbase.checks.catalogue import catalogue_subject
from refbase.checks.laws import history, unbiased

PAIRS = [(broken, law) for broken in BROKEN.values() for law in broken.laws]


@pytest.mark.parametrize(("broken", "law"), PAIRS, ids=[f"{b.name}-{law}" for b, law in PAIRS])
def test_mistake_is_rejected_with_a_small_counterexample(broken, law):
    result = run_law(broken.subject, LAWS[law])
    assert result.status in ("fails", "error"), result.report()
    assert result.claimed
    rows = [len(re.findall(r"[\w.-]+", found)) for found in re.findall(r"tensor\(\[([^]]*)\]", result.code)]
    limit = 17 if law in ("constant_batch", "constant_zero") else 12  # single precision needs many equal rewards
    if law != "copies":
        assert all(count <= limit for count in rows), result.report()
    text = result.report()
    assert law in text
    assert LAWS[law].statement in text
    if result.status == "fails":
        assert "# expected" in text
        assert "# got" in text


def test_every_law_rejects_a_mistake():
    rejected = {law for broken in BROKEN.values() for law in broken.laws}
    assert rejected == set(LAWS)


def test_every_trait_has_a_law():
    assert set().union(*(law.traits for law in LAWS.values())) == set(TRAITS)


def test_there_are_many_mistakes_and_each_names_its_source():
    assert len(BROKEN) >= 15
    for broken in BROKEN.values():
        assert broken.laws, broken.name
        assert re.search(r"#\d+|verl 0\.9\.1|arXiv", broken.source), broken.name


@pytest.mark.parametrize("law", history.LAWS, ids=lambda law: law.id)
def test_an_honest_memory_passes(law):
    """What the broken memories differ from by one mistake each."""
    result = run_law(memory_subject(None), law)
    assert result.holds, result.report()


def test_a_history_that_looks_ahead_is_seen_where_other_prompts_matter_too():
    subject = catalogue_subject("shrinkage_history")
    assert "group_local" not in subject.claims
    honest = subject.memory

    def ahead(state, rewards, group_ids, valid, keys, **options):
        seen = honest.update(state, rewards, group_ids, valid, keys, None)
        return honest.estimate(seen, rewards, group_ids, valid, keys, **options)

    law = LAWS["history_predictable"]
    assert run_law(subject, law).holds
    result = run_law(replace(subject, memory=replace(honest, estimate=ahead)), law)
    assert result.status == "fails"
    assert "moved with rewards of its own prompt" in result.report()


def test_what_acts_from_four_prompts_on_needs_problems_of_four():
    """On one to three prompts the mistake is `rloo`, which is unbiased: those problems alone would let it through."""
    broken = BROKEN["own_group_in_the_spread"].subject
    assert run_law(broken, replace(LAWS["unbiased"], cases=unbiased.few_prompts)).holds
    result = run_law(broken, LAWS["unbiased"])
    assert result.status == "fails"
    assert result.code.count("Prompt([") == 4


def test_the_printed_counterexample_runs(capsys):
    result = run_law(BROKEN["whole_batch_mean"].subject, LAWS["zero_sum"])
    exec(compile(result.code, "counterexample", "exec"), {})
    assert "tensor" in capsys.readouterr().out
