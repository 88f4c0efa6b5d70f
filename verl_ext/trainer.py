"""verl's synchronous V1 trainer with what its seams leave out; ``trainer.v1.trainer_mode=refbase`` selects it.

Each thing it adds lives in a module of its own, and a method here connects it: the step around the advantages
(`verl_ext.step`, `verl_ext.sessions`, `verl_ext.history_keys`), BV-Blend's memory in checkpoints
(`verl_ext.checkpoint`), exact GVPO (`verl_ext.gvpo_config`, `verl_ext.gvpo_worker`,
`verl_ext.packing`). With an estimator that needs none of it, this is verl's trainer.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from importlib import import_module
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from verl_ext import checkpoint, gvpo_config, history_keys, modes
from verl_ext.options import BVBlendOptions
from verl_ext.packing import pack_groups
from verl_ext.sessions import Sessions, split_key
from verl_ext.step import Step, active

__all__ = ["RefbaseTrainer"]

logger = logging.getLogger(__name__)


@register_trainer("refbase")
class RefbaseTrainer(PPOTrainerSync):
    """verl's `PPOTrainerSync`, with sessions, exact GVPO, BV-Blend's memory and a `Step` around each advantage."""

    #: ``module:class`` of the hybrid worker whose actor recomputes GVPO's weights.
    gvpo_worker = "verl_ext.gvpo_worker:GvpoActorRolloutRefWorker"
    gvpo: gvpo_config.GvpoSettings | None = None
    #: Options of BV-Blend, whose history goes with the checkpoints.
    memory: BVBlendOptions | None = None

    def __init__(self, config: DictConfig) -> None:
        self._shuffle_groups = False
        gvpo_config.enforce(modes.findings(config, "refbase"))
        options = modes.options(config)
        if isinstance(options, BVBlendOptions):
            self.memory = options
        with open_dict(config):
            # verl compares the mode with "sync" in several places, and everything else here is just that.
            config.trainer.v1.trainer_mode = "sync"
            if gvpo_config.is_gvpo(config):
                gvpo_config.enforce(gvpo_config.findings(config, exact=True))
                self.gvpo = gvpo_config.settings(config)
                # Shuffling rows would tear groups apart, so whole groups are shuffled instead.
                self._shuffle_groups = bool(config.actor_rollout_ref.actor.shuffle)
                config.actor_rollout_ref.actor.shuffle = False
        super().__init__(config)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if self.gvpo is not None:
            module, _, name = self.gvpo_worker.partition(":")
            worker = ray.remote(getattr(import_module(module), name))
            for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
                if role in self.role_worker_mapping:
                    self.role_worker_mapping[role] = worker

    def _balance_batch(
        self,
        batch: KVBatchMeta,
        metrics: dict[str, Any],
        logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics, logging_prefix, keep_minibatch)
        actor = self.config.actor_rollout_ref.actor
        rows = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        if self.gvpo is None or len(batch) % rows:  # rows left over: the actor is not updated yet
            return batch
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        keys = [split_key(key) for key in batch.keys]
        mini_batches = pack_groups(
            groups=[uid for uid, _, _ in keys],
            sessions=[key[:2] for key in keys],
            filler=[bool(tag.get("is_padding", False)) for tag in batch.tags],
            n_batches=len(batch) // rows,
            seed=actor.data_loader_seed + self.global_steps if self._shuffle_groups else None,
        )
        # The worker of rank r takes its mini-batches in turn from the r-th part of the batch.
        lengths = [tag["seq_len"] for tag in batch.tags]
        workload = calculate_workload(torch.tensor(lengths))
        parts: list[list[int]] = [[] for _ in range(ranks)]
        for mini_batch in mini_batches:
            split = get_seqlen_balanced_partitions([int(workload[i]) for i in mini_batch], ranks, equal_size=True)
            for part, places in zip(parts, split, strict=True):
                part.extend(mini_batch[place] for place in places)
        metrics.update(log_seqlen_unbalance(seqlen_list=lengths, partitions=parts, prefix=logging_prefix))
        batch.reorder([row for part in parts for row in part])
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        with active(self._step(batch, metrics)):
            return super()._compute_advantage(batch, metrics)

    def _step(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> Step:
        padding = tuple(bool(tag.get("is_padding", False)) for tag in batch.tags)
        step = Step(self.global_steps, tuple(batch.keys), metrics, padding, exact_gvpo=self.gvpo is not None)
        if self.memory is not None and self.memory.history_key != "none":
            wanted = history_keys.columns(self.memory.history_key)
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(wanted))
            step.history_keys = history_keys.keys_of_rows(
                self.memory.history_key,
                uids=[split_key(key)[0] for key in batch.keys],
                table={name: data.pop(name).tolist() for name in wanted if name in data},
                padding=padding,
            )
        sessions = Sessions.of(batch.keys)
        if sessions.trivial:
            return step
        step.sessions = sessions
        if self.config.algorithm.use_kl_in_reward:
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
            step.scores = data["rm_scores"].to_padded_tensor(0.0)
        if self.gvpo is not None:
            from verl_ext.gvpo_worker import SESSIONS

            column = torch.stack([sessions.codes, sessions.rows], -1)
            tq.kv_batch_put(
                keys=batch.keys,
                partition_id=batch.partition_id,
                fields=TensorDict({SESSIONS: column}, batch_size=len(batch)),
            )
        return step

    def _save_checkpoint(self) -> None:
        if self.memory is not None:  # first, so that a checkpoint that verl's tracker names has it
            checkpoint.save(self.memory, self.config.trainer, self.global_steps)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        if self.memory is not None:
            checkpoint.restore(self.memory, self.config.trainer)
        super()._load_checkpoint()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self.gvpo is not None:
            from verl_ext.gvpo_worker import SETTINGS

            batch.extra_info[SETTINGS] = asdict(self.gvpo)
        return super()._update_actor(batch, metrics)
