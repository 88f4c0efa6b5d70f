"""The tree is the architecture: the four-file rule, and who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import refbase

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "refbase"
EVERY_ESTIMATOR = pytest.mark.parametrize("name", list(refbase.CATALOG))


def imported(path):
    """Absolute names of all modules that a file imports anywhere, functions included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(ROOT).with_suffix("").parts
            prefix = ".".join(base[: len(base) - node.level]) if node.level else ""
            module = ".".join(part for part in (prefix, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def offenders(folder, *forbidden):
    files = sorted((PACKAGE / folder).rglob("*.py"))
    assert len(files) > len(refbase.CATALOG)  # the folder is there and full
    return [
        (path.name, name)
        for path in files
        for name in imported(path)
        if any(name == root or name.startswith(f"{root}.") for root in forbidden)
    ]


@EVERY_ESTIMATOR
def test_four_files(name):
    entry = refbase.CATALOG[name]
    docs = [ROOT / entry.docs] if (ROOT / "docs" / "estimators").is_dir() else []
    for path in (PACKAGE / "spec" / f"{name}.py", PACKAGE / "kernels" / f"{name}.py", *docs):
        assert path.is_file(), path.relative_to(ROOT)
    tests = ROOT / "tests" / "estimators"
    if tests.is_dir():
        assert (tests / f"test_{name}.py").is_file()
    assert callable(entry.load_spec())
    assert callable(entry.load_kernel())
    assert getattr(refbase, name).__name__ == name


def test_no_estimator_without_a_row():
    places = {
        "spec": (PACKAGE / "spec").glob("[!_]*.py"),
        "kernels": (PACKAGE / "kernels").glob("[!_]*.py"),
        "docs": (ROOT / "docs" / "estimators").glob("[!_]*.md"),
        "tests": (ROOT / "tests" / "estimators").glob("test_*.py"),
    }
    stray = {
        place: sorted({path.stem.removeprefix("test_") for path in paths} - set(refbase.CATALOG) - {"README", "index"})
        for place, paths in places.items()
    }
    assert not any(stray.values()), stray


def test_spec_stays_apart():
    assert offenders("spec", "torch", "refbase.kernels", "refbase.tokens", "verl", "verl_ext") == []


def test_kernels_stay_apart():
    assert offenders("kernels", "refbase.spec", "verl", "verl_ext") == []


def test_library_knows_nothing_of_the_plugin():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert "verl_ext" not in {name.split(".")[0] for name in imported(path)}, path.relative_to(ROOT)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    loaded = run("import sys, refbase; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "refbase" in loaded
    assert not {"torch", "verl", "ray", "sympy", "hypothesis", "rich", "verl_ext"} & set(loaded)


def test_import_is_fast():
    """Under 0.3 s, NumPy included, in processor time: other work may share the machine."""
    code = "import time; start = time.process_time(); import refbase; print(time.process_time() - start)"
    assert min(float(run(code)) for _ in range(3)) < 0.3
