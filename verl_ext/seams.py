"""What of verl our trainer, its worker and its loss rely on, and whether this verl still has it.

verl promises none of this. Each entry says who needs it, so that a change shows as one sentence instead of a
wrong gradient. The tests check it against the supported release, ``python -m verl_ext.doctor`` against yours.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["SEAMS", "Seam", "broken"]

_BASE = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_SYNC = "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync"
_WORKER = "verl.workers.engine_workers:TrainingWorker"
_HYBRID = "verl.workers.engine_workers:ActorRolloutRefWorker"
_ENGINE = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine"


@dataclass(frozen=True)
class Seam:
    """Something of verl that we use.

    Attributes
    ----------
    target
        ``module:attribute.path``.
    user
        The module of ours that uses it, and what for.
    parameters
        Names that its signature must have, in this order at its start; None for no callable.
    fields
        Fields that a configuration dataclass must have.
    mentions
        Text that its source must hold: calls, keys and formats we count on.
    """

    target: str
    user: str
    parameters: tuple[str, ...] | None = None
    fields: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """What does not hold any more, or None."""
        try:
            found = _resolve(self.target)
        except (ImportError, AttributeError) as error:
            return self._say(f"is gone ({error})")
        if self.parameters is not None:
            got = tuple(inspect.signature(found).parameters)
            if got[: len(self.parameters)] != self.parameters:
                return self._say(f"takes ({', '.join(got)}) where ({', '.join(self.parameters)}) was expected")
        if self.fields:
            known = {field.name for field in fields(found)} if is_dataclass(found) else set()
            missing = [name for name in self.fields if name not in known]
            if missing:
                return self._say(f"has no field {', '.join(missing)}")
        if self.mentions:
            source = inspect.getsource(found)
            missing = [text for text in self.mentions if text not in source]
            if missing:
                return self._say(f"does not mention {missing[0]!r} any more")
        return None

    def _say(self, what: str) -> str:
        try:
            installed = version("verl")
        except PackageNotFoundError:
            installed = "(not installed)"
        return f"verl {installed}: `{self.target}` {what}. {self.user} relies on it; refbase supports verl 0.9.1."


SEAMS: tuple[Seam, ...] = (
    # verl_ext/trainer.py
    Seam("verl.trainer.ppo.v1:get_trainer_cls", "trainer.v1.trainer_mode=refbase", ("name",)),
    Seam("verl.trainer.ppo.v1.trainer_base:register_trainer", "verl_ext.trainer", ("name",)),
    Seam(
        f"{_BASE}.__init__",
        "verl_ext.trainer (which puts the mode back to 'sync')",
        ("self", "config"),
        mentions=("self.trainer_mode = self.config.trainer.v1.trainer_mode",),
    ),
    Seam(
        f"{_BASE}._step_once",
        "verl_ext.trainer (order of a step)",
        ("self", "metrics", "timing_raw", "sample_batch_size"),
        mentions=("self._balance_batch(batch", "self._compute_advantage(batch", "self._update_actor(batch"),
    ),
    Seam(
        f"{_BASE}._init_resource_pool_mgr",
        "verl_ext.trainer (swaps the actor's worker)",
        ("self",),
        mentions=("self.role_worker_mapping[role] = ray.remote(ActorRolloutRefWorker)",),
    ),
    Seam(
        f"{_BASE}._balance_batch",
        "verl_ext.trainer (whole groups per mini-batch)",
        ("self", "batch", "metrics", "logging_prefix", "keep_minibatch"),
        mentions=("worker_group._dispatch_info[role]", 'tag["seq_len"]', "batch.reorder("),
    ),
    Seam(
        f"{_BASE}._compute_advantage",
        "verl_ext.trainer (puts a step around it)",
        ("self", "batch", "metrics"),
        mentions=('"rm_scores"', "compute_advantage_for_multi_trajectories(", "config=self.config.algorithm"),
    ),
    Seam(
        f"{_BASE}._save_checkpoint",
        "verl_ext.checkpoint (BV-Blend's history goes with it)",
        ("self",),
        mentions=("self.config.trainer.default_local_dir", 'f"global_step_{self.global_steps}"'),
    ),
    Seam(
        f"{_BASE}._load_checkpoint",
        "verl_ext.checkpoint (which checkpoint is resumed from)",
        ("self",),
        mentions=(
            'self.config.trainer.resume_mode == "auto"',
            "find_latest_ckpt_path(checkpoint_folder)",
            "global_step_folder = self.config.trainer.resume_from_path",
        ),
    ),
    Seam(f"{_BASE}._setup", "verl_ext.checkpoint (loads once)", ("self",), mentions=("self._load_checkpoint()",)),
    Seam(
        f"{_BASE}._update_actor",
        "verl_ext.trainer (hands the actor its settings)",
        ("self", "batch", "metrics"),
        mentions=(
            "batch.extra_info.update(extra_info)",
            '"dataloader_kwargs": {"shuffle": self.config.actor_rollout_ref.actor.shuffle}',
            '"global_batch_size": ppo_mini_batch_size',
            "ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n",
        ),
    ),
    Seam(_SYNC, "verl_ext.trainer (its base class)"),
    Seam(
        "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories",
        "verl_ext.step (rows in the order of the keys, for every estimator but grpo)",
        ("data", "batch_keys"),
        mentions=("!= core_algos.AdvantageEstimator.GRPO", 'key.rsplit("_", 2)'),
    ),
    Seam(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.__ray_metadata__.modified_class._agent_loop_postprocess",
        "verl_ext.sessions (keys of rows)",
        mentions=('f"{uid}_{session_id}_{i}"',),
    ),
    Seam(
        "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size",
        "verl_ext.packing (padding rows)",
        mentions=('f"{pad_uid}_{local_idx}_0"',),
    ),
    Seam(
        "verl.trainer.ppo.padding_utils:construct_minimal_padding_template", "verl_ext", mentions=("is_padding=True",)
    ),
    Seam(
        "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions",
        "verl_ext.trainer",
        ("seqlen_list", "k_partitions", "equal_size"),
    ),
    Seam(
        "verl.utils.seqlen_balancing:log_seqlen_unbalance",
        "verl_ext.trainer",
        ("seqlen_list", "partitions", "prefix"),
    ),
    Seam(
        "verl.trainer.ppo.ray_trainer:apply_kl_penalty",
        "verl_ext.sessions and GVPO (reward minus beta times log-ratio)",
        mentions=("kld * response_mask", "token_level_scores - beta * kld"),
    ),
    # verl_ext/gvpo_worker.py
    Seam(_HYBRID, "verl_ext.gvpo_worker", mentions=("actor_worker_cls = TrainingWorker",)),
    Seam(f"{_HYBRID}.init_model", "verl_ext.gvpo_worker", mentions=("self.actor_worker_cls(config=",)),
    Seam(f"{_HYBRID}.update_actor", "verl_ext.gvpo_worker", mentions=("self.actor.train_mini_batch(data=data)",)),
    Seam(
        f"{_WORKER}.train_mini_batch",
        "verl_ext.gvpo_worker (once per batch)",
        ("self", "data"),
        mentions=("self.train_batch(mini_batch_td)", 'tu.get(output, "metrics")'),
    ),
    Seam(
        f"{_WORKER}.train_batch",
        "verl_ext.gvpo_worker (once per optimizer step)",
        ("self", "data"),
        mentions=("if key not in data.keys()", "self.engine.train_batch(data, loss_function=self.loss_fn)"),
    ),
    Seam(
        f"{_WORKER}.infer_batch",
        "verl_ext.gvpo_worker (the same keys)",
        ("self", "data"),
        mentions=(
            "use_remove_padding=",
            "use_dynamic_bsz=",
            "max_token_len_per_gpu=self.engine_config.infer_max_token_len_per_gpu",
            "micro_batch_size_per_gpu=self.engine_config.infer_micro_batch_size_per_gpu",
            "use_fused_kernels=",
        ),
    ),
    Seam(f"{_ENGINE}.eval_mode", "verl_ext.gvpo_worker", ("self", "kwargs")),
    Seam(f"{_ENGINE}.infer_batch", "verl_ext.gvpo_worker", ("self", "data", "loss_function")),
    Seam(f"{_ENGINE}.get_data_parallel_group", "verl_ext.gvpo_worker", ("self",)),
    Seam(
        "verl.workers.config:EngineConfig",
        "verl_ext.gvpo_worker",
        fields=(
            "micro_batch_size_per_gpu",
            "infer_micro_batch_size_per_gpu",
            "infer_max_token_len_per_gpu",
            "use_dynamic_bsz",
            "use_fused_kernels",
        ),
    ),
    Seam(
        "verl.workers.utils.padding:response_from_nested",
        "verl_ext.gvpo_worker",
        ("tensor", "response_mask"),
    ),
    # verl_ext/gvpo_loss.py
    Seam("verl.trainer.ppo.core_algos:register_policy_loss", "verl_ext.register", ("name",)),
    Seam(
        "verl.workers.utils.losses:ppo_loss",
        "verl_ext.gvpo_loss (what a policy loss is called with)",
        ("config", "model_output", "data"),
        mentions=("old_log_prob=old_log_prob", "advantages=advantages", "rollout_is_weights=rollout_is_weights"),
    ),
    Seam(
        "verl.trainer.ppo.core_algos:agg_loss",
        "verl_ext.gvpo_loss",
        ("loss_mat", "loss_mask", "loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size"),
        mentions=("masked_sum(seq_losses, seq_mask) / global_batch_size * dp_size",),
    ),
)


def broken() -> Iterator[str]:
    """One sentence for each seam that is not what it was."""
    for seam in SEAMS:
        problem = seam.problem()
        if problem is not None:
            yield problem


def _resolve(target: str) -> Any:
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found
