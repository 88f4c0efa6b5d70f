"""Running one cell of the plan as an ordinary verl job, and reading what it learned."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer  # here: importing it in several threads at once fails

from benchmarks.common import ROOT
from benchmarks.training import probe
from benchmarks.training.plan import ESTIMATORS, TASKS, Cell, Size
from examples.first_run.job import ESTIMATORS as SETTINGS
from examples.first_run.job import Job, curve, metrics, run
from examples.first_run.model import PAD, WarmStart, encode, solved
from examples.first_run.model import Size as ModelSize
from examples.first_run.prepare import Prepared, Recipe, prepare
from examples.first_run.task import Task

#: A prompt is stuck if sampling solves it less often than this.
STUCK = 0.05

#: verl's metric -> name of the curve in a record.
CURVES = {
    "critic/score/mean": "reward",
    "actor/entropy": "entropy",
    "actor/grad_norm": "grad_norm",
    "bench/zero_signal": "zero_signal",
    "bench/all_wrong": "all_wrong",
    "bench/reward_variance": "reward_variance",
}


def recipe(task: str, seed: int, quick: bool) -> Recipe:
    if quick:
        tiny = WarmStart(learn_to=0.2, start_at=1.0, n_check=32, check_every=5, batch=32)
        return Recipe(seed, Task(n_train=64, n_val=16), ModelSize(hidden=32, layers=1, heads=2), tiny)
    return Recipe(seed, warm_start=WarmStart(**TASKS[task]))


def prepared(task: str, seed: int, folder: Path, quick: bool) -> Prepared:
    """Model and problems, made if they are not there."""
    return prepare(recipe(task, seed, quick), folder / "models")


def prepare_all(size: Size, folder: Path, quick: bool, processes: int) -> dict[tuple[str, int], Path]:
    """Folders of all models by (task, seed). In processes of their own: torch's random state is one for all threads."""
    wanted = [(task, seed) for task in size.tasks for seed in size.seeds]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = [pool.submit(prepared, task, seed, folder, quick) for task, seed in wanted]
        return {key: future.result().folder for key, future in zip(wanted, futures, strict=True)}


def job(cell: Cell, made: Prepared, size: Size, folder: Path, *extra: str) -> Job:
    name, needs = ESTIMATORS[cell.estimator]
    return Job(
        folder=folder / cell.name,
        model=made.model,
        train=made.train,
        val=made.val,
        prompt_length=made.prompt_length,
        estimator=name,
        seed=cell.seed,
        steps=size.steps,
        prompts=size.rows // cell.rollouts,
        rollouts=cell.rollouts,
        lr=cell.lr,
        extra=(
            # Held-out success is read off the saved models, exactly, instead of by sampling in the job.
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            f"trainer.save_freq={size.save_every}",
            "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
            "trainer.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={size.rows}",
            "actor_rollout_ref.actor.calculate_entropy=true",
            # A sum over the tokens: the gradient that the estimators' theory speaks of.
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
            "reward.custom_reward_function.name=exact_score",
            *(setting for setting in SETTINGS[name] if "trainer_mode" not in setting),
            *needs,
            "trainer.v1.trainer_mode=benchmark",
            *extra,
        ),
        env={
            "VERL_USE_EXTERNAL_MODULES": probe.__name__,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            # Ray runs its workers at niceness 15, behind whatever else the machine does.
            "RAY_worker_niceness": "0",
        },
    )


def measure(cell: Cell, size: Size, folder: Path, quick: bool) -> dict[str, Any]:
    """The record of a cell: curves by step, and success on the held-out problems at each saved model."""
    where = folder / cell.name
    done = where / "record.json"
    if done.exists():
        record: dict[str, Any] = json.loads(done.read_text())
        return record
    made = prepared(cell.task, cell.seed, folder, quick)
    this = job(cell, made, size, folder)
    rows = metrics(this.metrics)
    if not rows or rows[-1]["step"] < size.steps:
        shutil.rmtree(where, ignore_errors=True)  # what an interrupted job left
        rows = run(this)
    steps = [row for row in rows if "critic/score/mean" in row]
    saved = {int(path.name.rpartition("_")[2]): path for path in this.checkpoints.glob("global_step_*")}
    models = {0: made.model} | {step: saved[step] / "actor" / "huggingface" for step in sorted(saved)}
    record = {
        "cell": cell.as_json(),
        "curves": {
            name: [round(value, 6) for _, value in curve(steps, metric)]
            for metric, name in CURVES.items()
            if any(metric in row for row in steps)
        },
        "held_out": [
            {"step": step, **held_out(path, recipe(cell.task, cell.seed, quick))} for step, path in models.items()
        ],
    }
    shutil.rmtree(this.checkpoints)
    done.write_text(json.dumps(record) + "\n")  # last, so that a record is whole
    return record


def held_out(model: Path, recipe: Recipe) -> dict[str, float]:
    """Success on the problems that were not trained on, exactly: see `examples.first_run.model.solved`."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    _, problems = recipe.task.problems(recipe.seed)
    rows = encode(tokenizer, problems)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    greedy, sampled = solved(network, rows, tokenizer.convert_tokens_to_ids(PAD))
    return {
        "greedy": round(greedy.double().mean().item(), 6),
        "sampled": round(sampled.double().mean().item(), 6),
        "stuck": round((sampled < STUCK).double().mean().item(), 6),
    }


def overhead(size: Size, folder: Path, quick: bool, peers: Sequence[str]) -> dict[str, Any]:
    """One job in which each of `peers` computes the advantages of every batch, timed."""
    cell = Cell("warm", "grpo")
    where = folder / "overhead"
    done = where / "record.json"
    if done.exists():
        record: dict[str, Any] = json.loads(done.read_text())
        return record
    made = prepared(cell.task, cell.seed, folder, quick)
    shutil.rmtree(where, ignore_errors=True)
    wide = size if quick else replace(size, rows=512, steps=10, save_every=10)
    this = job(cell, made, wide, folder)
    this = replace(this, folder=where, env={**this.env, probe.PEERS: ",".join(peers)})
    steps = [row for row in run(this) if "critic/score/mean" in row]
    record = {
        "prompts": this.prompts,
        "rollouts": this.rollouts,
        "seconds": {name: [value for _, value in curve(steps, f"bench/seconds/{name}")] for name in peers},
        "step_seconds": [value for _, value in curve(steps, "timing_s/step")],
        "advantage_seconds": [value for _, value in curve(steps, "timing_s/adv")],
    }
    done.write_text(json.dumps(record) + "\n")
    return record
