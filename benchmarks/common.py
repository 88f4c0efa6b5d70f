"""What the benchmarks share: where results go, what ran, and tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"


def arguments(description: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a tiny size, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="results, JSON")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="folder for the figures")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def environment(*packages: str) -> dict[str, Any]:
    """Versions and the class of machine; nothing that names the machine."""
    found = {}
    for package in ("refbase", "numpy", "torch", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": found,
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else "benchmarks"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, value in results.items():
        if isinstance(value, list):  # one entry a line: readable differences, no line per number
            entries = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            lines.append(f" {json.dumps(key)}: [\n  {entries}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers should be formatted already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def figure() -> Any:
    """pyplot without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
