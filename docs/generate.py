"""Rewrite the generated parts of the pages: ``python docs/generate.py [--check]``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from refbase.catalog import CHOICES, TRAITS
from refbase.checks import LAWS

DOCS = Path(__file__).parent


def laws() -> str:
    rows = ["| law | statement | for |", "|---|---|---|"]
    for law in LAWS.values():
        claimed = ", ".join(f"`{trait}`" for trait in sorted(law.traits)) or "all"
        rows.append(f"| `{law.id}` | {_plain(law.statement)} | {claimed} |")
    return "\n".join(rows)


def traits() -> str:
    rows = ["| trait | claim |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{trait}` | {_plain(claim)} |" for trait, claim in TRAITS.items())])


def choices() -> str:
    rows = ["| estimator | options | claims | since |", "|---|---|---|---|"]
    for choice in CHOICES:
        options = ", ".join(f"`{name}={value!r}`" for name, value in choice.options.items()).replace("'", '"')
        changes = [f"also `{trait}`" for trait in sorted(choice.gains)]
        changes += [f"not `{trait}`" for trait in sorted(choice.loses)]
        rows.append(f"| `{choice.estimator}` | {options} | {', '.join(changes)} | {_plain(choice.why)} |")
    return "\n".join(rows)


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    return re.sub(r"([*_|<])", r"\\\1", text)


#: (page, name of the marked part) -> its content
PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("checks.md", "laws"): laws,
    ("checks.md", "traits"): traits,
    ("checks.md", "choices"): choices,
}


def outdated(write: bool) -> list[str]:
    """Pages whose generated parts are not what they should be; `write` makes them so."""
    found = []
    for (page, part), content in PARTS.items():
        path = DOCS / page
        text = path.read_text()
        start, end = f"<!-- {part} -->\n", "<!-- end -->"
        old = text[text.index(start) : text.index(end, text.index(start))]
        current = text.replace(old, f"{start}{content()}\n")
        if current != text:
            found.append(page)
            if write:
                path.write_text(current)
    return found


def main() -> int:
    check = "--check" in sys.argv[1:]
    found = outdated(write=not check)
    for page in dict.fromkeys(found):
        print(f"docs/{page}: {'out of date, run python docs/generate.py' if check else 'rewritten'}")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
