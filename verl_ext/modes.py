"""What each of verl's trainers can do with an estimator of ours, for a whole configuration.

====================  =======================================================================================
legacy                ``trainer.use_v1=False``: the estimators, as in a stock trainer
``sync``              stock trainer: no memory in checkpoints, one history, rows instead of rollouts
``refbase``           ours: everything
``colocate_async``    as ``sync``; rollouts may be continued under a newer policy
``separate_async``    as ``colocate_async``, with ``parameter_sync_step`` batches per step; no GVPO, no CPU
====================  =======================================================================================
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from refbase import CATALOG
from refbase.validate import InputError
from verl_ext import checkpoint, cpu, history_keys
from verl_ext.gvpo_config import Finding
from verl_ext.options import BVBlendOptions, Options, parse, verl_name

__all__ = ["LEGACY", "estimator", "findings", "mode", "on_cpu", "options"]

LEGACY = "legacy"
_OURS = "trainer.v1.trainer_mode=refbase"
_NAMES = {verl_name(name): name for name in CATALOG}


def mode(config: DictConfig) -> str:
    """`LEGACY`, or ``trainer.v1.trainer_mode``."""
    return str(_get(config, "trainer.v1.trainer_mode", "sync")) if _get(config, "trainer.use_v1", True) else LEGACY


def on_cpu(config: DictConfig) -> bool:
    """Whether the job is meant for a machine without accelerator."""
    return cpu.enabled() or _get(config, "trainer.device") == "cpu"


def estimator(config: DictConfig) -> str | None:
    """Name in `refbase.CATALOG` of ``algorithm.adv_estimator``; None if it is not one of ours."""
    return _NAMES.get(str(_get(config, "algorithm.adv_estimator")))


def options(config: DictConfig) -> Options | None:
    """The checked options of the estimator, None if it is not one of ours."""
    name = estimator(config)
    return None if name is None else parse(name, config.algorithm)


def findings(config: DictConfig, current: str | None = None) -> list[Finding]:
    """What is wrong or doubtful about the trainer for the estimator; `verl_ext.gvpo_config` adds GVPO's own.

    Parameters
    ----------
    config
        The whole configuration.
    current
        The mode whose rules hold, for a trainer that knows it; by default that of the configuration.
    """
    current = mode(config) if current is None else current
    found = [*_trainer(config, current), *_loss(config), *_cpu(config)]
    name = estimator(config)
    if name is not None:
        found += _groups(config, name)
        chosen = parse(name, config.algorithm)
        if isinstance(chosen, BVBlendOptions):
            found += _memory(config, chosen, current)
    return found


def _trainer(config: DictConfig, current: str) -> list[Finding]:
    found = []
    if current == LEGACY and _get(config, "trainer.v1.trainer_mode") == "refbase":
        found.append(
            _error(
                "`trainer.use_v1=False` selects verl's legacy trainer, where `trainer.v1.trainer_mode=refbase` means "
                "nothing. Set `trainer.use_v1=True`."
            )
        )
    if current == "separate_async" and on_cpu(config):
        found.append(
            _error(
                "`trainer.v1.trainer_mode=separate_async` sends weights between two sets of devices through nccl, "
                f"nixl or the like, none of which a CPU job has. Use `sync`, `colocate_async` or `{_OURS}`."
            )
        )
    if estimator(config) is None or current == "refbase":
        return found
    if current == "separate_async":
        batches = _get(config, "trainer.v1.separate_async.parameter_sync_step", 1)
        found.append(
            _warning(
                f"with `trainer.v1.trainer_mode=separate_async` a batch of the estimator is the {batches}th part of "
                "`data.train_batch_size`, from policies of different age; this mode has not been tested with refbase."
            )
        )
    if _get(config, "actor_rollout_ref.rollout.multi_turn.enable", False):
        found.append(
            _warning(
                "a multi-turn rollout may be several rows, each of which counts as a rollout in this trainer. Set "
                f"`{_OURS}`, where a rollout counts once."
            )
        )
    return found


def _loss(config: DictConfig) -> list[Finding]:
    if _get(config, "actor_rollout_ref.actor.policy_loss.loss_mode") != "gvpo" or estimator(config) == "gvpo":
        return []
    return [
        _error(
            "`actor_rollout_ref.actor.policy_loss.loss_mode=gvpo` takes the weights of "
            "`algorithm.adv_estimator=gvpo` and no others. Set both or neither."
        )
    ]


def _cpu(config: DictConfig) -> list[Finding]:
    """What a CPU job needs beyond the defaults; `refbase_cpu` has all of it."""
    if not on_cpu(config):
        return []
    found = []
    for path, allowed, reason in (
        ("trainer.device", ("cpu",), "verl would look for an accelerator"),
        ("actor_rollout_ref.actor.strategy", ("fsdp2",), "FSDP1 and Megatron need an accelerator"),
        ("actor_rollout_ref.rollout.name", ("hf", "vllm"), "no other rollout runs on a CPU"),
        ("actor_rollout_ref.actor.fsdp_config.dtype", ("float32", "fp32"), "half precision is slower here"),
        ("actor_rollout_ref.ref.fsdp_config.dtype", ("float32", "fp32"), "it must be the actor's"),
    ):
        value = _get(config, path)
        if value not in allowed:
            found.append(
                _error(
                    f"on a CPU `{path}` must be {' or '.join(allowed)}: {reason}; got {value!r}. Use `--config-name "
                    "refbase_cpu`."
                )
            )
    return found


def _groups(config: DictConfig, name: str) -> list[Finding]:
    found = []
    size, prompts = _get(config, "actor_rollout_ref.rollout.n"), _get(config, "data.train_batch_size")
    local = name != "batch_mean"
    if local and size is not None and size < 2:
        found.append(
            _warning(
                f"{verl_name(name)}: `actor_rollout_ref.rollout.n={size}` gives groups of one, which have no mean of "
                "their own to be compared with."
            )
        )
    if name in ("shrinkage", "shrinkage_js", "batch_mean") and prompts is not None and prompts < 2:
        found.append(
            _warning(f"{name}: `data.train_batch_size={prompts}` leaves no other prompt whose rollouts could help.")
        )
    return found


def _memory(config: DictConfig, chosen: BVBlendOptions, current: str) -> list[Finding]:
    name = _get(config, "algorithm.adv_estimator")
    if current == "refbase":
        try:
            if chosen.history_key != "none":
                history_keys.key_function(chosen.history_key)
        except InputError as error:
            return [_error(str(error))]
        return []
    found = []
    if chosen.history_key != "none":
        found.append(
            _error(
                f"{name}: `algorithm.bvblend.history_key={chosen.history_key}` needs `{_OURS}`: a stock trainer shows "
                "an estimator no column but `uid`."
            )
        )
    if checkpoint.resume_directory(config.trainer) is not None and not chosen.allow_cold_history:
        found.append(
            _error(
                f"{name}: this trainer resumes without the history, which only `{_OURS}` saves. Use that, or set "
                "`algorithm.bvblend.allow_cold_history=true` to start without history."
            )
        )
    if (_get(config, "trainer.save_freq", -1) or -1) > 0:
        found.append(
            _warning(
                f"{name}: checkpoints of this trainer do not hold the history; a resumed job starts without. Set "
                f"`{_OURS}`, which saves it."
            )
        )
    return found


def _error(message: str) -> Finding:
    return Finding("error", message)


def _warning(message: str) -> Finding:
    return Finding("warning", message)


def _get(config: DictConfig, path: str, default: Any = None) -> Any:
    return OmegaConf.select(config, path, default=default)
