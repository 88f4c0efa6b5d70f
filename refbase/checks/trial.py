"""One small batch before the laws: can an estimator be checked at all, and how small may its groups be?"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from refbase.checks.law import LawResult
from refbase.checks.subject import Answer, Batch, Probe, Subject, SubjectError

#: Groups of up to so many rollouts are tried in search of the smallest that an estimator accepts.
LARGEST = 8

_NOT_FINITE = "gave advantages"


def first_trouble(subject: Subject) -> str | None:
    """What keeps an estimator from being checked at all: it crashes, returns another shape, or is random."""
    batch = _batch(subject, max(2, subject.min_group))
    answers = []
    try:
        for _ in range(3):
            answers.append(Probe(subject)(batch).advantages)
    except SubjectError as error:
        return f"{error}\n{_where(error)}".rstrip()
    first = answers[0]
    for later in answers[1:]:
        if any(a != b and (a == a or b == b) for a, b in zip(first, later, strict=True)):
            return (
                "gave different advantages for the same input: it is not deterministic, or keeps state between "
                f"calls\n  first {first}\n  then  {later}"
            )
    return None


def larger_groups(subject: Subject, setting: str, results: Iterable[LawResult] | None = None) -> str | None:
    """Advice for an estimator that does not work on groups as small as it was said to accept, but on larger ones.

    Parameters
    ----------
    setting
        How `Subject.min_group` is set where the advice is read, as "min_group={}".
    results
        Where given, the advice must explain one of them.
    """
    troubles: list[str] = []
    size = subject.min_group
    while (trouble := _refusal(subject, size)) is not None:
        troubles.append(trouble)
        size += 1
        if size > LARGEST:
            return None
    if not troubles or (results is not None and not any(_explains(t, r) for t in troubles for r in results)):
        return None
    small = "one rollout" if size == 2 else f"{size - 1} rollouts"
    did = troubles[-1].splitlines()[0].rstrip(": ")
    return (
        f"On groups of {small} it {did}; on groups of {size} it works. If it is not meant for smaller groups, "
        f"say so with {setting.format(size)}."
    )


def _refusal(subject: Subject, size: int) -> str | None:
    """How it fails on groups of this size: by an error, or by advantages that are not finite."""
    subject = replace(subject, min_group=size)
    try:
        answer = Probe(subject)(_batch(subject, size))
    except SubjectError as error:
        return str(error)
    return None if _finite(answer) else f"{_NOT_FINITE} [{', '.join(map(str, answer.advantages))}]"


def _explains(trouble: str, result: LawResult) -> bool:
    """Whether a law was broken in the same manner: messages differ between batches, "raised ValueError" does not."""
    if result.status not in ("fails", "error"):
        return False
    if trouble.startswith(_NOT_FINITE):
        return re.search(r"\b(nan|inf)\b", f"{result.got}") is not None
    return " ".join(trouble.split()[:2]).rstrip(":") in result.reason


def _finite(answer: Answer) -> bool:
    return all(value == value and abs(value) != float("inf") for value in answer.advantages)


def _batch(subject: Subject, size: int) -> Batch:
    """Groups of that many rollouts, one of which is right in each: two groups, or as many as are defined."""
    groups = max(2, -(-subject.min_valid // size))
    rewards = [Fraction(row % size == 0) for row in range(groups * size)]
    labels = [chr(ord("a") + group) for group in range(groups) for _ in range(size)]
    return Batch(tuple(rewards), tuple(labels), None, subject.dtypes[0])


def _where(error: SubjectError) -> str:
    """The last lines of the traceback of what the estimator raised."""
    cause = error.__cause__
    if cause is None or isinstance(cause, SubjectError):
        return ""
    frames = traceback.extract_tb(cause.__traceback__)[-2:]
    return "".join(traceback.format_list(frames)).rstrip()
