"""Estimators compared in real verl jobs on the CPU: learning, zero-signal groups, gradient variance, overhead.

    python -m benchmarks.training [--quick] [--jobs 3] [--minutes 120]

About 100 jobs of one to two minutes, then as many runs without verl as `--seeds` says, the noise of gradients and the
time of the advantage step. What is done stays done: the same command goes on where it was stopped. After `--minutes`
no further job is started. Writes benchmarks/results/training.json and docs/figures/training.png, prints the section.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import ROOT, arguments, environment, write_json
from benchmarks.training import gradient, job, plan, replica
from benchmarks.training.plan import Cell, Size
from benchmarks.training.replica import Replica
from benchmarks.training.report import draw_figures, section
from examples.first_run.job import JobFailed

#: Timed on the same batches in one job. verl's own first.
PEERS = ("grpo", "rloo", "grpo_vectorized", "refbase_grpo", "refbase_rloo", "shrinkage", "shrinkage_js", "bvblend",
         "bvblend_eb", "shrinkage_history", "gvpo")  # fmt: skip


class Runner:
    """Runs cells side by side until the time is up, and says how far it is."""

    def __init__(self, size: Size, folder: Path, quick: bool, jobs: int, minutes: float) -> None:
        self.size, self.folder, self.quick, self.jobs = size, folder, quick, jobs
        self.deadline = time.monotonic() + 60 * minutes
        self.records: dict[Cell, dict[str, Any]] = {}
        self.failed: dict[Cell, str] = {}
        self.skipped: list[Cell] = []

    def run(self, cells: Iterable[Cell]) -> None:
        todo = plan.missing(cells, self.records)
        began, finished, total = time.monotonic(), 0, len(todo)
        with ThreadPoolExecutor(self.jobs) as pool:
            running: dict[Future[dict[str, Any]], Cell] = {}
            while todo or running:
                while todo and len(running) < self.jobs:
                    cell = todo.pop(0)
                    if time.monotonic() > self.deadline and not (self.folder / cell.name / "record.json").exists():
                        self.skipped.append(cell)
                        continue
                    running[pool.submit(job.measure, cell, self.size, self.folder, self.quick)] = cell
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    cell, finished = running.pop(future), finished + 1
                    left = (time.monotonic() - began) / finished * (total - finished) / 60
                    say(f"{finished}/{total}  {cell.name}: {self._keep(cell, future)}  (about {left:.0f} min left)")

    def _keep(self, cell: Cell, future: Future[dict[str, Any]]) -> str:
        try:
            self.records[cell] = record = future.result()
        except JobFailed as error:
            self.failed[cell] = str(error)
            return f"failed\n{error}"
        return f"mean reward {area(record):.3f}, held out {record['held_out'][-1]['sampled']:.3f}"


def area(record: dict[str, Any]) -> float:
    """Area under the reward curve, per step."""
    reward = record["curves"]["reward"]
    return float(sum(reward) / len(reward))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def replicate(
    size: Size, seeds: int, folders: Mapping[tuple[str, int], Path], kept: Path, processes: int
) -> list[dict[str, Any]]:
    """The runs without verl, each one a line of the file `kept` once it is done."""
    done: dict[Replica, dict[str, Any]] = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        record = json.loads(line)
        done[Replica(**{field.name: record.pop(field.name) for field in fields(Replica)})] = record
    wanted = list(replica.plan(size, seeds))
    todo = [one for one in wanted if one not in done]
    say(f"runs without verl: {len(todo)} of {len(wanted)} to do")
    began = time.monotonic()
    with kept.open("a") as file:
        for count, (one, record) in enumerate(replica.run_all(todo, folders, size, processes), 1):
            done[one] = record
            file.write(json.dumps({**asdict(one), **record}) + "\n")
            file.flush()
            if count % 24 == 0:
                left = (time.monotonic() - began) / count * (len(todo) - count) / 60
                say(f"{count}/{len(todo)}  (about {left:.0f} min left)")
    return [{**asdict(one), **done[one]} for one in wanted]


def main() -> int:
    parser = arguments(__doc__, "training")
    parser.add_argument("--jobs", type=int, default=3, help="jobs side by side")
    parser.add_argument("--seeds", type=int, default=4, help="runs without verl from each model")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further job after this time")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "training", help="models, logs and records")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = plan.QUICK if options.quick else plan.FULL
    folder = options.folder.resolve() / ("quick" if options.quick else "full")
    say("models")
    folders = job.prepare_all(size, folder, options.quick, options.jobs)
    runner = Runner(size, folder, options.quick, options.jobs, options.minutes)
    runner.run(plan.cells(size))
    if size.sweep:
        runner.run(plan.at_best_rate(size, {cell: area(record) for cell, record in runner.records.items()}))
    replicas = replicate(size, options.seeds, folders, folder / "replicas.jsonl", options.jobs)
    say("noise of gradients")
    gradients = gradient.study({task: folders[task, size.seeds[0]] for task in size.tasks}, options.quick, options.seed)
    say("overhead")
    timing = job.overhead(size, folder, options.quick, PEERS)
    results = {
        "environment": environment("verl", "ray", "transformers"),
        "size": asdict(size),
        "not_run": [cell.name for cell in (*runner.failed, *runner.skipped)],
        "cells": list(runner.records.values()),
        "replicas": replicas,
        "gradients": gradients,
        "overhead": timing,
    }
    write_json(options.out, results)
    draw_figures(json.loads(options.out.read_text()), options.figures)
    print(section(json.loads(options.out.read_text())))
    for cell in runner.failed:
        say(f"failed: {cell.name}, see {folder / cell.name / 'train.log'}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
