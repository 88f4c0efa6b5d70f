"""docs/benchmarks.md from the results: ``python -m benchmarks.report``. Text comes from each benchmark's report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, ROOT

#: Results file (without .json) and the module whose ``section(results)`` writes about it, in the page's order.
SECTIONS: Mapping[str, str] = {
    "quality": "benchmarks.quality.report",
    "bvblend": "benchmarks.bvblend.report",
    "training": "benchmarks.training.report",
    "kernels": "benchmarks.kernels.report",
    "kernels-cuda": "benchmarks.kernels.report",
}
INTRODUCTION = """# Benchmarks

<!-- Made by `python -m benchmarks.report`; edit the reports under benchmarks/ instead. -->

Ratios of things measured in the same run. Machines are shared and noisy, so absolute times say little; the
commands are there to be run again.
"""


def page(results: Path) -> str:
    parts = [INTRODUCTION]
    for name, module in SECTIONS.items():
        path = results / f"{name}.json"
        if path.exists():
            write: Callable[[Any], str] = import_module(module).section
            data = json.loads(path.read_text())
            parts.append(write(data).rstrip() + "\n\n" + provenance(data["environment"]) + "\n")
    return "\n".join(parts)


def provenance(environment: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    machine = f"{environment['processor']}, {environment['cores']} cores"
    return f"`{environment['command']}`; Python {environment['python']}, {packages}; {machine}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    options = parser.parse_args()
    options.out.write_text(page(options.results))


if __name__ == "__main__":
    main()
