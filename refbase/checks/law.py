"""What a law is, and what running one yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

from refbase.checks.subject import Probe, Subject


@dataclass(frozen=True)
class Law:
    """One named property.

    Parameters
    ----------
    id
        Short and stable.
    statement
        One sentence with its formula.
    traits
        All of them must be claimed for the law to bind; empty means that it binds everybody.
    cases
        The inputs to try on a subject, as a Hypothesis strategy.
    check
        ``check(probe, case)``; raises `Violation` where the law does not hold.
    needs
        Why the law has no meaning for a subject (no masks in its signature, say), or None.
    sized
        Whether its inputs are those of `strategies.batches`, which keep to the subject's ``max_rows`` and ``several``.
    """

    id: str
    statement: str
    traits: frozenset[str]
    cases: Callable[[Subject], SearchStrategy[Any]]
    check: Callable[[Probe, Any], None]
    needs: Callable[[Subject], str | None] = lambda subject: None
    max_examples: int = 60
    sized: bool = True


@dataclass(frozen=True)
class LawResult:
    """Outcome of one law on one subject.

    Parameters
    ----------
    status
        "holds", "fails" (with a counterexample), "error" (the subject raised or returned something
        unreadable) or "not_applicable".
    reason
        Of a failure, an error or a law that does not apply.
    code
        The counterexample as Python to paste.
    masked
        The counterexample has masked rows.
    only_masked
        The law holds on batches without masked rows (known to `judge` only).
    """

    law: Law
    subject: Subject
    status: str
    reason: str = ""
    code: str = ""
    expected: Any = None
    got: Any = None
    examples: int = 0
    masked: bool = False
    only_masked: bool = False

    @property
    def claimed(self) -> bool:
        return self.law.traits <= self.subject.claims

    @property
    def holds(self) -> bool:
        return self.status == "holds"

    def report(self) -> str:
        """Id, statement and, unless the law holds, what went wrong on which input."""
        lines = [f"{self.subject.name}: law `{self.law.id}` {self.status.replace('_', ' ')}", f"  {self.law.statement}"]
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.code:
            lines += ["", self.code]
        if self.status == "fails":
            lines += ["", f"# expected {self.expected}", f"# got      {self.got}"]
        return "\n".join(lines)
