"""Error of the baselines and gradient variance relative to `rloo`, over populations, prompts and rollouts.

    python -m benchmarks.quality [--quick] [--rows 2000000]

Writes benchmarks/results/quality.json and docs/figures/quality.png, and prints the table.
"""

from __future__ import annotations

import json
import math
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.common import arguments, environment, write_json
from benchmarks.quality.bound import frontier
from benchmarks.quality.families import FAMILIES, RAGGED, Binary, sizes
from benchmarks.quality.measure import cell
from benchmarks.quality.report import draw_figure, section

PROMPTS = (4, 8, 16, 64, 256, 1024)
ROLLOUTS = (2, 4, 8, 16, RAGGED)
MAX_REPETITIONS = 40_000


def grid(quick: bool, rows: int, seed: int) -> list[dict[str, Any]]:
    families = list(FAMILIES)[::4] if quick else list(FAMILIES)
    prompts = (4, 16) if quick else PROMPTS
    rollouts = (2, RAGGED) if quick else ROLLOUTS
    cells = []
    started = time.process_time()
    for n in prompts:
        for name in families:
            for m in rollouts:
                cells.append(one(name, n, m, rows, seed))
        print(f"{n} prompts: {time.process_time() - started:.0f} s of processor time", file=sys.stderr, flush=True)
    return cells


def one(name: str, n: int, m: int | str, rows: int, seed: int) -> dict[str, Any]:
    family, size = FAMILIES[name], sizes(n, m)
    per_batch = n * (2 if isinstance(family, Binary) else int(size.max()))
    repetitions = max(20, min(MAX_REPETITIONS, math.ceil(rows / per_batch)))
    # a seed of its own, so that a cell can be run again alone
    own = zlib.crc32(f"{seed} {name} {n} {m}".encode())
    result = cell(family, size, repetitions, own)
    ratios = {rule: {q: r.as_json() for q, r in values.items()} for rule, values in result.items()}
    return {"family": name, "prompts": n, "rollouts": m, "batches": repetitions, "relative": ratios}


def bounds(quick: bool) -> list[Mapping[str, float]]:
    shapes = [(64, 2)] if quick else [(n, m) for n in (16, 64, 256, 1024) for m in (2, 8)]
    return [frontier(n, m, iterations=100 if quick else 2000).as_json() for n, m in shapes]


def main() -> None:
    parser = arguments(__doc__, "quality")
    parser.add_argument("--rows", type=int, default=2_000_000, help="simulated rewards per cell, roughly")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = 20_000 if options.quick else options.rows
    results = {
        "environment": environment(),
        "seed": options.seed,
        "cells": grid(options.quick, rows, options.seed),
        "bounds": bounds(options.quick),
    }
    write_json(options.out, results)
    draw_figure(results, options.figures / "quality.png")
    print(section(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
