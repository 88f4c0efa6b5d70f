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
    """All results on one estimator.

    Parameters
    ----------
    bound
        False where nobody said what the estimator claims: then no law is claimed, not even the universal ones.
    """

    subject: Subject
    results: Sequence[LawResult]
    bound: bool = True

    def claimed(self, result: LawResult) -> bool:
        return self.bound and result.claimed

    @property
    def broken(self) -> list[LawResult]:
        """Claimed laws that do not hold."""
        return [r for r in self.results if self.claimed(r) and r.status in ("fails", "error")]

    @property
    def kept(self) -> list[LawResult]:
        return [r for r in self.results if self.claimed(r) and r.holds]

    @property
    def bonus(self) -> list[LawResult]:
        """Laws that hold although nobody claimed them."""
        return [r for r in self.results if not self.claimed(r) and r.holds]

    @property
    def exit_code(self) -> int:
        return 1 if self.broken else 0

    @property
    def outside(self) -> list[LawResult]:
        """Laws that have no meaning for the estimator's signature."""
        return [r for r in self.results if r.status == "not_applicable"]

    @property
    def shown(self) -> list[LawResult]:
        """The rows of the table: all laws that apply, and those that were claimed and do not."""
        return [r for r in self.results if r.status != "not_applicable" or (self.claimed(r) and r.law.traits)]

    def summary(self) -> str:
        total = len(self.kept) + len(self.broken)
        if not self.bound:
            lines = [f"{self.subject.name}: nothing is claimed. Say what it should satisfy with --claims."]
        elif self.broken:
            names = ", ".join(r.law.id for r in self.broken)
            lines = [f"{self.subject.name}: {len(self.kept)} of {total} claimed laws hold. Broken: {names}."]
        else:
            lines = [f"{self.subject.name}: all {total} claimed laws hold."]
        if self.bonus:
            lines.append(f"Not claimed, yet no counterexample was found: {', '.join(r.law.id for r in self.bonus)}.")
        if self.outside:
            lines.append(f"Do not apply: {', '.join(r.law.id for r in self.outside)}.")
        return "\n".join(lines)

    def counterexamples(self) -> list[LawResult]:
        """Those to show: of the claimed laws, or of all laws where nothing is claimed."""
        if self.bound:
            return self.broken
        return [r for r in self.results if r.status in ("fails", "error")]


def as_json(verdicts: Verdicts, **extra: Any) -> str:
    laws = [
        {
            "law": r.law.id,
            "statement": r.law.statement,
            "traits": sorted(r.law.traits),
            "claimed": verdicts.claimed(r),
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
    claims = sorted(verdicts.subject.claims) if verdicts.bound else None
    record = {"estimator": verdicts.subject.name, "claims": claims, "exit_code": verdicts.exit_code, "laws": laws}
    return json.dumps({**record, **extra}, indent=2)


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
        yield f"{r.law.id:<{width}}  {_mark(verdicts, r):<24}  {r.law.statement}"
        if r.reason:
            yield f"{'':<{width}}  {'':<24}  - {r.reason}"
    for r in verdicts.counterexamples():
        yield ""
        yield f"--- {r.law.id}: {r.law.statement}"
        yield indent(_evidence(r), "    ")
    yield ""
    yield verdicts.summary()


def _mark(verdicts: Verdicts, r: LawResult) -> str:
    word = WORDS[r.status]
    return word if verdicts.claimed(r) or r.status == "not_applicable" else f"not claimed ({word})"


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
        style = colours[r.status] if verdicts.claimed(r) else "dim"
        statement = Text(r.law.statement)
        if r.reason:
            statement.append(f"\n{r.reason}", style="dim")
        table.add_row(r.law.id, Text(_mark(verdicts, r), style=style), statement)
    console.print(table)
    for r in verdicts.counterexamples():
        console.rule(Text(f"{r.law.id}: {r.law.statement}"), align="left")
        code = Syntax("", "python", background_color="default").highlight(_evidence(r))
        console.print(code, soft_wrap=True)  # lines stay whole, to be pasted
    console.print()
    console.print(Text(verdicts.summary(), style="bold red" if verdicts.broken else "bold green"))
