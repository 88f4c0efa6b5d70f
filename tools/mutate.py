"""Mutation check of the estimators: does a test fail when the code is wrong?

    python tools/mutate.py                           every mutant of refbase/spec and refbase/kernels
    python tools/mutate.py refbase/kernels/rloo.py   those of some files
    python tools/mutate.py --every 10                a sample
    python tools/mutate.py --list                    what would be tried
    python tools/mutate.py --write                   also docs/mutation.md; half an hour on one core
    python tools/mutate.py --write --resume          go on with a run that was stopped
    python tools/mutate.py --write --retry           tests were added: try again what survived

A mutant is a file with one change to its syntax tree: another operator or comparison, a constant off by one,
a negated condition, a dropped method call. Each runs in a fork of a process that has torch loaded already, on
the tests that concern it, until one fails. Survivors that cannot be told from the original are listed in
tools/equivalent_mutants.json with the reason; any other survivor is a test that is missing.

First the same tests run on the unchanged code: where they fail, no mutant's death would mean anything. Each verdict is
appended to runs/mutation.jsonl (`--ledger`) as it is reached. `--resume` takes the verdicts that are there, if they
are of the same code and tests; `--retry` takes the deaths, if they are of the same code. Inputs are the same at every
run, and time limits are of processor time, so that other work on the machine changes no verdict.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("refbase/spec", "refbase/kernels")
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.json"
REPORT = ROOT / "docs" / "mutation.md"
LEDGER = ROOT / "runs" / "mutation.jsonl"
#: What decides a verdict, besides the versions of Python, torch and Hypothesis.
CODE = ("refbase/**/*.py", "tools/mutate.py", "pyproject.toml")
TESTS = ("tests/estimators/*.py", "tests/core/*.py", "tests/helpers/*.py", "tests/conftest.py")
LIMIT = 120  # seconds of processor time per mutant; one that runs for ever is noticed too

BINARY = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
          ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.FloorDiv: ast.Mult}  # fmt: skip
COMPARE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
           ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
#: Methods whose result is of the receiver's kind: without the call, the receiver itself is used.
DROPPED = {"clamp", "sqrt", "abs", "cumsum", "flip", "detach", "double", "median", "nan_to_num", "float", "mul"}


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    function: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Independent of line numbers."""
        return f"{self.path}::{self.function}: {self.before} -> {self.after}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# --- making mutants -----------------------------------------------------------------------------------


def mutants_of(path: str) -> Iterator[Mutant]:
    tree = ast.parse((ROOT / path).read_text())
    seen: Counter[str] = Counter()
    for node, function in _nodes(tree, ""):
        for changed in _changes(node):
            new = _replaced(tree, node, changed)
            before, after = _text(node), _text(changed)
            base = f"{function}: {before} -> {after}"
            seen[base] += 1
            # The same change may occur twice in a function.
            place = function if seen[base] == 1 else f"{function}#{seen[base]}"
            yield Mutant(path, node.lineno, place, before, after, ast.unparse(new))


def _text(node: ast.AST) -> str:
    """On one line."""
    return f"if {ast.unparse(node.test)}" if isinstance(node, ast.If) else ast.unparse(node)


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """All nodes that a change of behaviour can sit in: no docstrings, no annotations, no imports."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}" if function else node.name
    yield node, function
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # an assertion
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.AST):
                yield from _nodes(child, function)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if (isinstance(node, ast.BinOp) and type(node.op) in BINARY) or (
        isinstance(node, ast.AugAssign) and type(node.op) in BINARY
    ):
        yield _with(node, op=BINARY[type(node.op)]())
    elif isinstance(node, ast.Compare):
        for k, op in enumerate(node.ops):
            if type(op) in COMPARE:
                yield _with(node, ops=[*node.ops[:k], COMPARE[type(op)](), *node.ops[k + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.If):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield _with(node, value=node.value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DROPPED:
        yield node.func.value


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _replaced(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    """A copy of the tree with one node exchanged."""

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is old:
                return new
            return self.generic_visit(_shallow(node))

    return ast.fix_missing_locations(Swap().visit(tree))


def _shallow(node: ast.AST) -> ast.AST:
    new = copy.copy(node)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(new, name, list(value))
    return new


# --- running one --------------------------------------------------------------------------------------


#: The law that nearly every mutant breaks, being compared with the other implementation, and those that see
#: what it does not.
REFERENCE = "reference"
LAWS = (
    REFERENCE,
    "masked_absent",
    "convex_weight",
    "extreme_scale",
    "large_offset",
    "constant_zero",
    "constant_batch",
    "whole_numbers",
    "output_dtype",
    "own_storage",
    "no_graph",
)


class Suite:
    """What is run on a mutant, cheapest first. Cases of the laws are drawn once, before any mutation."""

    def __init__(self, mutants: list[Mutant]) -> None:
        from refbase.checks import binding_laws, catalogue_subjects

        self.paths = list(dict.fromkeys(m.path for m in mutants))
        self.cases: dict[str, list[tuple[str, list[object]]]] = {}  # by subject: law id and its cases
        wanted = {subject.name for m in mutants for subject in catalogue_subjects() if _concerns(m, subject)}
        for subject in catalogue_subjects():
            if subject.name in wanted:
                laws = [law for law in binding_laws(subject) if law.id in LAWS and law.needs(subject) is None]
                self.cases[subject.name] = [(law.id, _draw(law, subject)) for law in laws]

    def complaint(self, paths: Iterable[str]) -> str:
        """The first test about these files that fails on the unchanged code, or ''."""
        files = dict.fromkeys(name for path in paths for name in _tests_of(path))
        for path in paths:
            if found := self._laws(unchanged(path), reference=True) or self._laws(unchanged(path)):
                return found
        return self._pytest(["tests/estimators", "tests/core"] if "tests/estimators" in files else list(files))

    def kills(self, mutant: Mutant) -> str:
        """The first test that fails on the mutated code, or ''."""
        _install(mutant)
        *own, core = _tests_of(mutant.path)
        found = self._laws(mutant, reference=True)  # nearly every mutant differs from the other implementation
        if own != ["tests/estimators"]:
            return found or self._pytest(own) or self._laws(mutant) or self._pytest([core])
        return found or self._laws(mutant) or self._pytest([*own, core])

    def _laws(self, mutant: Mutant, reference: bool = False) -> str:
        from refbase.checks import Probe, catalogue_subjects
        from refbase.checks.laws import LAWS as BY_ID

        for subject in catalogue_subjects():
            if not _concerns(mutant, subject):
                continue
            for law, cases in self.cases[subject.name]:
                for case in cases if (law == REFERENCE) == reference else ():
                    try:
                        BY_ID[law].check(Probe(subject), case)
                    except Exception as error:
                        if type(error).__name__ != "UnsatisfiedAssumption":
                            return f"{law} on {subject.name}"
        return ""

    def _pytest(self, paths: list[str]) -> str:
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-W", "ignore"]
        return "pytest" if pytest.main([*options, *paths]) else ""


def _tests_of(path: str) -> tuple[str, str]:
    """An estimator's own tests, or those of all for what estimators share; and those of the core."""
    own = f"tests/estimators/test_{Path(path).stem}.py"
    return own if (ROOT / own).is_file() else "tests/estimators", "tests/core"


def _draw(law: object, subject: object) -> list[object]:
    """Some of the cases that Hypothesis tries for a law."""
    from hypothesis import HealthCheck, Phase, given, settings

    found: list[object] = []
    count = 100 if law.id == REFERENCE else 10  # type: ignore[attr-defined]
    how = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @how
    @given(law.cases(subject))  # type: ignore[attr-defined]
    def collect(case: object) -> None:
        found.append(case)

    collect()
    return found


def _concerns(mutant: Mutant, subject: object) -> bool:
    """Whether the subject runs the mutated file, or is compared with what does."""
    from refbase.catalog import CATALOG

    name, numbers = subject.name.partition("[")[0], subject.numbers  # type: ignore[attr-defined]
    stem = Path(mutant.path).stem
    if stem == "_history":
        stems: tuple[str, ...] = ("bvblend", "bvblend_eb", "shrinkage_history")
    elif stem == "shrinkage":  # its kernel lends a function to the other
        stems = ("shrinkage", "shrinkage_js")
    elif stem == "shrinkage_js":  # and so does that
        stems = ("shrinkage_js", "shrinkage_history")
    else:
        stems = (stem,) if stem in CATALOG else tuple(CATALOG)
    # The law `reference` compares a kernel with its spec, so it is about both.
    return name in stems and (numbers == "torch" or "spec" in mutant.path)


def _install(mutant: Mutant) -> None:
    """Run the mutated source in its module, and let everybody who imported from it have the new objects."""
    module = sys.modules[mutant.module]
    old = dict(vars(module))
    exec(compile(mutant.source, str(ROOT / mutant.path), "exec"), vars(module))
    new = {id(value): vars(module)[name] for name, value in old.items() if vars(module)[name] is not value}
    for other in [m for name, m in sys.modules.items() if name.split(".")[0] == "refbase"]:
        for name, value in list(vars(other).items()):
            if id(value) in new:
                setattr(other, name, new[id(value)])
            for cell in getattr(value, "__closure__", None) or ():  # the public functions close over the spec's
                if id(cell.cell_contents) in new:
                    cell.cell_contents = new[id(cell.cell_contents)]


def run_one(suite: Suite, mutant: Mutant | None) -> str:
    """What killed it, '' if nothing did; of the unchanged code (None), what failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if mutant is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            verdict = suite.complaint(suite.paths) if mutant is None else suite.kills(mutant)
        except BaseException as error:
            verdict = f"{type(error).__name__} on loading"
        os.write(write, verdict.encode()[:200])
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        verdict = pipe.read().decode()
    return verdict or ("a crash or the time limit" if status else "")


def warm_up() -> None:
    """Load everything once for all forks: a module that were not loaded could not be exchanged."""
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of the time of a short run
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    import pytest
    import sympy
    import torch
    from hypothesis import Phase, settings

    import refbase

    torch.set_num_threads(1)
    # A failure is enough; nobody reads the smallest one.
    settings.register_profile(
        "mutation", derandomize=True, database=None, deadline=None, max_examples=40, phases=(Phase.generate,)
    )
    assert all((pytest, sympy, refbase.CATALOG))
    for path in all_paths():
        import_module(unchanged(path).module)


def all_paths() -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]


def unchanged(path: str) -> Mutant:
    return Mutant(path, 0, "", "", "", "")


# --- the ledger ---------------------------------------------------------------------------------------


class Ledger:
    """Verdicts by mutant, one line of JSON each, written as they are reached.

    The first line holds fingerprints of code (with versions) and tests: verdicts of others are not mixed in. What died
    by some tests dies by more, so `retry` asks for the same code only, and forgets what survived.
    """

    def __init__(self, path: Path, resume: bool, retry: bool = False) -> None:
        self.path, self.verdicts = path, {}
        marks = {"code": fingerprint(CODE), "tests": fingerprint(TESTS)}
        if (resume or retry) and path.is_file():
            first, *lines = path.read_text().splitlines()
            found = json.loads(first)
            if found.get("code") != marks["code"] or (not retry and found != marks):
                raise SystemExit(f"{path} is of other code, tests or versions; run again without --resume or --retry")
            whole = [line for line in lines if line.endswith("}")]  # the last one may have been cut off
            verdicts = {entry["mutant"]: entry["verdict"] for entry in map(json.loads, whole)}
            self.verdicts = {key: verdict for key, verdict in verdicts.items() if verdict or not retry}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            self._line(file, marks)
            for key, verdict in self.verdicts.items():
                self._line(file, {"mutant": key, "verdict": verdict})

    def add(self, mutant: Mutant, verdict: str) -> None:
        self.verdicts[mutant.key] = verdict
        with self.path.open("a") as file:
            self._line(file, {"mutant": mutant.key, "verdict": verdict})

    @staticmethod
    def _line(file: TextIO, entry: dict[str, str]) -> None:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def fingerprint(patterns: Iterable[str]) -> str:
    """Of files, and of the versions that decide what they do."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    versions = [platform.python_version(), *(version(name) for name in ("torch", "hypothesis", "numpy", "pytest"))]
    digest.update(" ".join(versions).encode())
    return digest.hexdigest()


def time_left(seconds: list[float], left: int) -> str:
    """An estimate from the mutants run so far; most die in a second, survivors see every test."""
    minutes = sum(seconds) / max(len(seconds), 1) * left / 60
    return f"{minutes:.0f} min left" if minutes >= 1.5 else f"{60 * minutes:.0f} s left"


# --- the report ---------------------------------------------------------------------------------------


def report(results: list[tuple[Mutant, str]], reasons: dict[str, str], total: int) -> str:
    dead = [m for m, verdict in results if verdict]
    alive = [m for m, verdict in results if not verdict]
    share = 100 * len(dead) / max(len(results), 1)
    known = sum(m.key in reasons for m in alive)
    sample = f", a sample of the {total}" if len(results) < total else ""
    lines = [
        "# Mutation check",
        "",
        "Does a test fail when an estimator is wrong? `python tools/mutate.py --write` changes one operator, constant,",
        "condition or call at a time in `refbase/spec` and `refbase/kernels`, runs the tests that concern the file,",
        "and writes this page. The inputs are the same at every run.",
        "",
        f"{len(results)} mutants{sample}: {len(dead)} die ({share:.1f} %), {known} cannot be told from the original,",
        f"{len(alive) - known} survive for want of a test.",
        "",
        "| file | mutants | die |",
        "|---|---|---|",
    ]
    totals, killed = Counter(m.path for m, _ in results), Counter(m.path for m in dead)
    lines += [f"| `{path}` | {totals[path]} | {killed[path]} |" for path in sorted(totals)]
    lines += ["", "## Survivors", ""]
    for mutant in sorted(alive, key=lambda m: m.key):
        reason = reasons.get(mutant.key, "**no reason known: a test is missing**")
        place = f"`{mutant.path}`, {mutant.function.split('#')[0] or 'module'}"
        lines.append(f"* {place}: `{mutant.before}` → `{mutant.after}`. {reason}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files below refbase/spec or refbase/kernels")
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--write", action="store_true", help="write docs/mutation.md")
    parser.add_argument("--match", default="", help="only mutants whose key contains this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: each Nth mutant only")
    parser.add_argument("--resume", action="store_true", help="keep the verdicts of a run that was stopped")
    parser.add_argument("--retry", action="store_true", help="keep the deaths of an earlier run of the same code")
    parser.add_argument("--ledger", type=Path, default=LEDGER, metavar="FILE", help="where verdicts are written")
    args = parser.parse_args(arguments)
    mutants = [m for path in args.paths or all_paths() for m in mutants_of(path) if args.match in m.key][:: args.every]
    if args.list:
        print("\n".join(f"{m.path}:{m.line} {m.before} -> {m.after}" for m in mutants), f"\n{len(mutants)} mutants")
        return 0
    reasons = known_reasons()
    every = {m.key for path in all_paths() for m in mutants_of(path)}
    if stale := sorted(set(reasons) - every):
        raise SystemExit(f"{EQUIVALENT.name} gives reasons for mutants that do not exist:\n" + "\n".join(stale))
    ledger = Ledger(args.ledger, args.resume, args.retry)
    todo = [m for m in mutants if m.key not in ledger.verdicts]
    print(f"{len(mutants)} mutants, {len(mutants) - len(todo)} of them with a verdict already", flush=True)
    if todo:
        warm_up()
        suite = Suite(todo)
        if complaint := run_one(suite, None):
            raise SystemExit(f"the unchanged code fails: {complaint}")
        seconds: list[float] = []
        for k, mutant in enumerate(todo):
            start = time.monotonic()
            verdict = run_one(suite, mutant)
            seconds.append(time.monotonic() - start)
            ledger.add(mutant, verdict)
            word = f"killed by {verdict}" if verdict else f"SURVIVED{' (known)' if mutant.key in reasons else ''}"
            left = time_left(seconds, len(todo) - k - 1)
            print(f"{k + 1}/{len(todo)} {seconds[-1]:.1f}s, {left}: {word} | {mutant.key}", flush=True)
    results = [(m, ledger.verdicts[m.key]) for m in mutants]
    alive = [m for m, verdict in results if not verdict]
    print(f"{len(results) - len(alive)} of {len(results)} die")
    if args.write:
        REPORT.write_text(report(results, reasons, len(every)))
    return 1 if any(m.key not in reasons for m in alive) else 0


def known_reasons() -> dict[str, str]:
    return json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else {}


if __name__ == "__main__":
    sys.exit(main())
