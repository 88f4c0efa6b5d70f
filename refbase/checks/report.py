"""The verdicts on one estimator: as a table, as plain text, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, TextIO

from refbase.checks.law import LawResult
from refbase.checks.subject import Subject

WORDS = {"holds": "holds", "fails": "fails", "error": "error", "not_applicable": "not applicable"}


@dataclass(frozen=True)
class Verdicts:
    """All results on one estimator. The laws that bind every estimator count as claimed by each.

    Parameters
    ----------
    hint
        What may explain many of the results at once.
    strict
        Whether every trait in the subject's claims should be checkable, which those of the catalogue are not always.
    """

    subject: Subject
    results: Sequence[LawResult]
    hint: str | None = None
    strict: bool = False

    @property
    def broken(self) -> list[LawResult]:
        """Claimed laws that do not hold."""
        return [r for r in self.results if r.claimed and r.status in ("fails", "error")]

    @property
    def kept(self) -> list[LawResult]:
        return [r for r in self.results if r.claimed and r.holds]

    @property
    def bonus(self) -> list[LawResult]:
        """Laws that hold although nobody claimed them."""
        return [r for r in self.results if not r.claimed and r.holds]

    @property
    def exit_code(self) -> int:
        return 1 if self.broken or self.unchecked or (self.strict and self.unchecked_claims) else 0

    @property
    def unchecked(self) -> bool:
        """Whether something is claimed and none of it could be checked."""
        return not self.kept and not self.broken and any(r.claimed for r in self.results)

    @property
    def unchecked_claims(self) -> dict[str, str]:
        """Claimed traits of which no law could be checked, with what stood in the way."""
        found: dict[str, str] = {}
        for trait in sorted(self.subject.claims):
            own = [r for r in self.results if r.claimed and trait in r.law.traits]
            if own and all(r.status == "not_applicable" for r in own):
                found[trait] = own[0].reason
        return found

    @property
    def outside(self) -> list[LawResult]:
        """Laws that have no meaning for the estimator's signature."""
        return [r for r in self.results if r.status == "not_applicable"]

    @property
    def shown(self) -> list[LawResult]:
        """The rows of the table: all laws that apply, and those that were claimed and do not."""
        return [r for r in self.results if r.status != "not_applicable" or (r.claimed and r.law.traits)]

    def summary(self) -> str:
        total = len(self.kept) + len(self.broken)
        if self.unchecked:
            lines = [f"{self.subject.name}: nothing that is claimed could be checked."]
        elif self.broken:
            names = ", ".join(r.law.id for r in self.broken)
            lines = [f"{self.subject.name}: {len(self.kept)} of {total} claimed laws hold. Broken: {names}."]
        elif total:
            lines = [f"{self.subject.name}: all {total} claimed laws hold."]
        else:
            lines = [f"{self.subject.name}: none of these laws is claimed."]
        if self.unchecked_claims and not self.unchecked:
            reasons = "; ".join(f"{trait} ({reason})" for trait, reason in self.unchecked_claims.items())
            lines.append(f"Claimed, and could not be checked: {reasons}.")
        if self.hint is not None:
            lines.append(self.hint)
        if not self.subject.claims:
            lines.append("These bind every estimator. Say with --claims what else it should satisfy.")
        if self.bonus:
            lines.append(f"Not claimed, yet no counterexample was found: {', '.join(r.law.id for r in self.bonus)}.")
        if self.outside:
            lines.append(f"Do not apply: {', '.join(r.law.id for r in self.outside)}.")
        return "\n".join(lines)


def as_json(verdicts: Verdicts, **extra: Any) -> str:
    laws = [
        {
            "law": r.law.id,
            "statement": r.law.statement,
            "traits": sorted(r.law.traits),
            "claimed": r.claimed,
            "status": r.status,
            "reason": r.reason,
            "code": r.code,
            "expected": _text(r.expected),
            "got": _text(r.got),
            "only_masked": r.only_masked,
            "examples": r.examples,
        }
        for r in verdicts.results
    ]
    claims = sorted(verdicts.subject.claims)
    record = {"estimator": verdicts.subject.name, "claims": claims, "exit_code": verdicts.exit_code}
    return json.dumps(
        {**record, "unchecked": verdicts.unchecked_claims, "hint": verdicts.hint, "laws": laws, **extra}, indent=2
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def write(verdicts: Verdicts, out: TextIO | None = None) -> None:
    """The table, the counterexamples and one summary; with colours on a terminal that has `rich`."""
    out = out or sys.stdout
    if out.isatty():
        try:
            _write_rich(verdicts, out)
            return
        except ImportError:
            pass
    for line in plain(verdicts):
        print(line, file=out)


def plain(verdicts: Verdicts) -> Iterator[str]:
    width = max((len(r.law.id) for r in verdicts.shown), default=0)
    for r in verdicts.shown:
        yield f"{r.law.id:<{width}}  {_mark(r):<24}  {r.law.statement}"
        if r.reason:
            yield f"{'':<{width}}  {'':<24}  - {r.reason}"
    for r in verdicts.broken:
        yield ""
        yield f"--- {r.law.id}: {r.law.statement}"
        yield indent(_evidence(r), "    ")
    yield ""
    yield verdicts.summary()


def _mark(r: LawResult) -> str:
    word = WORDS[r.status]
    return word if r.claimed or r.status == "not_applicable" else f"not claimed ({word})"


def _evidence(r: LawResult) -> str:
    lines = [r.code] if r.code else []
    if r.status == "fails":
        lines += [f"# {r.reason}", f"# expected {r.expected}", f"# got      {r.got}"]
    else:
        lines.append(f"# {r.reason}")
    return "\n".join(lines)


def _write_rich(verdicts: Verdicts, out: TextIO) -> None:
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out)
    table = Table(title=verdicts.subject.name, title_justify="left", show_lines=False)
    table.add_column("law", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("statement")
    colours = {"holds": "green", "fails": "bold red", "error": "bold red", "not_applicable": "dim"}
    for r in verdicts.shown:
        style = colours[r.status] if r.claimed else "dim"
        statement = Text(r.law.statement)
        if r.reason:
            statement.append(f"\n{r.reason}", style="dim")
        table.add_row(r.law.id, Text(_mark(r), style=style), statement)
    console.print(table)
    for r in verdicts.broken:
        console.rule(Text(f"{r.law.id}: {r.law.statement}"), align="left")
        code = Syntax("", "python", background_color="default").highlight(_evidence(r))
        console.print(code, soft_wrap=True)  # lines stay whole, to be pasted
    console.print()
    console.print(Text(verdicts.summary(), style="bold red" if verdicts.broken else "bold green"))
