"""An outside package uses the suite from an installed wheel, as its author would."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def author(tmp_path_factory):
    """The author's machine: a fresh environment with refbase's wheel in it, and the package's checkout."""
    pytest.importorskip("hatchling", reason="builds the wheel")
    home = tmp_path_factory.mktemp("author")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (home / "dist").glob("*.whl")
    venv.create(home / "env", with_pip=False, symlinks=True)
    (packages,) = (home / "env" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:  # what installing a pure wheel without dependencies does
        archive.extractall(packages)
    # The dependencies (torch, hypothesis, pytest, ...) come from the environment that runs these tests.
    here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(here))
    shutil.copytree(Path(__file__).with_name("outside"), home / "acme")
    return home


def run(author, *command):
    python = author / "env" / "bin" / "python"
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *command], cwd=author / "acme", env=elsewhere, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def pytest_in(author, name, *only):
    laws = ["-k", " or ".join(only)] if only else []
    return run(author, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", name, *laws)


def test_the_wheel_is_what_is_tested(author):
    code, out = run(author, "-c", "import refbase, refbase.checks; print(refbase.__file__)")
    assert code == 0, out
    assert Path(out.strip()).is_relative_to(author / "env")


def test_wheel_holds_the_package_and_no_tests(author):
    (wheel,) = (author / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"refbase/checks/__main__.py", "refbase/py.typed", "verl_ext/__init__.py"} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"refbase", "verl_ext"}


def test_a_good_estimator_passes(author):
    code, out = pytest_in(author, "test_good.py")
    assert code == 0, out
    assert "PASSED test_good.py::test_conformance[acme_rl.advantages:leave_one_out-permutation]" in out


def test_a_bug_is_caught(author):
    code, out = pytest_in(author, "test_bad.py", "zero_sum")
    assert code == 1, out
    assert "FAILED test_bad.py::test_conformance[acme_rl.advantages:whole_batch-zero_sum]" in out
    assert "from acme_rl.advantages import whole_batch as estimator" in out
    assert "# expected" in out


def test_expected_failures_cannot_rot(author):
    code, out = pytest_in(author, "test_known.py", "zero_sum", "shift")
    assert code == 1, out
    assert "XFAIL test_known.py::test_conformance[acme_rl.advantages:whole_batch-zero_sum]" in out
    assert "holds now: take 'shift' out of expected_failures" in out


def test_a_crash_is_no_expected_failure(author):
    code, out = pytest_in(author, "test_crash.py", "permutation", "deterministic", "whole_numbers")
    assert code == 1, out
    for law in ("permutation", "deterministic"):
        assert f"FAILED test_crash.py::test_conformance[acme_rl.advantages:needs_two-{law}]" in out
        assert f"PASSED test_crash.py::test_in_its_domain[acme_rl.advantages:needs_two-{law}]" in out
        assert f"if that is the known defect, put '{law}' into expected_errors" in out
    assert "say so with min_group=2" in out
    assert "XFAIL test_crash.py::test_in_its_domain[acme_rl.advantages:needs_two-whole_numbers]" in out


def test_the_command(author):
    base = ["-m", "refbase.checks", "--signature", "matrix", "--max-examples", "20", "--laws", "shift,zero_sum"]
    code, out = run(author, *base, "acme_rl.advantages:leave_one_out", "--claims", "shift,zero_sum")
    assert code == 0, out
    code, out = run(author, *base, "acme_rl.advantages:whole_batch", "--claims", "zero_sum")
    assert code == 1, out
    assert "Broken: " in out
    assert "print(estimator(torch.tensor([[" in out
