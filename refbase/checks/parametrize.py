"""The laws as pytest tests of somebody else's estimator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refbase.checks.adapters import as_subject
from refbase.checks.law import Law, LawResult
from refbase.checks.laws import LAWS
from refbase.checks.runner import binding_laws, run_law
from refbase.checks.subject import Subject
from refbase.validate import InputError, unknown_name


class Check:
    """One law on one estimator; calling it runs the law.

    Parameters
    ----------
    expected_failure
        Why the law is known not to hold, or None. The expectation is strict: the test fails when the law
        holds after all.
    """

    def __init__(self, subject: Subject, law: Law, expected_failure: str | None = None, **how: Any) -> None:
        self.subject, self.law, self.expected_failure, self.how = subject, law, expected_failure, how

    def __call__(self) -> LawResult:
        """Run the law; a failure prints the statement and the counterexample as code."""
        import pytest

        result = run_law(self.subject, self.law, **self.how)
        if result.status == "not_applicable":
            if self.expected_failure is not None:
                pytest.fail(f"{self!r} is in expected_failures but does not apply: {result.reason}", pytrace=False)
            pytest.skip(result.reason)
        if self.expected_failure is not None:
            if result.holds:
                pytest.fail(
                    f"{self!r} was expected to fail ({self.expected_failure}) and holds now: "
                    f"take {self.law.id!r} out of expected_failures",
                    pytrace=False,
                )
            pytest.xfail(self.expected_failure)
        if not result.holds:
            pytest.fail(result.report(), pytrace=False)
        return result

    def __repr__(self) -> str:
        return f"{self.subject.name}-{self.law.id}"


def parametrize_with_checks(
    estimators: Iterable[Any],
    *,
    expected_failures: Mapping[str, Any] | None = None,
    max_examples: int | None = None,
    seed: int | None = None,
    **how: Any,
) -> Any:
    """A pytest decorator: one test per estimator and law that binds it.

    Parameters
    ----------
    estimators
        What `as_subject` takes: functions, names, or subjects made with it.
    expected_failures
        ``{law id: reason}``, for all estimators, or ``{estimator's name: {law id: reason}}``. Strict: a law
        listed here that holds makes its test fail, so that the list cannot rot.
    max_examples, seed
        As for `run_law`.
    how
        signature, claims, arrays, ... as for `as_subject`, for every estimator in the list.

    Examples
    --------
    In a test module::

        from refbase.checks import parametrize_with_checks

        @parametrize_with_checks(["mine.advantages:blend"], claims=["unbiased", "shift"])
        def test_conformance(check):
            check()
    """
    import pytest

    subjects = [as_subject(estimator, **how) for estimator in estimators]
    if not subjects:
        raise InputError("parametrize_with_checks: `estimators` must name at least one; got none")
    failures = _by_subject(subjects, expected_failures or {})
    checks = []
    for subject in subjects:
        known = failures[subject.name]
        laws = {law.id: law for law in binding_laws(subject)} | {key: LAWS[key] for key in known}
        checks += [
            Check(subject, law, known.get(key), max_examples=max_examples, seed=seed) for key, law in laws.items()
        ]
    return pytest.mark.parametrize("check", checks, ids=[repr(check) for check in checks])


def _by_subject(subjects: Iterable[Subject], failures: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    names = [subject.name for subject in subjects]
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for key, value in failures.items():
        nested = isinstance(value, Mapping)
        if nested and key not in found:
            raise unknown_name("parametrize_with_checks", "estimator in expected_failures", key, names)
        for law, reason in value.items() if nested else [(key, value)]:
            if law not in LAWS:
                raise unknown_name("parametrize_with_checks", "law in expected_failures", law, LAWS)
            if not isinstance(reason, str) or not reason:
                raise InputError(f"parametrize_with_checks: expected_failures[{law!r}] must say why; got {reason!r}")
            for name in [key] if nested else names:
                found[name][law] = reason
    return found
