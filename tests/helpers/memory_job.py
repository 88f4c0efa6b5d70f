"""A training job without models: our trainer's and verl's own code around advantages and checkpoints.

``python memory_job.py <directory> <steps> [--kill-after N] [--estimator NAME]`` resumes where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf

SAVE_EVERY = 2


class Queue:
    """TransferQueue's calls on one batch in memory; columns it has not are left out, as by the real one."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: list[str]) -> Any:
        from verl.utils import tensordict_utils as tu

        return tu.get_tensordict({name: self.fields[name] for name in select_fields if name in self.fields})

    def kv_batch_put(self, keys: Any, partition_id: str, fields: Any) -> Any:
        self.fields.update(fields.items())
        return SimpleNamespace(keys=keys, partition_id=partition_id)


class Batch(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.keys)


class Loader:
    """Prompts of a step depend on the step alone, once it is restored."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def batch(self) -> tuple[list[str], dict[str, list[Any]], list[dict[str, Any]]]:
        """Keys, columns and tags: ragged groups in any order, a masked row, padding rows."""
        self.position += 1
        rng = random.Random(self.position)
        rows = [(f"s{self.position}p{p}", g) for p in range(5) for g in range(rng.randint(1, 4))]
        rng.shuffle(rows)
        columns: dict[str, list[Any]] = {
            "data_source": [("math", "code")[int(uid[-1]) % 2] for uid, _ in rows],
            "extra_info": [{"level": int(uid[-1])} for uid, _ in rows],
            "reward": [rng.random() for _ in rows],
            "mask": [[1, 1, 0] for _ in rows],
        }
        columns["mask"][0] = [0, 0, 0]
        for pad in range(2):
            rows.append((f"pad{self.position}", pad))
            for name, value in (("data_source", "math"), ("extra_info", {"level": 0}), ("reward", 0.0)):
                columns[name].append(value)
            columns["mask"].append([0, 0, 0])
        keys = [f"{uid}_{session}_0" for uid, session in rows]
        return keys, columns, [{"is_padding": key.startswith("pad")} for key in keys]


def config(directory: Path, estimator: str = "bvblend_eb", **bvblend: Any) -> Any:
    return OmegaConf.create(
        {
            "algorithm": {
                "adv_estimator": estimator,
                "gamma": 1.0,
                "lam": 1.0,
                "use_kl_in_reward": False,
                "bvblend": {"window": 3, "decay": 0.7, "history_key": "data_source", **bvblend},
            },
            "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"checkpoint": {"async_save": False}}},
            "trainer": {
                "default_local_dir": str(directory),
                "default_hdfs_dir": None,
                "resume_mode": "auto",
                "resume_from_path": None,
                "del_local_ckpt_after_load": False,
                "v1": {"trainer_mode": "refbase"},
            },
        }
    )


class Job:
    """The trainer with everything but its memory, advantages and checkpoints taken out."""

    def __init__(self, chosen: Any, on_save: Any = lambda **_: None) -> None:
        import verl.trainer.ppo.v1.trainer_base as base

        import verl_ext.trainer as ours
        from verl_ext import modes
        from verl_ext.options import BVBlendOptions

        self.queue = base.tq = ours.tq = Queue()
        self.trainer = trainer = object.__new__(ours.RefbaseTrainer)
        trainer.config = chosen
        options = modes.options(chosen)
        trainer.memory = options if isinstance(options, BVBlendOptions) else None
        trainer.use_critic, trainer.trainer_mode = False, "sync"
        trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=self._models, load_checkpoint=self._models)
        trainer.train_dataloader = self.loader = Loader()
        trainer.checkpoint_callback = SimpleNamespace(on_save=on_save)

    def _models(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def run(self, steps: int, *, validate: bool = True) -> list[list[float]]:
        """Resume, train up to step ``steps``; returns the advantages of each row at each step."""
        self.trainer._load_checkpoint()
        out = []
        for step in range(self.trainer.global_steps + 1, steps + 1):
            self.trainer.global_steps = step
            out.append(self.step(twice=step % 3 == 0))
            if step % SAVE_EVERY == 0:
                self.trainer._save_checkpoint()
        return out

    def step(self, *, twice: bool = False) -> list[float]:
        keys, columns, tags = self.loader.batch()
        masks = columns["mask"]
        self.metrics: dict[str, Any] = {}

        def nested(parts: list[list[float]], dtype: torch.dtype) -> torch.Tensor:
            return torch.nested.as_nested_tensor([torch.tensor(p, dtype=dtype) for p in parts], layout=torch.jagged)

        self.queue.fields = {
            "uid": [key.rsplit("_", 2)[0] for key in keys],
            "data_source": columns["data_source"],
            "extra_info": columns["extra_info"],
            "response_mask": nested(masks, torch.int64),
            "rm_scores": nested([[0.0, r, 0.0] for r in columns["reward"]], torch.float32),
        }
        batch = Batch(keys=keys, tags=tags, partition_id="train")
        for _ in range(2 if twice else 1):  # a step may be tried again
            self.trainer._compute_advantage(batch, self.metrics)
        return [row[0].item() for row in self.queue.fields["advantages"].unbind()]


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--kill-after", type=int)
    parser.add_argument("--estimator", default="bvblend_eb")
    given = parser.parse_args()

    def on_save(*, global_step: int, **_: Any) -> None:
        if global_step == given.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    advantages = Job(config(given.directory, given.estimator), on_save).run(given.steps)
    (given.directory / "advantages.json").write_text(json.dumps(advantages))


if __name__ == "__main__":
    main()
