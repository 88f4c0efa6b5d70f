"""Loaded by verl in the processes of a test's job (``VERL_USE_EXTERNAL_MODULES``): keeps what estimators saw.

Writes one file per advantage step beside the checkpoints: what verl passed to the estimator, and what it got.
"""

from __future__ import annotations

import itertools
from functools import wraps
from pathlib import Path
from typing import Any

import torch

import verl_ext.register  # noqa: F401  (its hooks come first)
from verl_ext import step
from verl_ext.imports import after_import


def _record(module: Any) -> None:
    from verl_ext.adapters import ESTIMATORS

    for name in ESTIMATORS:
        module.ADV_ESTIMATOR_REGISTRY[name] = _recorded(module.ADV_ESTIMATOR_REGISTRY[name])


def _recorded(function: Any) -> Any:
    count = itertools.count()

    @wraps(function)
    def compute(**kwargs: Any) -> Any:
        advantages, returns = function(**kwargs)
        trainer = kwargs["config"]._get_root().trainer
        directory = Path(trainer.default_local_dir) / "advantages"
        directory.mkdir(parents=True, exist_ok=True)
        seen = {
            "rewards": kwargs["token_level_rewards"].clone(),
            "mask": kwargs["response_mask"].clone(),
            "uids": list(kwargs["index"]),
            "keywords": sorted(kwargs),
            "advantages": advantages.clone(),
            "returns": returns.clone(),
            "step": None if step.current() is None else step.current().number,
            "history_keys": None if step.current() is None else step.current().history_keys,
        }
        torch.save(seen, directory / f"{next(count):03d}.pt")
        return advantages, returns

    return compute


after_import("verl.trainer.ppo.core_algos", _record)
