"""Write docs/conformance.md and docs/conformance.json: the laws on verl's outcome-reward estimators and on ours.

    python docs/make_conformance.py                      search for counterexamples, write both files
    python docs/make_conformance.py --check              search again, compare the verdicts with the committed ones
    python docs/make_conformance.py --check --only verl:rloo,verl:opo

Nothing here knows an input: every counterexample in the page was found and shrunk by the search that
``python -m refbase.checks`` does. Needs verl 0.9.1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from refbase.catalog import CATALOG, TRAITS
from refbase.checks import LAWS, LawResult, as_subject
from refbase.checks.adapters import GREEDY_REWARD, VERL_CLAIMS, VERL_OTHERS
from refbase.checks.pairs import run_same_as
from refbase.checks.runner import judge

HERE = Path(__file__).parent
PAGE, DATA = HERE / "conformance.md", HERE / "conformance.json"

VERL_VERSION = "0.9.1"
VERL = tuple(f"verl:{name}" for name in VERL_CLAIMS)
OURS = tuple(f"refbase:{name}" for name in CATALOG)
#: Two implementations of one estimator.
PAIRS = (("verl:rloo", "verl:rloo_vectorized"), ("verl:grpo", "verl:grpo_vectorized"))

VERL_ISSUES = "https://github.com/verl-project/verl/issues"

#: Public reports of the same kind of behaviour, by law: where, and what about.
REPORTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "same_as": (
        ("verl#7581", "groups of one in `rloo` and `rloo_vectorized`; also verl#7793, verl#7794"),
        ("areal-project/AReaL#1705", "the same two conventions inside one code base"),
    ),
    "masked_absent": (
        ("verl#6452", "rejected rows in the group statistics"),
        ("NVIDIA-NeMo/RL#3467", "the same in another library"),
        ("areal-project/AReaL#1351", "the same before a whitening step"),
    ),
    "masked_inert": (
        ("verl#6452", "rejected rows in the group statistics"),
        ("verl#6349", "masks applied by multiplication let NaN through"),
    ),
    "masked_zero": (("verl#6349", "masks applied by multiplication let NaN through"),),
    "all_masked": (("alibaba/ROLL#475", "whitening with fewer than two valid tokens"),),
    "constant_zero": (
        ("verl#4598", "equal rewards and non-zero advantages in float32"),
        ("radixark/miles#701", "constant groups that a comparison with zero does not recognise"),
    ),
    "constant_batch": (("verl#4598", "equal rewards and non-zero advantages in float32"),),
    "output_dtype": (("verl#7964", "half precision in, float64 out"),),
    "whole_numbers": (("PrimeIntellect-ai/prime-rl#2029", "integer tensors in an advantage computation"),),
    "nan_contained": (("modelscope/ms-swift#9767", "one non-finite value reaches the whole group"),),
    "own_storage": (("NovaSky-AI/SkyRL#773", "advantages and returns are one tensor"),),
}

#: What a reader has to know to judge a finding.
REMARKS: Mapping[str, str] = {
    "masked_absent": "Whether a fully masked row belongs to the statistics of its group is a convention on which "
    "public projects differ; [ours](decisions/0001-masked-rows-are-out.md) leaves it out.",
    "masked_inert": "The second half of the same question: whether the content of a row that is not trained on "
    "reaches the rows that are.",
    "all_masked": "A batch without any valid token is unusual; the law asks for zeros instead of an error or NaN.",
    "same_as": "A group of one has no leave-one-out mean. One implementation keeps the raw reward, the other returns "
    "0; [both are defensible](decisions/0003-groups-of-one.md), a mixture is not.",
    "own_reward_independent": "In a group of one an advantage of 0 means that the baseline is the reward itself.",
    "unbiased": "The same groups of one: their rollouts do not contribute to the gradient.",
    "masked_zero": "`opo` divides by the number of valid tokens of a group, which is 0 if all its rows are masked.",
    "finite": "The same division by 0.",
    "constant_zero": "The mean of equal float32 numbers may differ from them in the last bit; a division by a "
    "standard deviation of the same size makes that visible.",
    "constant_batch": "As `constant_zero`, for batches in which all rewards are equal and a rollout may be alone in "
    "its group.",
    "large_offset": "Rewards near a million leave float32 with few digits for differences; statistics in float64, or "
    "relative to a member of the group, keep them.",
    "output_dtype": "A consumer that allocates by the reward's dtype sees a tensor of another one.",
    "whole_numbers": "verl's own reward tensors are float32; integers arrive from custom code.",
    "nan_contained": "[Ours](decisions/0004-non-finite-rewards.md) raise, and name the row; an option leaves such "
    "rollouts out.",
    "own_storage": "Harmless until something writes into one of the two tensors.",
    "relabel": "verl's own labels are uuid strings, on which all implementations agree. The differences show with "
    "labels that look like numbers, or of mixed type.",
    "shift": "A group of one keeps its raw reward, which moves with the offset, and whitening then moves all rows.",
    "scale_invariant": "A group of one keeps its raw reward among standardised ones, so its share depends on the unit "
    "of the rewards.",
    "zero_sum": "Where rejected rows count in the mean, the remaining ones do not sum to 0. Without masks, a group of "
    "equal rewards is enough where [`constant_zero`](#constant_zero) fails by more than rounding.",
}


def search(
    only: Sequence[str], *, claimed_only: bool = False, quiet: bool = False, shrink: bool = True
) -> dict[str, dict[str, LawResult]]:
    """Results by estimator and law; of ours, only the claimed laws."""
    found: dict[str, dict[str, LawResult]] = {}
    for name in (*VERL, *OURS):
        if only and name not in only:
            continue
        start = time.perf_counter()
        subject = as_subject(name)
        laws = [law for law in LAWS.values() if not law.id.startswith("history_") or subject.memory is not None]
        if claimed_only or name in OURS:
            laws = [law for law in laws if law.traits <= subject.claims]
        found[name] = {law.id: judge(subject, law, shrink=shrink) for law in laws}
        if not quiet:
            print(f"{name}: {len(laws)} laws, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    for name, other in PAIRS:
        if not only or name in only:
            found[name]["same_as"] = run_same_as(as_subject(name), as_subject(other))
    return found


def verdict(result: LawResult) -> str:
    """The verdict in one word, for the data file and the comparison."""
    word = {"not_applicable": "n/a", "error": "fails"}.get(result.status, result.status)
    if result.only_masked:
        word += " with masked rows"
    return word if result.claimed else f"{word}, not claimed"


def verdicts(found: Mapping[str, Mapping[str, LawResult]]) -> dict[str, dict[str, str]]:
    return {name: {law: verdict(result) for law, result in laws.items()} for name, laws in found.items()}


def differences(committed: Mapping[str, Any], found: Mapping[str, Mapping[str, LawResult]]) -> list[str]:
    """What a new search says otherwise than the data file, about the laws that were searched."""
    lines = []
    for name, laws in verdicts(found).items():
        before = committed["verdicts"].get(name, {})
        for law in {**laws, **(before if len(laws) >= len(before) else {})}:
            was, now = before.get(law, "absent"), laws.get(law, "absent")
            if was != now:
                lines.append(f"{name} {law}: {was} in {DATA.name}, {now} now")
    return lines


# --- the page -----------------------------------------------------------------------------------------------


def page(found: Mapping[str, Mapping[str, LawResult]]) -> str:
    return "\n".join([*_head(), *_tables(found), *_findings(found), *_claims(), ""])


def _head() -> Iterator[str]:
    yield "# Conformance"
    yield ""
    yield "<!-- Written by docs/make_conformance.py; do not edit. -->"
    yield ""
    yield (
        f"The laws of `refbase.checks`, tried on the outcome-reward estimators of verl {VERL_VERSION} and on this "
        f"library's (torch {version('torch')}, CPU). An input that breaks a law was found by random search and then "
        "made as small as possible; none was put in by hand. A law that holds is one for which the search found "
        "nothing, which is evidence and not proof."
    )
    yield ""
    yield (
        "The laws are this library's notion of what an advantage estimator should satisfy. Where a finding is a "
        "matter of convention, the text says so. What each of verl's estimators is held to is listed at the end."
    )
    yield ""
    yield "```console"
    yield "python docs/make_conformance.py            # writes this page"
    yield "python docs/make_conformance.py --check    # searches again and compares the verdicts"
    yield "python -m refbase.checks verl:rloo         # one estimator, with all counterexamples"
    yield "```"
    yield ""


LEGEND = (
    "✓ holds · ✗ does not hold · ✗ᵐ does not hold where rows are masked, and holds otherwise · "
    "(✓) (✗) the same for a law that the estimator is not held to · – does not apply"
)


def _tables(found: Mapping[str, Mapping[str, LawResult]]) -> Iterator[str]:
    yield f"## verl {VERL_VERSION}"
    yield ""
    yield LEGEND
    yield ""
    yield from _table({name: laws for name, laws in found.items() if name in VERL}, ("same_as", *LAWS))
    yield "## This library"
    yield ""
    yield "Kernels, with the laws that each claims in the catalogue; an empty cell is a law that is not claimed."
    yield ""
    yield from _table({name: laws for name, laws in found.items() if name in OURS}, tuple(LAWS))


def _table(found: Mapping[str, Mapping[str, LawResult]], order: Sequence[str]) -> Iterator[str]:
    names = list(found)
    yield f"| law | {' | '.join(name.partition(':')[2].replace('_', ' ') for name in names)} |"
    yield f"|---|{':-:|' * len(names)}"
    for law in order:
        cells = [_symbol(found[name].get(law)) for name in names]
        if any(cell not in ("", "–") for cell in cells):
            anchored = any("✗" in cell and "(" not in cell for cell in cells)
            label = f"[`{law}`](#{law})" if anchored else f"`{law}`"
            yield f"| {label} | {' | '.join(cells)} |"
    yield ""


def _symbol(result: LawResult | None) -> str:
    if result is None:
        return ""
    if result.status == "not_applicable":
        return "–"
    sign = "✓" if result.holds else "✗ᵐ" if result.only_masked else "✗"
    return sign if result.claimed else f"({sign})"


def _findings(found: Mapping[str, Mapping[str, LawResult]]) -> Iterator[str]:
    yield "## What was found"
    yield ""
    yield "One counterexample for each law, with what it prints. The command above shows the others."
    yield ""
    for law in ("same_as", *LAWS):
        broken = {
            name: laws[law]
            for name, laws in found.items()
            if law in laws and laws[law].claimed and laws[law].status in ("fails", "error")
        }
        if not broken:
            continue
        first = _shown(broken)
        result = broken[first]
        yield f"### {law}"
        yield ""
        if law == "same_as":
            pairs = [f"`{a}` and `{b}`" for a, b in PAIRS if a in broken]
            yield f"Two implementations of one estimator give the same advantages. Not so for {_listed(pairs)}."
        else:
            names = [f"`{name}`" + (" (only with masked rows)" if r.only_masked else "") for name, r in broken.items()]
            yield f"> {_escaped(result.law.statement)}"
            yield ""
            yield f"Not so for {_listed(names)}."
        yield ""
        if law in REMARKS:
            yield REMARKS[law]
            yield ""
        if law in REPORTS:
            yield f"Public reports: {'; '.join(f'{_link(where)} ({what})' for where, what in REPORTS[law])}."
            yield ""
        yield from _evidence(first, result)


def _evidence(name: str, result: LawResult) -> Iterator[str]:
    gap = "" if result.status == "error" else f"; expected `{_short(result.expected)}`, got `{_short(result.got)}`"
    yield f"`{name}`: {_one_line(result.reason)}{gap}."
    yield ""
    yield "```py"
    yield result.code.strip()
    yield "```"
    yield ""
    printed = output(result.code)
    if printed:
        yield "```text"
        yield printed
        yield "```"
        yield ""


def _shown(broken: Mapping[str, LawResult]) -> str:
    """The estimator whose counterexample is shown: the best known, errors last."""
    known = ("verl:grpo", "verl:rloo")

    def rank(name: str) -> tuple[bool, bool, int, int]:
        result = broken[name]
        fame = known.index(name) if name in known else len(known)
        return result.only_masked, result.status == "error", fame, len(result.code)

    return min(broken, key=rank)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("*", r"\*").replace("_", r"\_").replace("|", r"\|").replace("<", r"\<")


def _short(value: Any, most: int = 160) -> str:
    text = _one_line(str(value))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _link(where: str) -> str:
    repository, _, number = where.partition("#")
    base = VERL_ISSUES if repository == "verl" else f"https://github.com/{repository}/issues"
    return f"[{where}]({base}/{number})"


def output(code: str) -> str:
    """What a counterexample prints; an exception as its last line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "counterexample", "exec"), {})
        except Exception as error:
            print(f"{type(error).__name__}: {_one_line(str(error))}")
    return printed.getvalue().rstrip()


def _claims() -> Iterator[str]:
    yield "## What verl's estimators are held to"
    yield ""
    yield (
        "All of them: the laws without a trait (order, labels, masks, dtypes, storage, ...). Besides, by their "
        "definitions:"
    )
    yield ""
    yield "| estimator | traits |"
    yield "|---|---|"
    for name, traits in VERL_CLAIMS.items():
        yield f"| `{name}` | {', '.join(traits)} |"
    yield ""
    yield "| trait | |"
    yield "|---|---|"
    used = {trait for traits in VERL_CLAIMS.values() for trait in traits}
    for trait, statement in TRAITS.items():
        if trait in used:
            yield f"| {trait} | {_escaped(statement)} |"
    yield ""
    others = "; ".join(f"`{name}` {why}" for name, why in VERL_OTHERS.items())
    yield (
        "Each rollout is given to verl as two valid tokens, the reward on the second, and one token of padding, in "
        f"float32. `remax` gets a greedy reward of {GREEDY_REWARD} for every rollout, `gdpo` a single reward "
        "component, and `grpo_passk` groups of at least two, below which it raises. Batches without a valid token "
        "are shown to the whitening estimators by the law `all_masked` only. Not functions of one reward per "
        f"rollout, and left out: {others}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare verdicts, write nothing")
    parser.add_argument("--only", default="", help="with --check: these estimators, as verl:rloo,refbase:opo")
    args = parser.parse_args(arguments)
    only = [name for name in args.only.split(",") if name]
    unknown = sorted(set(only) - {*VERL, *OURS})
    if unknown:
        parser.error(f"unknown estimator {unknown[0]!r}; known: {', '.join((*VERL, *OURS))}")
    if only and not args.check:
        parser.error("--only goes with --check")
    if version("verl") != VERL_VERSION:
        parser.error(f"this page is about verl {VERL_VERSION}; installed is {version('verl')}")
    found = search(only)
    if args.check:
        changed = differences(json.loads(DATA.read_text()), found)
        print("\n".join(changed) or "all verdicts are as committed")
        return 1 if changed else 0
    DATA.write_text(json.dumps({"verl": VERL_VERSION, "verdicts": verdicts(found)}, indent=1) + "\n")
    PAGE.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
