"""The pytest decorator, one check at a time; `test_outside_package.py` runs it as its user would."""

from dataclasses import replace

import pytest

from refbase.checks import LAWS, as_subject, parametrize_with_checks
from refbase.checks.parametrize import Check
from refbase.validate import InputError

BROKEN = as_subject("refbase:group_mean", claims=["shift"])


def check(subject, law, reason=None):
    return Check(subject, LAWS[law], reason, max_examples=30)


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
