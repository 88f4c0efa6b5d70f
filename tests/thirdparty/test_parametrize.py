"""The pytest decorator, one check at a time; `test_outside_package.py` runs it as its user would."""

import functools
from dataclasses import replace

import pytest

from refbase.checks import LAWS, as_subject, judge, parametrize_with_checks
from refbase.checks.parametrize import Check
from refbase.validate import InputError, InputTypeError

BROKEN = as_subject("refbase:group_mean", claims=["shift"])


def check(subject, law, reason=None, error=None):
    return Check(subject, LAWS[law], reason, error, max_examples=30)


def test_holds_and_fails():
    assert check(BROKEN, "shift")().holds
    with pytest.raises(pytest.fail.Exception, match="law `permutation` fails") as failure:
        check(as_subject("toys:sorted_rows", arrays="float"), "permutation")()
    assert "print(estimator(" in str(failure.value)


def test_laws_that_do_not_apply_are_skipped():
    law = replace(LAWS["shift"], needs=lambda subject: "not meant for it")
    subject = as_subject("toys:torch_matrix", signature="matrix")
    with pytest.raises(pytest.skip.Exception):
        Check(subject, law)()
    with pytest.raises(pytest.fail.Exception, match="does not apply"):
        Check(subject, law, "why")()


def test_expected_failures_are_strict():
    broken = as_subject("toys:sorted_rows", arrays="float")
    with pytest.raises(pytest.xfail.Exception, match="known since spring"):
        check(broken, "permutation", "known since spring")()
    with pytest.raises(pytest.fail.Exception, match="holds now: take 'shift' out of expected_failures"):
        check(BROKEN, "shift", "no longer true")()


def test_a_crash_is_no_expected_failure():
    """A refactoring that breaks the estimator altogether must not look like the defect that is known."""
    raising = as_subject("toys:sorted_labels", arrays="exact")
    with pytest.raises(pytest.fail.Exception, match="law `relabel` error") as failure:
        check(raising, "relabel", "known since spring")()
    assert "raised TypeError" in str(failure.value)
    assert "estimator(" in str(failure.value)
    assert "there is an error instead; if that is the known defect, put 'relabel' into expected_errors" in str(
        failure.value
    )
    with pytest.raises(pytest.fail.Exception, match=r"of shape \(\d+,\) for \d+ rollouts"):
        check(as_subject("toys:wrong_shape", arrays="float"), "permutation", "known since spring")()


def test_expected_errors():
    """Where a law's finding is an exception, its author can list that too."""
    raising = as_subject("toys:sorted_labels", arrays="exact")
    with pytest.raises(pytest.xfail.Exception, match="labels are sorted"):
        check(raising, "relabel", error="labels are sorted")()
    with pytest.raises(pytest.fail.Exception, match="holds now: take 'permutation' out of expected_errors"):
        check(raising, "permutation", error="labels are sorted")()
    with pytest.raises(pytest.fail.Exception, match="law `permutation` fails") as failure:
        check(as_subject("toys:sorted_rows", arrays="float"), "permutation", error="why")()
    assert "the advantages are wrong instead; if that is the known defect, put 'permutation' into" in str(failure.value)
    with pytest.raises(pytest.fail.Exception, match="in expected_errors but does not apply"):
        check(as_subject("toys:flat_without_valid", arrays="exact"), "masked_zero", error="why")()


def test_the_verdict_is_that_of_the_command():
    """Wrong numbers before crashes, and whether only masked rows matter: `judge` decides in both."""

    def sometimes(rewards, group_ids):
        if not all(isinstance(label, str) for label in group_ids):
            raise RuntimeError("labels must be strings")
        return [r * len(label) for r, label in zip(rewards, group_ids, strict=True)]

    subject = as_subject(sometimes, arrays="exact")
    assert judge(subject, LAWS["relabel"]).status == "fails"
    with pytest.raises(pytest.xfail.Exception, match="the length of labels"):
        Check(subject, LAWS["relabel"], "the length of labels")()
    with pytest.raises(pytest.fail.Exception, match="only where some rows are masked"):
        check(as_subject("toys:mean_of_all_rows", arrays="exact", claims=["zero_sum"]), "zero_sum")()


def test_who_refuses_groups_of_one_is_told_of_min_group():
    with pytest.raises(pytest.fail.Exception) as failure:
        check(as_subject("toys:refuses_one", arrays="exact"), "permutation")()
    assert str(failure.value).count("min_group=2") == 1
    assert "On groups of one rollout it raised ValueError: group 'a' has one rollout" in str(failure.value)
    assert check(as_subject("toys:refuses_one", arrays="exact", min_group=2), "permutation")().holds
    with pytest.raises(pytest.fail.Exception) as failure:
        check(as_subject("toys:sorted_labels", arrays="exact"), "relabel")()
    assert "min_group" not in str(failure.value)


def marks(decorator):
    (_, checks), ids = decorator.mark.args, decorator.mark.kwargs["ids"]
    assert len(checks) == len(ids) > 0
    return {(c.subject.name, c.law.id): c.expected_failure for c in checks}


def test_one_test_per_law_that_binds():
    found = marks(parametrize_with_checks(["toys:flat", "refbase:rloo"], arrays="exact", claims=["shift"]))
    universal = {law.id for law in LAWS.values() if not law.traits}
    for name in ("toys:flat", "rloo[spec, exact]"):
        assert {law for subject, law in found if subject == name} == universal | {
            law.id for law in LAWS.values() if law.traits == {"shift"}
        }


def test_expected_failures_for_all_or_for_one():
    both = ["toys:flat", "toys:sorted_rows"]
    for_all = marks(parametrize_with_checks(both, arrays="exact", expected_failures={"zero_sum": "why"}))
    assert [key for key, reason in for_all.items() if reason] == [(name, "zero_sum") for name in both]
    for_one = marks(
        parametrize_with_checks(both, arrays="exact", expected_failures={"toys:sorted_rows": {"permutation": "why"}})
    )
    assert [key for key, reason in for_one.items() if reason] == [("toys:sorted_rows", "permutation")]


def test_expected_errors_for_all_or_for_one():
    both = ["toys:flat", "toys:sorted_labels"]
    _, checks = parametrize_with_checks(
        both, arrays="exact", expected_failures={"shift": "why"}, expected_errors={both[1]: {"relabel": "sorted"}}
    ).mark.args
    assert {(c.subject.name, c.law.id) for c in checks if c.expected_failure} == {(name, "shift") for name in both}
    assert [(c.subject.name, c.law.id, c.expected_error) for c in checks if c.expected_error] == [
        (both[1], "relabel", "sorted")
    ]


def test_claims_may_be_read_once_only():
    found = marks(parametrize_with_checks(["toys:flat", "toys:raw"], arrays="exact", claims=iter(["shift"])))
    assert {name for name, law in found if law == "shift"} == {"toys:flat", "toys:raw"}


@pytest.mark.parametrize(
    ("estimators", "how", "error", "message"),
    [
        ("toys:flat", {}, InputTypeError, r"`estimators` must be a list; got 'toys:flat' of type str\. Write \['toys:"),
        (len, {}, InputTypeError, "`estimators` must be a list; got <built-in .* of type builtin_function_or_method"),
        (BROKEN, {}, InputTypeError, r"must be a list; got group_mean\[kernel\] of type Subject. Put"),
        (3, {}, InputTypeError, "must be a list; got 3 of type int"),
        (["toys:flat"], {"max_examples": 0}, InputError, "`max_examples` must be at least 1; got 0"),
        (["toys:flat"], {"max_examples": "9"}, InputTypeError, "`max_examples` must be an integer; got '9'"),
        (["toys:flat"], {"min_group": 0}, InputError, "`min_group` must be at least 1; got 0"),
        (["toys:flat"], {"clams": ["shift"]}, InputError, "no argument 'clams'; did you mean 'claims'"),
        (["toys:takes_anything"], {"clams": ["shift"]}, InputError, "unknown keyword 'clams'; did you mean 'claims'"),
        ([BROKEN], {"clams": ["shift"]}, InputError, "unknown keyword 'clams'; did you mean 'claims'"),
        (["toys:flat"], {"expected_failure": {}}, InputError, "'expected_failure'; did you mean 'expected_failures'"),
        (["toys:takes_anything"], {"max_example": 3}, InputError, "'max_example'; did you mean 'max_examples'"),
        (["toys:flat"], {"claims": "unbiased"}, InputTypeError, "`claims` must be a list"),
        (["toys:flat"], {"expected_failures": ["shift"]}, InputTypeError, r"`expected_failures` must be a mapping"),
        (
            ["toys:flat"],
            {"expected_errors": "shift"},
            InputTypeError,
            "`expected_errors` must be a mapping; got 'shift'",
        ),
        (["toys:flat"], {"expected_errors": {"shfit": "why"}}, InputError, "unknown law in expected_errors 'shfit'"),
        (
            ["toys:flat"],
            {"expected_failures": {"shift": "a"}, "expected_errors": {"toys:flat": {"shift": "b"}}},
            InputError,
            "'shift' of toys:flat is in both expected_failures and expected_errors",
        ),
    ],
)
def test_misuse(estimators, how, error, message):
    with pytest.raises(error, match=message):
        parametrize_with_checks(estimators, **how)


@pytest.mark.parametrize(
    ("estimators", "failures", "message"),
    [
        ([], {}, "at least one"),
        (["toys:flat"], {"shfit": "why"}, "unknown law in expected_failures 'shfit'; did you mean 'shift'"),
        (["toys:flat"], {"shift": ""}, "must say why"),
        (["toys:flat"], {"toys:flatt": {"shift": "why"}}, "did you mean 'toys:flat'"),
    ],
)
def test_bad_lists(estimators, failures, message):
    with pytest.raises(InputError, match=message):
        parametrize_with_checks(estimators, expected_failures=failures)


def test_ids_do_not_change_from_run_to_run():
    from toys import Instance, scaled

    estimators = [functools.partial(scaled, factor=3), Instance()]
    ids = parametrize_with_checks(estimators, arrays="float").mark.kwargs["ids"]
    assert "partial(scaled, factor=3)-permutation" in ids
    assert "Instance-permutation" in ids
    assert not any(" at 0x" in name for name in ids)
