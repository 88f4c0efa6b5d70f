"""Two implementations of one estimator must agree: the law behind ``--same-as``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import assume

from refbase.checks.law import Law, LawResult
from refbase.checks.laws._common import require_equal, show
from refbase.checks.runner import listing, run_law
from refbase.checks.strategies import batches
from refbase.checks.subject import Answer, Batch, Probe, Subject, SubjectError, Violation


def run_same_as(subject: Subject, other: Subject, **how: Any) -> LawResult:
    """Search for a batch on which the two give different advantages.

    Parameters
    ----------
    how
        As for `run_law`.

    Returns
    -------
    LawResult
        Its code calls both.

    Examples
    --------
    >>> from refbase.checks import as_subject
    >>> both = as_subject("refbase:group_mean"), as_subject("refbase:rloo")
    >>> run_same_as(*both).status
    'fails'
    """
    last = Probe(other)

    def check(probe: Probe, batch: Batch) -> None:
        nonlocal last
        last = theirs = Probe(other)
        if subject.numbers != other.numbers:  # each sees the batch in its own number type
            assume(probe.exact(batch) and theirs.exact(batch))
        ours, expected = _answer(probe, batch), _answer(theirs, batch)
        if isinstance(ours, str) and isinstance(expected, str):
            return  # both refuse
        if isinstance(ours, str) or isinstance(expected, str):
            raise Violation(
                f"only one of the two refuses: {_text(ours)} against {_text(expected)}", _text(expected), _text(ours)
            )
        # Of all rows: what one of them does with rejected rows, it may round otherwise.
        seen = [r for r in batch.rewards if math.isfinite(r)]
        bound = probe.span(seen, max(ours.eps, expected.eps))
        require_equal(f"A of {other.name}", expected.advantages, ours.advantages, bound)

    law = Law(
        "same_as",
        f"gives the advantages of {other.name}",
        frozenset(),
        lambda domain: batches(_common(domain, other), masks=True),
        check,
    )
    result = run_law(subject, law, **how)
    if not result.code:
        return result
    theirs = [line for line in listing(other, last).splitlines() if line not in _imports(result.code)]
    return replace(result, code="\n".join([result.code, "", f"# {other.name}", *theirs]))


def _imports(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.startswith(("import ", "from "))]


def _answer(probe: Probe, batch: Batch) -> Answer | str:
    try:
        return probe(batch)
    except SubjectError as error:
        return str(error)


def _text(answer: Answer | str) -> str:
    return answer if isinstance(answer, str) else show(answer.advantages)


def _common(a: Subject, b: Subject) -> Subject:
    """What both can be asked."""
    return replace(
        a,
        ragged=a.ragged and b.ragged,
        masks=a.masks and b.masks,
        dtypes=tuple(kind for kind in a.dtypes if kind in b.dtypes) or a.dtypes,
        min_group=max(a.min_group, b.min_group),
        min_valid=max(a.min_valid, b.min_valid),
    )
