"""Conformance suite: named laws, and a runner that tries to break them on any estimator.

>>> from refbase.checks import catalogue_subject, run_laws
>>> results = run_laws(catalogue_subject("rloo", "exact"), max_examples=5)
>>> [result.law.id for result in results if result.status == "fails"]
[]
"""

from importlib.util import find_spec

if find_spec("hypothesis") is None:
    raise ModuleNotFoundError(
        'refbase.checks needs Hypothesis, which is not installed: pip install "refbase[checks]"', name="hypothesis"
    )

from refbase.checks.adapters import as_subject
from refbase.checks.catalogue import catalogue_subject, catalogue_subjects
from refbase.checks.law import Law, LawResult
from refbase.checks.laws import LAWS
from refbase.checks.pairs import run_same_as
from refbase.checks.parametrize import parametrize_with_checks
from refbase.checks.runner import binding_laws, judge, run_law, run_laws
from refbase.checks.subject import Answer, Batch, Probe, Subject, SubjectError, Violation

__all__ = [
    "LAWS",
    "Answer",
    "Batch",
    "Law",
    "LawResult",
    "Probe",
    "Subject",
    "SubjectError",
    "Violation",
    "as_subject",
    "binding_laws",
    "catalogue_subject",
    "catalogue_subjects",
    "judge",
    "parametrize_with_checks",
    "run_law",
    "run_laws",
    "run_same_as",
]
