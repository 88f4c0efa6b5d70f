"""Run laws on subjects: generate, check, shrink, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from zlib import crc32

from hypothesis import HealthCheck, Phase, errors, given, reject, settings
from hypothesis import seed as hypothesis_seed

from refbase.checks.law import Law, LawResult
from refbase.checks.strategies import WIDE
from refbase.checks.subject import Probe, Subject, SubjectError, Violation


def run_law(
    subject: Subject,
    law: Law,
    *,
    max_examples: int | None = None,
    derandomize: bool = True,
    seed: int | None = None,
    shrink: bool = True,
) -> LawResult:
    """Search for an input on which the law fails, and shrink it.

    First among all batches, then among those of several groups and of large groups; see `domains`. What is found is
    looked for again in batches of one row, two rows and so on: a smaller counterexample than shrinking gives.

    Parameters
    ----------
    max_examples
        Inputs to try; by default what the law asks for.
    derandomize
        Try the same inputs at every run. Turn it off to search further.
    seed
        Try the inputs of this seed, the same at every run, instead.
    shrink
        Look for a small counterexample, which takes most of the time where a law fails. Turn it off for the verdict.

    Examples
    --------
    >>> from refbase.checks import LAWS, catalogue_subject, run_law
    >>> run_law(catalogue_subject("rloo", "exact"), LAWS["zero_sum"]).status
    'holds'
    """
    reason = law.needs(subject)
    if reason is not None:
        return LawResult(law, subject, "not_applicable", reason)
    if derandomize and seed is None:
        seed = crc32(law.id.encode())  # one of its own: else all laws of like inputs would miss the same ones
    how: dict[str, Any] = {"seed": seed}
    tries = law.max_examples if max_examples is None else max_examples
    examples = 0
    for domain, most in domains(subject, law, tries):
        found, rows = _search(domain, law, most, shrink=False, **how)
        examples += found.examples
        if found.status in ("fails", "error"):
            if not shrink:
                return replace(found, subject=subject)
            wheres = [(domain, most)]
            if law.sized:
                # What large groups showed, one of them may show; other mistakes, any batch.
                near = [(size, domain if size >= domain.min_group else subject) for size in SMALL if size < rows]
                wheres = [*((replace(base, max_rows=size), 4 * tries) for size, base in near), *wheres]
            return _smallest(subject, law, wheres, found, **how)
        if domain is subject:
            first = found
    return replace(first, examples=examples)


def domains(subject: Subject, law: Law, tries: int) -> list[tuple[Subject, int]]:
    """Where to search, and how many of the inputs to try there.

    A search among all batches dwells on some kinds and may leave out others, so that two kinds without which many
    mistakes are never seen have searches of their own. What learns from the other groups is nothing without several:
    `refbase.shrinkage_js` has weight 0 beside fewer than three. And some mistakes act on large groups only.
    """
    shares = [(subject, 3)]
    if law.sized:
        shares.append((replace(subject, several=SEVERAL), 1))
    large = WIDE if law.sized else 4  # what bounds sizes itself stops early, or goes from small to large
    if subject.min_group < large:
        shares.append((replace(subject, min_group=large), 1))
    total = sum(share for _, share in shares)
    return [(domain, -(-tries * share // total)) for domain, share in shares]


#: Groups of two rows and more: one, three others, and one that may lose its rows to a mask.
SEVERAL = 5
#: Rows of the largest batch, in the order in which a smaller counterexample is looked for.
SMALL = (1, 2, 3, 4, 6, 8)


def _smallest(subject: Subject, law: Law, wheres: list[tuple[Subject, int]], found: LawResult, **how: Any) -> LawResult:
    """A shrunk counterexample from the first of these searches that finds one again, else what was found."""
    if found.status == "fails":  # inputs that raise are no example of it, and would end the search
        wheres = [*((replace(domain, call=_rejecting(domain.call)), tries) for domain, tries in wheres), wheres[-1]]
    for domain, tries in wheres:
        small, _ = _search(domain, law, tries, **how)
        if small.status == found.status:
            return replace(small, subject=subject)
    return replace(found, subject=subject)


def _search(
    subject: Subject, law: Law, max_examples: int, *, seed: int | None, shrink: bool = True
) -> tuple[LawResult, int]:
    """One search by Hypothesis, and the rows of the largest batch of the input that it ended with."""
    last: dict[str, Any] = {"probe": Probe(subject), "examples": 0}

    def attempt(case: Any) -> None:
        last["probe"] = probe = Probe(subject)
        law.check(probe, case)
        last["examples"] += 1

    search = settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    test = search(given(law.cases(subject))(attempt))
    status, reason, gap = "holds", "", (None, None)
    try:
        (test if seed is None else hypothesis_seed(seed)(test))()
    except Violation as violation:
        status, reason, gap = "fails", str(violation), (violation.expected, violation.got)
    except SubjectError as error:
        status, reason = "error", str(error)
    except errors.Flaky:
        status = "error"
        reason = "the same input gave different results: the estimator is not deterministic, or keeps state"
    except errors.Unsatisfiable:
        return LawResult(law, subject, "not_applicable", "no generated input meets the law's conditions"), 0
    code = "" if status == "holds" else listing(subject, last["probe"])
    probe = last["probe"]
    return LawResult(law, subject, status, reason, code, *gap, last["examples"], probe.masked), probe.rows


def judge(subject: Subject, law: Law, **how: Any) -> LawResult:
    """`run_law`, with the plainest evidence.

    * A law that is broken without masked rows is shown without them. One that is broken with masked rows only
      says so, since its cause is then the mask and not the law's own.
    * Where some inputs raise and others give wrong numbers, the wrong numbers are shown.
    """
    result = run_law(subject, law, **how)
    unmasked, without_masks = replace(subject, masks=False), False
    if result.status in ("fails", "error") and subject.masks and law.needs(unmasked) is None:
        plain = run_law(unmasked, law, **how)
        if plain.status in ("fails", "error"):
            result, without_masks = replace(plain, subject=subject), True
        elif plain.holds and result.masked:
            result = replace(result, reason=f"{result.reason} ({ONLY_MASKED})", only_masked=True)
    if result.status != "error":
        return result
    domain = replace(subject, call=_rejecting(subject.call), masks=subject.masks and not without_masks)
    # Most inputs may raise; those that do not deserve a longer search.
    longer = {**how, "max_examples": 4 * (how.get("max_examples") or law.max_examples)}
    wrong = run_law(domain, law, **longer)
    if wrong.status != "fails":
        return result
    reason = f"{wrong.reason} (on other inputs it {result.reason})"
    return replace(wrong, subject=subject, reason=reason, only_masked=result.only_masked)


def _rejecting(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, for which inputs that raise are outside its domain."""

    def quiet(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except (Exception, SystemExit):
            reject()

    return quiet


#: Ends the reason of a result for which `LawResult.only_masked` holds.
ONLY_MASKED = "only where some rows are masked"


def run_laws(subject: Subject, laws: Iterable[Law] | None = None, **how: Any) -> list[LawResult]:
    """`run_law` for each law, by default all that the subject's claims bind it to."""
    return [run_law(subject, law, **how) for law in (binding_laws(subject) if laws is None else laws)]


def binding_laws(subject: Subject) -> list[Law]:
    """The universal laws and those whose traits the subject claims."""
    from refbase.checks.laws import LAWS

    return [law for law in LAWS.values() if law.traits <= subject.claims]


_IMPORTS = {
    "json.": "import json",
    "torch.": "import torch",
    "Fraction(": "from fractions import Fraction",
    "np.": "import numpy as np",
}


def listing(subject: Subject, probe: Probe) -> str:
    """The recorded calls as Python to paste, imports first."""
    text = probe.listing
    if text is None:
        notes = [f"  # {probe.notes[k]}" if k in probe.notes else "" for k in range(len(probe.calls))]
        text = "\n".join(f"print({call}){note}" for call, note in zip(probe.calls, notes, strict=True))
    text = f"{subject.code}\n{text}" if subject.code else text
    lines = text.splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    missing = [line for mark, line in _IMPORTS.items() if mark in text and line not in imports]
    body = [line for line in lines if line not in imports]
    return "\n".join([*missing, *dict.fromkeys(imports), *body]).strip("\n")
