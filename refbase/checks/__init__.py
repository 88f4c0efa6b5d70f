"""Conformance suite: named laws, and a runner that tries to break them on any estimator.

>>> from refbase.checks import catalogue_subject, run_laws
>>> results = run_laws(catalogue_subject("rloo", "exact"), max_examples=5)
>>> [result.law.id for result in results if not result.holds]
[]
"""

from refbase.checks.catalogue import catalogue_subject, catalogue_subjects
from refbase.checks.law import Law, LawResult
from refbase.checks.laws import LAWS
from refbase.checks.runner import binding_laws, run_law, run_laws
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
    "binding_laws",
    "catalogue_subject",
    "catalogue_subjects",
    "run_law",
    "run_laws",
]
