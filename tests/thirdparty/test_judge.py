"""Verdicts show the plainest evidence."""

from refbase.checks import LAWS, as_subject, judge, run_law


def test_a_law_broken_without_masks_is_shown_without_them():
    subject = as_subject("toys:mean_of_all_rows", arrays="exact")
    assert judge(subject, LAWS["zero_sum"]).only_masked
    assert "only where some rows are masked" in judge(subject, LAWS["zero_sum"]).reason
    raw = as_subject("toys:raw", arrays="exact")
    result = judge(raw, LAWS["zero_sum"])
    assert result.status == "fails"
    assert not result.only_masked
    assert "valid=" not in result.code


def test_laws_about_masks_keep_their_masks():
    subject = as_subject("toys:mean_of_all_rows", arrays="exact")
    result = judge(subject, LAWS["masked_absent"])
    assert result.status == "fails"
    assert not result.only_masked
    assert "valid=" in result.code


def test_what_holds_is_left_alone():
    subject = as_subject("toys:flat", arrays="exact")
    assert judge(subject, LAWS["permutation"]).holds
    assert judge(subject, LAWS["permutation"]).examples == run_law(subject, LAWS["permutation"]).examples


def test_batches_below_an_estimators_domain_are_not_tried():
    tried = []

    def refuses(rewards, group_ids, valid=None):
        tried.append(sum(valid or [True] * len(rewards)))
        assert tried[-1] > 1
        return [0 * r if r == r else 0 for r in rewards]

    subject = as_subject(refuses, arrays="exact", min_valid=2)
    assert run_law(subject, LAWS["finite"]).holds
    assert min(tried) == 2
    assert run_law(subject, LAWS["all_masked"]).status == "error"  # the one law about just such batches


def test_wrong_numbers_are_shown_rather_than_a_crash():
    def takes_strings_only(rewards, group_ids):
        if not all(isinstance(label, str) for label in group_ids):
            raise RuntimeError("labels must be strings")
        return [r * len(label) for r, label in zip(rewards, group_ids, strict=True)]

    subject = as_subject(takes_strings_only, arrays="exact")
    assert run_law(subject, LAWS["relabel"], seed=1).status in ("error", "fails")
    result = judge(subject, LAWS["relabel"])
    assert result.status == "fails"
    crashing = as_subject("toys:crashes", arrays="exact")
    assert judge(crashing, LAWS["relabel"]).status == "error"


def test_the_empty_batch_is_tried():
    assert judge(as_subject("toys:flat", arrays="exact"), LAWS["empty_batch"]).holds
    assert judge(as_subject("toys:crashes_when_empty", arrays="exact"), LAWS["empty_batch"]).status == "fails"
