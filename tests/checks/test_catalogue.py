"""Every catalogued estimator obeys every law that it claims, in each number type."""

from __future__ import annotations

import inspect
from dataclasses import replace
from fractions import Fraction

import pytest

from refbase.catalog import CATALOG, CHOICES, TRAITS
from refbase.checks import LAWS, Batch, Probe, binding_laws, catalogue_subject, catalogue_subjects, run_law
from refbase.checks.subject import read_answer

#: A single input, or conditions that a good part of the inputs fail.
FEW = ("empty_batch", "masked_absent", "masked_inert", "strided", "own_reward_independent", "shift")

PAIRS = [
    (subject, law) for subject in catalogue_subjects() for law in binding_laws(subject) if law.needs(subject) is None
]


#: About equal rewards, which no weight can move.
LEVEL = ("constant_batch", "constant_zero")


def blends(weight):
    return any(0 < w < 1 for w in weight)


class Watched:
    """The subject's call, and how often its weight was neither 0 nor 1."""

    def __init__(self, call):
        self.call, self.blended = call, 0

    def __call__(self, rewards, group_ids, valid=None, **options):
        result = self.call(rewards, group_ids, valid, **options)
        self.blended += blends(read_answer(result, len(group_ids)).weight)
        return result


def can_blend(subject):
    """Whether its weight is ever strictly between 0 and 1: in five groups with noise and spread."""
    rewards = [Fraction(r) for r in (0, 1, 0, 1, 1, 1, 0, 0, 1, 2)]
    return blends(Probe(subject)(Batch(tuple(rewards), tuple("aabbccddee"))).weight)


@pytest.mark.parametrize(("subject", "law"), PAIRS, ids=[f"{s.name}-{law.id}" for s, law in PAIRS])
def test_claimed_law_holds(subject, law):
    assert law.needs(subject) is None
    watched = Watched(subject.call)
    result = run_law(replace(subject, call=watched), law)
    assert result.holds, result.report()
    # Most inputs met the law's conditions, unless there are few to try.
    assert result.examples >= min(0.6 * law.max_examples, 40) or law.id in FEW
    # An estimator that blends did so on some of them: a law that sees weight 0 only is one about `rloo`.
    if law.max_examples >= 40 and law.id not in LEVEL and not law.id.startswith("history_") and can_blend(subject):
        assert watched.blended


def test_which_estimators_blend():
    found = {subject.name.partition("[")[0] for subject in catalogue_subjects() if can_blend(subject)}
    assert found == {"shrinkage", "shrinkage_js", "shrinkage_history", "bvblend", "bvblend_eb"}


def test_traits_named_by_laws_exist():
    assert set().union(*(law.traits for law in LAWS.values())) <= set(TRAITS)


# --- options --------------------------------------------------------------------------------------------

CHANGES = [(choice, trait) for choice in CHOICES for trait in sorted(choice.gains | choice.loses)]


def broken_laws(name, trait, options):
    """Laws about a trait that the kernel breaks under these options, claimed or not."""
    subject = catalogue_subject(name, **options)
    return [law.id for law in LAWS.values() if trait in law.traits and not run_law(subject, law, shrink=False).holds]


@pytest.mark.parametrize(
    ("choice", "trait"), CHANGES, ids=[f"{c.estimator}-{'-'.join(c.options.values())}-{t}" for c, t in CHANGES]
)
def test_an_option_costs_what_the_table_says_and_gives_what_it_says(choice, trait):
    """The laws themselves tell the option from the default."""
    default = catalogue_subject(choice.estimator)
    chosen = catalogue_subject(choice.estimator, **choice.options)
    gained = trait in choice.gains
    assert (trait in default.claims, trait in chosen.claims) == (not gained, gained)
    before = broken_laws(choice.estimator, trait, {})
    after = broken_laws(choice.estimator, trait, choice.options)
    assert (bool(before), bool(after)) == (gained, not gained)


#: Values of options that leave the claims alone, and that no other test puts to the laws.
HARMLESS = [
    ("group_mean", {"singletons": "zero"}),
    ("grpo", {"singletons": "zero"}),
    ("grpo", {"eps": Fraction(1, 2)}),
    ("opo", {"singletons": "zero"}),
    ("shrinkage", {"weight": 0}),
    ("shrinkage", {"weight": 1}),
    ("bvblend", {"local": "loo"}),
    ("bvblend", {"scale": "group"}),
    ("bvblend", {"scale": "none", "weight": Fraction(1, 4)}),
    ("bvblend_eb", {"min_groups": 0}),
]


@pytest.mark.parametrize(("name", "options"), HARMLESS, ids=str)
def test_the_other_options_cost_nothing(name, options):
    subject = catalogue_subject(name, "torch", **{key: _plain(value) for key, value in options.items()})
    laws = [law for law in binding_laws(subject) if law.traits and not law.id.startswith("history_")]
    assert len(laws) > 1
    for law in laws:
        result = run_law(subject, law)
        assert result.holds, result.report()


def _plain(value):
    return float(value) if isinstance(value, Fraction) else value


def test_choices_name_estimators_options_and_traits():
    for choice in CHOICES:
        entry = CATALOG[choice.estimator]
        assert choice.gains | choice.loses <= set(TRAITS)
        assert choice.loses <= entry.traits
        assert not choice.gains & entry.traits
        assert set(choice.options) <= set(inspect.signature(entry.load_spec()).parameters)
        assert entry.claims() == entry.claims(nonfinite="exclude") == entry.traits
    assert "unbiased" not in CATALOG["bvblend"].claims(scale="none")
    assert {"unbiased", "own_reward_independent"} <= CATALOG["bvblend"].claims(local="loo", scale="none", weight=0.5)
