"""BV-Blend's options and `bvblend_eb` on streams of steps and in small policies that learn, relative to `rloo`.

    python -m benchmarks.bvblend [--quick] [--seeds 12]

Writes benchmarks/results/bvblend.json and docs/figures/bvblend.png, and prints the section.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

import torch

import refbase
from benchmarks.bvblend.contestants import LEARNERS, MAIN, OPTIONS, Contestant
from benchmarks.bvblend.learning import SETTINGS, train
from benchmarks.bvblend.measure import cell
from benchmarks.bvblend.report import draw_figure, section
from benchmarks.bvblend.streams import STREAMS, Stationary
from benchmarks.common import arguments, environment, write_json

#: Prompts a step, and independent streams of them.
PROMPTS: Mapping[int, int] = {2: 64, 8: 32, 64: 12}
ROLLOUTS = (2, 4, 8)
#: The rollouts at which the options are compared.
OPTIONS_AT = 4


def seed_of(*parts: object) -> int:
    """One for each cell, so that a cell can be run again alone."""
    return zlib.crc32(" ".join(map(str, parts)).encode())


def grid(quick: bool, seed: int) -> list[dict[str, Any]]:
    cells = []
    started = time.process_time()
    for name, stream in STREAMS.items():
        if quick and name not in ("Beta(5, 5)", "rising"):
            continue
        for n in (8,) if quick else PROMPTS:
            for m in (OPTIONS_AT,) if quick else ROLLOUTS:
                entered: dict[str, Contestant] = {**MAIN, **OPTIONS} if m == OPTIONS_AT else dict(MAIN)
                every = (10 if quick else 2) if isinstance(stream, Stationary) else (20 if quick else 3)
                streams = 4 if quick else PROMPTS[n]
                result = cell(stream, n, m, streams, seed_of(seed, name, n, m), entered, every)
                cells.append({"stream": name, "prompts": n, "rollouts": m, "streams": streams, "results": result})
        report(f"stream {name}", started)
    return cells


def lessons(quick: bool, seeds: int, seed: int) -> list[dict[str, Any]]:
    runs = []
    started = time.process_time()
    for setting in SETTINGS:
        entered = dict(list(LEARNERS.items())[::5]) if quick else LEARNERS
        for name, contestant in entered.items():
            chosen = setting.shortened(10, 2) if quick else setting
            result = train(chosen, contestant, 2 if quick else seeds, seed_of(seed, setting.name))
            runs.append({"setting": setting.name, "contestant": name, **result})
        report(f"learning, {setting.name}", started)
    return runs


def report(what: str, started: float) -> None:
    print(f"{what}: {time.process_time() - started:.0f} s of processor time", file=sys.stderr, flush=True)


def main() -> None:
    parser = arguments(__doc__, "bvblend")
    parser.add_argument("--seeds", type=int, default=12, help="runs of each learning rate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", refbase.DegenerateBatchWarning)
    results = {
        "environment": environment(),
        "seed": options.seed,
        "cells": grid(options.quick, options.seed),
        "lessons": lessons(options.quick, options.seeds, options.seed),
    }
    write_json(options.out, results)
    draw_figure(results, options.figures / "bvblend.png")
    print(section(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
