"""One verl training job: its settings as Hydra overrides, running it, and reading what it logged."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .task import REWARD_FILE

#: In the script that a run leaves behind.
OVERWRITES = (
    "# Run as it is, this writes over what it is found beside: change the paths of metrics and checkpoints first."
)

#: All that the plug-in registers, then verl's own of the same formulas, with what each needs beyond
#: `algorithm.adv_estimator`.
ESTIMATORS: Mapping[str, tuple[str, ...]] = {
    "shrinkage": (),
    "shrinkage_js": (),
    "shrinkage_history": (),
    "bvblend": (),
    "bvblend_eb": (),
    # The exact loss: our trainer, KL to the start in the reward (its coefficient is GVPO's beta), and a sum over the
    # tokens of a response, since the weight belongs to the whole of it.
    "gvpo": (
        "trainer.v1.trainer_mode=refbase",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gvpo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.kl_coef=0.02",
        "algorithm.gvpo.divide_by_beta=true",
    ),
    "group_mean": (),
    "batch_mean": (),
    "refbase_grpo": (),
    "refbase_rloo": (),
    "refbase_opo": (),
    "grpo": (),
    "rloo": (),
    "opo": (),
}

ROLLOUTS = ("hf", "vllm")


@dataclass(frozen=True)
class Job:
    """Settings of one run; `extra` are Hydra overrides that win over everything else, `env` more environment."""

    folder: Path
    model: Path
    train: Path
    val: Path
    prompt_length: int
    estimator: str = "shrinkage"
    rollout: str = "hf"
    seed: int = 1
    steps: int = 60
    prompts: int = 32
    rollouts: int = 8
    response_length: int = 8
    lr: float = 3e-4
    test_every: int = 15
    extra: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def overrides(self) -> list[str]:
        """Hydra overrides on top of ``verl_ext/configs/refbase_cpu.yaml``."""
        rows = self.prompts * self.rollouts
        return [
            f"algorithm.adv_estimator={self.estimator}",
            f"actor_rollout_ref.model.path={self.model}",
            f"data.train_files={self.train}",
            f"data.val_files={self.val}",
            f"reward.custom_reward_function.path={REWARD_FILE}",
            "reward.custom_reward_function.name=compute_score",
            f"data.train_batch_size={self.prompts}",
            f"data.max_prompt_length={self.prompt_length}",
            f"data.max_response_length={self.response_length}",
            f"data.seed={self.seed}",
            f"actor_rollout_ref.rollout.name={self.rollout}",
            f"actor_rollout_ref.rollout.n={self.rollouts}",
            f"actor_rollout_ref.rollout.seed={self.seed}",
            # Most of a step is the agent loop's bookkeeping for each rollout: one worker for each of two cores.
            "actor_rollout_ref.rollout.agent.num_workers=2",
            f"actor_rollout_ref.rollout.max_num_seqs={rows // 2}",
            f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={rows // 2}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={rows // 2}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows // 2}",
            f"actor_rollout_ref.actor.optim.lr={self.lr}",
            f"trainer.total_training_steps={self.steps}",
            "trainer.total_epochs=1000",
            "trainer.val_before_train=true",
            f"trainer.test_freq={self.test_every}",
            f"trainer.save_freq={self.steps}",
            f"trainer.default_local_dir={self.checkpoints}",
            "trainer.logger=[console,file]",
            *ESTIMATORS[self.estimator],
            *self.extra,
        ]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "verl_ext.cpu.run", *self.overrides()]

    @property
    def environment(self) -> dict[str, str]:
        # verl's file logger takes its path from nowhere else.
        return {**self.env, "VERL_FILE_LOGGER_PATH": str(self.metrics)}

    def script(self) -> str:
        """The command as a shell script, one override a line, to copy and change."""
        lines = [f"{key}={shlex.quote(value)}" for key, value in self.environment.items()]
        command = self.command()
        lines += [shlex.join(command[:3]), *(f"  {shlex.quote(override)}" for override in command[3:])]
        return " \\\n".join(lines)


class JobFailed(RuntimeError):
    """The job ended with an error; the message holds the end of its log."""


def run(job: Job, progress: Callable[[dict[str, Any]], None] = lambda record: None) -> list[dict[str, Any]]:
    """Run the job to its end and return its `metrics`. `progress` gets each record as it is written."""
    from verl_ext.cpu.run import die_with_parent

    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "command.sh").write_text(f"#!/bin/sh\n{OVERWRITES}\n{job.script()}\n")
    seen = 0
    with job.log.open("wb") as log:
        process = subprocess.Popen(
            job.command(),
            env={**os.environ, **job.environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        try:
            while True:
                code = process.poll()
                records = metrics(job.metrics)
                for record in records[seen:]:
                    progress(record)
                seen = len(records)
                if code is not None:
                    break
                time.sleep(0.2)
        finally:
            if process.poll() is None:  # interrupted: the launcher cleans up after its job when it is told to end
                process.terminate()
                process.wait()
    if code or not records or records[-1]["step"] < job.steps:
        tail = "\n".join(job.log.read_text(errors="replace").splitlines()[-30:])
        raise JobFailed(f"{tail}\n\nThe training job ended with exit code {code}; its whole log is {job.log}")
    return records


def metrics(path: Path) -> list[dict[str, Any]]:
    """What verl's file logger wrote so far: one dictionary per step, with the key ``step``."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # the last one may not be whole yet
    return [{"step": record["step"], **record["data"]} for record in map(json.loads, lines)]


def curve(records: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric, at the steps that have it."""
    return [(record["step"], record[key]) for record in records if key in record]


def success_key(records: list[dict[str, Any]]) -> str:
    """verl's name for the success rate on held-out problems."""
    return next(key for record in records for key in record if key.startswith("val-core/") and "/acc/mean@" in key)
