"""The laws as pytest tests of somebody else's estimator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refbase.checks.adapters import as_subject, check_spelling, check_traits
from refbase.checks.law import Law, LawResult
from refbase.checks.laws import LAWS
from refbase.checks.runner import binding_laws, judge
from refbase.checks.subject import Subject
from refbase.checks.trial import larger_groups
from refbase.validate import InputError, check_integer, reject_type, unknown_name

WHERE = "parametrize_with_checks"

#: Where a broken law is listed once it is known, by the status of its result.
_LIST_OF = {"fails": "expected_failures", "error": "expected_errors"}


class Check:
    """One law on one estimator; calling it runs the law.

    Parameters
    ----------
    expected_failure, expected_error
        Why the law is known to fail with wrong advantages, or to end in an error; at most one of the two. The
        expectation is strict: the test fails when the law holds after all, and when it is broken in the other way.
    how
        As for `judge`, which is what ``python -m refbase.checks`` runs too.
    """

    def __init__(
        self,
        subject: Subject,
        law: Law,
        expected_failure: str | None = None,
        expected_error: str | None = None,
        **how: Any,
    ) -> None:
        self.subject, self.law, self.how = subject, law, how
        self.expected_failure, self.expected_error = expected_failure, expected_error

    def __call__(self) -> LawResult:
        """Run the law; a failure prints the statement and the counterexample as code."""
        import pytest

        result = judge(self.subject, self.law, **self.how)
        reason = self.expected_failure or self.expected_error
        listed = "expected_errors" if self.expected_failure is None else "expected_failures"
        if result.status == "not_applicable":
            if reason is not None:
                pytest.fail(f"{self!r} is in {listed} but does not apply: {result.reason}", pytrace=False)
            pytest.skip(result.reason)
        if result.holds:
            if reason is not None:
                pytest.fail(
                    f"{self!r} was expected to fail ({reason}) and holds now: take {self.law.id!r} out of {listed}",
                    pytrace=False,
                )
            return result
        if reason is not None and listed == _LIST_OF[result.status]:
            pytest.xfail(reason)
        pytest.fail("\n\n".join([result.report(), *self._advice(result, reason)]), pytrace=False)

    def _advice(self, result: LawResult, reason: str | None) -> Iterable[str]:
        """What to do about a broken law, besides mending the estimator."""
        if reason is not None:
            expected, found = "wrong advantages were expected", "there is an error"
            if result.status == "fails":
                expected, found = "an error was expected", "the advantages are wrong"
            yield (
                f"Here {expected} ({reason}) and {found} instead; if that is the known defect, put {self.law.id!r} "
                f"into {_LIST_OF[result.status]}."
            )
        advice = larger_groups(self.subject, "min_group={}", [result])
        if advice is not None:
            yield advice

    def __repr__(self) -> str:
        return f"{self.subject.name}-{self.law.id}"


def parametrize_with_checks(
    estimators: Iterable[Any],
    *,
    expected_failures: Mapping[str, Any] | None = None,
    expected_errors: Mapping[str, Any] | None = None,
    max_examples: int | None = None,
    seed: int | None = None,
    **how: Any,
) -> Any:
    """A pytest decorator: one test per estimator and law that binds it.

    Parameters
    ----------
    estimators
        A list of what `as_subject` takes: functions, names, or subjects made with it.
    expected_failures
        Laws that are known to fail with wrong advantages: ``{law id: reason}``, for all estimators, or
        ``{estimator's name: {law id: reason}}``. Strict: a law listed here that holds makes its test fail, so that
        the list cannot rot, and so does one that ends in an error, so that the list cannot hide a crash.
    expected_errors
        In the same form, laws that are known to end in an error: the estimator raises, or returns something that
        cannot be read as advantages. As strict.
    max_examples, seed
        As for `run_law`.
    how
        signature, claims, arrays, ... as for `as_subject`, for every estimator in the list; none with subjects in it.

    Raises
    ------
    InputError, InputTypeError
        No estimators, or something that is no list of them; an unknown law or estimator in the expectations, or one
        without a reason; a number out of range; what `as_subject` rejects.

    Examples
    --------
    In a test module::

        from refbase.checks import parametrize_with_checks

        @parametrize_with_checks(["mine.advantages:blend"], claims=["unbiased", "shift"])
        def test_conformance(check):
            check()
    """
    import pytest

    if isinstance(estimators, (str, Subject)) or callable(estimators) or not isinstance(estimators, Iterable):
        got = estimators.name if isinstance(estimators, Subject) else repr(estimators)
        remedy = f"Write [{got}]." if isinstance(estimators, str) else "Put it into one."
        reject_type(WHERE, "estimators", "be a list", f"{got} of type {type(estimators).__name__}", remedy)
    if max_examples is not None:
        check_integer(WHERE, "max_examples", max_examples, 1)
    check_spelling(how, ("expected_failures", "expected_errors", "max_examples", "seed"))
    if how.get("claims") is not None:
        how["claims"] = check_traits(how["claims"])  # a list, to be read once for each estimator
    subjects = [as_subject(estimator, **how) for estimator in estimators]
    if not subjects:
        raise InputError(f"{WHERE}: `estimators` must name at least one; got none")
    failures = _by_subject(subjects, "expected_failures", expected_failures)
    errors = _by_subject(subjects, "expected_errors", expected_errors)
    checks = []
    for subject in subjects:
        failing, erring = failures[subject.name], errors[subject.name]
        for key in failing.keys() & erring.keys():
            raise InputError(
                f"{WHERE}: {key!r} of {subject.name} is in both expected_failures and expected_errors; "
                "leave it in the one that describes it."
            )
        laws = {law.id: law for law in binding_laws(subject)} | {key: LAWS[key] for key in (*failing, *erring)}
        checks += [
            Check(subject, law, failing.get(key), erring.get(key), max_examples=max_examples, seed=seed)
            for key, law in laws.items()
        ]
    return pytest.mark.parametrize("check", checks, ids=[repr(check) for check in checks])


def _by_subject(
    subjects: Iterable[Subject], argument: str, expected: Mapping[str, Any] | None
) -> dict[str, dict[str, str]]:
    if expected is not None and not isinstance(expected, Mapping):
        got = f"{expected!r} of type {type(expected).__name__}"
        reject_type(WHERE, argument, "be a mapping", got, 'Write {"law": "why"}.')
    names = [subject.name for subject in subjects]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for key, value in (expected or {}).items():
        nested = isinstance(value, Mapping)
        if nested and key not in found:
            raise unknown_name(WHERE, f"estimator in {argument}", key, names)
        for law, reason in value.items() if nested else [(key, value)]:
            if law not in LAWS:
                raise unknown_name(WHERE, f"law in {argument}", law, LAWS)
            if not isinstance(reason, str) or not reason:
                raise InputError(f"{WHERE}: {argument}[{law!r}] must say why; got {reason!r}")
            for name in [key] if nested else names:
                found[name][law] = reason
    return found
