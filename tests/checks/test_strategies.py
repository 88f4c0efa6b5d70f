"""The strategies reach the regions where estimators go wrong, and shrink to something readable."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import find, given, seed, settings

from refbase.checks import LAWS, Subject
from refbase.checks.laws import history, sums, unbiased
from refbase.checks.runner import SEVERAL, domains
from refbase.checks.strategies import LABEL_POOLS, MOST, batches, relabelled, reordered

SUBJECT = Subject("any", call=lambda rewards, group_ids, valid=None: rewards)
MATRIX = Subject("matrix", call=SUBJECT.call, ragged=False, masks=False)
QUICK = settings(max_examples=2000, derandomize=True, database=None)


def sizes(batch):
    return sorted(map(len, batch.groups.values()))


def interleaved(batch):
    runs = 1 + sum(a != b for a, b in zip(batch.group_ids, batch.group_ids[1:], strict=False))
    return runs > len(set(batch.group_ids))


def values_of(batch, label):
    return {batch.rewards[row] for row in batch.groups[label]}


REGIONS = {
    "one rollout": lambda b: len(b) == 1,
    "a group of one beside a larger one": lambda b: len(sizes(b)) > 1 and sizes(b)[0] == 1 < sizes(b)[-1],
    "only groups of one": lambda b: len(b) > 2 and set(sizes(b)) == {1},
    "ragged": lambda b: len(set(sizes(b))) > 2,
    "interleaved rows": interleaved,
    "one group": lambda b: len(sizes(b)) == 1 and len(b) > 3,
    "a group of eight and more": lambda b: sizes(b)[-1] >= 8,
    "a group of eight and more beside another": lambda b: len(sizes(b)) > 1 and sizes(b)[-1] >= 8,
    "five groups of at least two": lambda b: len(sizes(b)) >= 5 and sizes(b)[0] >= 2,
    "four groups of at least two and one of one": lambda b: sizes(b)[:1] == [1] and sum(m > 1 for m in sizes(b)) >= 4,
    "a constant group beside one that is not": lambda b: (
        {len(values_of(b, g)) > 1 for g, rows in b.groups.items() if len(rows) > 1} == {True, False}
    ),
    "all rewards equal": lambda b: len(b) > 3 and len(set(b.rewards)) == 1,
    "ties": lambda b: any(1 < len(values_of(b, g)) < len(rows) for g, rows in b.groups.items()),
    "no ties": lambda b: len(b) > 4 and len(set(b.rewards)) == len(b),
    "large offset": lambda b: {Fraction(10**6), Fraction(10**6 + 1)} <= set(b.rewards),
    "not dyadic": lambda b: any(r.denominator not in (1, 2, 4, 8) for r in b.rewards),
    "negative": lambda b: min(b.rewards) < 0,
    "float64": lambda b: b.dtype == "float64",
}

MASKED = {
    "no row valid": lambda b: len(b) > 1 and not b.rows,
    "all rows valid": lambda b: len(b) > 1 and len(b.rows) == len(b),
    "a group loses all its rows": lambda b: bool(b.groups) and len(b.groups) < len(set(b.group_ids)),
    "a group keeps seven rows of more": lambda b: any(
        7 <= len(rows) < b.group_ids.count(label) for label, rows in b.groups.items()
    ),
    "a group keeps one row": lambda b: any(
        len(rows) == 1 < b.group_ids.count(label) for label, rows in b.groups.items()
    ),
    "four groups keep two rows, and rows are masked": lambda b: (
        len(b.rows) < len(b) and sum(len(rows) > 1 for rows in b.groups.values()) >= 4
    ),
}


@pytest.mark.parametrize("region", REGIONS)
def test_batches_reach(region):
    find(batches(SUBJECT), REGIONS[region], settings=QUICK)


@pytest.mark.parametrize("region", MASKED)
def test_masked_batches_reach(region):
    find(batches(SUBJECT, masks=True), MASKED[region], settings=QUICK)


@pytest.mark.parametrize(("masks", "regions"), [(False, REGIONS), (True, MASKED)], ids=["plain", "masked"])
def test_the_regions_are_common_enough(masks, regions):
    """Each is met several times in the number of inputs that a law tries, wherever it looks for them."""
    seen: Counter[str] = Counter()
    drawn = 0

    def count(batch):
        nonlocal drawn
        drawn += 1
        seen.update(region for region, holds in regions.items() if holds(batch))

    for domain, share in domains(SUBJECT, LAWS["masked_zero"], 300):
        how = settings(max_examples=share, database=None, deadline=None)
        for number in range(4):  # one search dwells on some regions
            seed(number)(how(given(batches(domain, masks=masks))(count)))()
    rare = {region: seen[region] for region in regions if seen[region] * 60 < drawn}
    assert not rare, (rare, drawn)


@pytest.mark.parametrize("subject", [SUBJECT, MATRIX], ids=["ragged", "equal"])
@pytest.mark.parametrize("several", [1, SEVERAL])
@pytest.mark.parametrize("least", [1, 2, 7])
def test_no_batch_has_more_groups_or_rows_than_were_asked_for(subject, several, least):
    """A law that gives each group a label of its own has labels for so many."""

    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(batches(replace(subject, several=several, min_group=least)))
    def check(batch):
        assert len(batch.groups) <= MOST <= min(map(len, LABEL_POOLS.values()))
        assert len(batch) <= 20
        assert sizes(batch)[0] >= least

    check()


def test_what_batches_shrink_to():
    simplest = find(batches(SUBJECT), lambda b: True, settings=QUICK)
    assert (simplest.rewards, simplest.group_ids, simplest.valid) == ((0,), ("a",), None)
    two = find(batches(SUBJECT, masks=True), lambda b: len(set(b.group_ids)) > 1 and len(set(b.rewards)) > 1)
    assert len(two) == 2
    assert set(two.rewards) == {0, 1}
    assert two.valid == (True, True)


def test_subjects_without_ragged_groups_or_masks_get_none():
    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(batches(MATRIX, masks=True))
    def check(batch):
        assert len(set(sizes(batch))) == 1
        assert batch.valid is None

    check()
    find(batches(MATRIX), lambda b: sizes(b) == [3, 3] and interleaved(b), settings=QUICK)
    find(batches(MATRIX), lambda b: len(sizes(b)) > 1 and sizes(b)[0] >= 8, settings=QUICK)


@pytest.mark.parametrize("pool", LABEL_POOLS)
def test_relabelling_reaches_each_pool_and_keeps_groups_apart(pool):
    batch = find(batches(SUBJECT), lambda b: len(b.groups) == 3 and len(b) > 3, settings=QUICK)
    position = list(LABEL_POOLS).index(pool)
    last = LABEL_POOLS[pool][-1]
    other = find(relabelled(batch), lambda all_: last in all_[position].group_ids, settings=QUICK)[position]
    assert set(other.group_ids) <= set(LABEL_POOLS[pool])
    pairs = set(zip(batch.group_ids, other.group_ids, strict=True))
    assert len(pairs) == len(set(other.group_ids)) == 3


def test_pools_hold_labels_that_are_distinct_as_dict_keys():
    for pool in LABEL_POOLS.values():
        assert len(set(pool)) == len(pool) == MOST


def test_reordering_reaches_a_proper_permutation():
    batch = find(batches(SUBJECT), lambda b: len(b) == 4, settings=QUICK)
    _, order = find(reordered(batch), lambda case: case[1] != sorted(case[1]), settings=QUICK)
    assert sorted(order) == [0, 1, 2, 3]


def test_constant_groups_reach_every_dtype_and_long_groups_of_non_dyadic_values():
    strategy = sums.constant_groups(SUBJECT)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        find(strategy, lambda b, dtype=dtype: b.dtype == dtype, settings=QUICK)
    find(strategy, lambda b: max(sizes(b)) >= 12 and any(r.denominator == 10 for r in b.rewards), settings=QUICK)
    find(strategy, lambda b: len(sizes(b)) > 1 and len(set(sizes(b))) > 1, settings=QUICK)


def test_problems_reach_singletons_ragged_and_three_responses():
    strategy = unbiased.problems(SUBJECT)
    find(strategy, lambda p: any(prompt.rollouts == 1 for prompt in p.prompts), settings=QUICK)
    find(strategy, lambda p: len({prompt.rollouts for prompt in p.prompts}) > 1, settings=QUICK)
    find(strategy, lambda p: any(len(prompt.rewards) == 3 for prompt in p.prompts), settings=QUICK)
    find(strategy, lambda p: len(p.prompts) == 3, settings=QUICK)
    find(strategy, lambda p: sum(prompt.rollouts > 1 for prompt in p.prompts) >= 5, settings=QUICK)
    find(unbiased.problems(MATRIX), lambda p: {prompt.rollouts for prompt in p.prompts} == {2} and len(p.prompts) == 6)


@pytest.mark.parametrize("least", [1, 2, 3])
def test_problems_stay_small_and_obey_the_smallest_group(least):
    @settings(max_examples=100, derandomize=True, database=None, deadline=None)
    @given(unbiased.problems(Subject("some", call=SUBJECT.call, min_group=least)))
    def check(problem):
        assert problem.outcomes() <= unbiased.BUDGET
        assert min(prompt.rollouts for prompt in problem.prompts) >= least

    check()


def test_streams_reach_several_keys_masks_and_warm_histories():
    steps = history.steps()
    find(steps, lambda s: len({repr(key) for _, key in s.keys}) > 1, settings=QUICK)
    find(steps, lambda s: s.batch.valid is not None and not s.batch.rows, settings=QUICK)
    find(steps, lambda s: s.batch.valid is not None and 0 < len(s.batch.rows) < len(s.batch), settings=QUICK)
    find(history.streams(SUBJECT), lambda past: len(past) >= 4, settings=QUICK)
    find(history.warm_steps(), lambda s: len(s.batch.groups) >= 16, settings=QUICK)


def test_shapes_of_the_groups_are_part_of_what_shrinks():
    lone = find(batches(SUBJECT), lambda b: len(sizes(b)) > 1 and sizes(b)[0] == 1 < sizes(b)[-1], settings=QUICK)
    assert sizes(lone) == [1, 2]
    assert set(lone.rewards) == {0}
