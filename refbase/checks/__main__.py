"""``python -m refbase.checks ESTIMATOR``: which laws does an estimator keep?

Exit status: 0 when all claimed laws hold, those that bind every estimator among them, 1 when some do not or when a
trait in --claims could not be checked, 2 when the command itself is wrong or the estimator cannot be imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from refbase.catalog import CATALOG, TRAITS
from refbase.checks.adapters import ARRAYS, KEYWORDS, SIGNATURES, VERL_CLAIMS, as_subject
from refbase.checks.law import Law, LawResult
from refbase.checks.laws import LAWS
from refbase.checks.pairs import run_same_as
from refbase.checks.report import Verdicts, as_json, write
from refbase.checks.runner import judge
from refbase.checks.subject import Subject
from refbase.checks.trial import first_trouble, larger_groups
from refbase.validate import InputError, InputTypeError, unknown_name

#: How the smallest group is set here.
MIN_GROUP = "--min-group {}"

EPILOG = """
signatures
  flat     f(rewards, group_ids) or f(rewards, group_ids, valid)   one reward and one label per rollout
  matrix   f(rewards), rewards of shape (prompts, rollouts)        returns the same shape
  verl     f(token_level_rewards=, response_mask=, index=, config=), as verl calls a registered estimator

examples
  python -m refbase.checks verl:rloo
  python -m refbase.checks verl:rloo --same-as verl:rloo_vectorized
  python -m refbase.checks refbase:shrinkage --arrays exact
  python -m refbase.checks mine.advantages:blend --signature matrix --claims unbiased,shift
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.list:
        _print_list()
        return 0
    if args.estimator is None:
        parser.error("name an estimator, or use --list")
    _from_here()
    # What an estimator prints is not part of the object.
    aside = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    try:
        claims = None if args.claims is None else _words(args.claims)
        with aside:
            subject = _subject(args.estimator, args, claims)  # one call shows what it returns
            other = None if args.same_as is None else _subject(args.same_as, args, None)
        laws = _chosen(args.laws)
    except (InputError, InputTypeError) as error:
        parser.error(str(error))
    except Exception:  # in a module of the user's: its traceback says more than a message of ours
        traceback.print_exc()
        return 2
    with aside:
        trouble = first_trouble(subject)
        if trouble is None:
            verdicts = Verdicts(subject, list(_run(subject, other, laws, args)), strict=claims is not None)
            verdicts = replace(verdicts, hint=larger_groups(subject, MIN_GROUP, verdicts.broken))
    if trouble is not None:
        _report_trouble(subject, trouble, args.json)
        return 1
    if args.json:
        print(as_json(verdicts, seed=args.seed, max_examples=args.max_examples))
    else:
        write(verdicts)
    return verdicts.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m refbase.checks",
        description="Search for counterexamples to the laws of advantage estimation.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("estimator", nargs="?", help="refbase:NAME, verl:NAME or package.module:function")
    parser.add_argument("--signature", default="flat", help=f"how to call it: {', '.join(SIGNATURES)} (default flat)")
    parser.add_argument("--arrays", default="torch", help=f"what it takes: {', '.join(ARRAYS)} (default torch)")
    parser.add_argument(
        "--claims", metavar="A,B", help="traits that it should have, besides the laws that bind every estimator"
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="argument of every call")
    parser.add_argument("--min-group", type=_positive, default=1, metavar="K", help="smallest group that it accepts")
    parser.add_argument("--same-as", metavar="OTHER", help="also compare its advantages with another estimator's")
    parser.add_argument("--laws", metavar="A,B", help="run these laws only")
    parser.add_argument("--seed", type=int, help="try other inputs, the same ones for the same seed")
    parser.add_argument("--max-examples", type=_positive, metavar="N", help="inputs to try per law")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="list laws, traits and known estimators")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1; got {text!r}")
    return int(text)


def _from_here() -> None:
    """Modules of the working directory can be named, also when this is not run with ``python -m``."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _subject(estimator: str, args: argparse.Namespace, claims: Iterable[str] | None) -> Subject:
    options = dict(_option(text) for text in args.option)
    for key in options:
        if key in (*KEYWORDS, "estimator"):
            use = f"; use --{key.replace('_', '-')}" if hasattr(args, key) else ""
            raise InputError(
                f"refbase.checks: --option sets arguments of the estimator, and {key!r} is one of the suite's{use}"
            )
    return as_subject(
        estimator,
        signature=args.signature,
        claims=claims,
        arrays=args.arrays,
        min_group=args.min_group,
        **options,
    )


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"refbase.checks: --option takes key=value; got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _chosen(text: str | None) -> list[Law]:
    if text is None:
        return list(LAWS.values())
    names = list(dict.fromkeys(_words(text)))
    if not names:
        raise InputError(f"refbase.checks: --laws names no law; leave it out to run all. Valid: {', '.join(LAWS)}.")
    for name in names:
        if name not in LAWS:
            raise unknown_name("refbase.checks", "law", name, LAWS)
    return [LAWS[name] for name in names]


def _run(subject: Subject, other: Subject | None, laws: Iterable[Law], args: argparse.Namespace) -> Iterable[LawResult]:
    how = {"max_examples": args.max_examples, "seed": args.seed}
    show = sys.stderr.isatty() and not args.json
    if other is not None:
        yield run_same_as(subject, other, **how)
    for law in laws:
        if show:
            print(f"\r\033[K{law.id}", end="", file=sys.stderr, flush=True)
        yield judge(subject, law, **how)
    if show:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _report_trouble(subject: Subject, trouble: str, as_object: bool) -> None:
    hint = larger_groups(subject, MIN_GROUP)
    if as_object:
        record = {"estimator": subject.name, "exit_code": 1, "error": trouble, "hint": hint, "laws": []}
        print(json.dumps(record, indent=2))
        return
    size = max(2, subject.min_group)
    print(f"{subject.name}: cannot be checked. On two groups of {size} rollouts it {trouble}")
    if hint is not None:
        print(hint)


def _print_list() -> None:
    print("laws\n")
    width = max(map(len, LAWS))
    for law in LAWS.values():
        needs = f" [{', '.join(sorted(law.traits))}]" if law.traits else ""
        print(f"  {law.id:<{width}}  {law.statement}{needs}")
    print("\ntraits, for --claims; laws without a trait bind every estimator\n")
    width = max(map(len, TRAITS))
    for trait, statement in TRAITS.items():
        print(f"  {trait:<{width}}  {statement}")
    print("\nestimators\n")
    print(f"  refbase:  {', '.join(CATALOG)}")
    print(f"  verl:     {', '.join(VERL_CLAIMS)}, and whatever is registered in it")


def run() -> NoReturn:
    try:
        sys.exit(main())
    except BrokenPipeError:  # piped into head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    run()
