"""The actor's worker for exact GVPO: one inference pass before each optimizer step, then verl's own update.

Before each optimizer step the worker computes the log-probabilities of its part of the mini-batch at the
current policy, gathers one number per row over the data-parallel group, and overwrites the mini-batch's
``advantages`` by the coefficients of `verl_ext.gvpo_loss.weigh`. The rest is verl's.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import response_from_nested

from verl_ext.gvpo_config import GvpoSettings
from verl_ext.gvpo_loss import Row, coefficients_in_place, weigh

__all__ = ["SESSIONS", "SETTINGS", "GvpoActorRolloutRefWorker", "GvpoTrainingWorker"]

#: Batch-level entry with the `GvpoSettings`, as a dict; without it the worker is verl's.
SETTINGS = "refbase_gvpo"
#: Column (N, 2) with the session of each row and its number of rows; without it each row is a session.
SESSIONS = "refbase_sessions"


class GvpoTrainingWorker(TrainingWorker):
    """verl's training worker with GVPO's weights recomputed at every optimizer step."""

    _steps_taken = 0

    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        self._steps_taken = 0
        return super().train_mini_batch(data)

    def train_batch(self, data: TensorDict) -> TensorDict:
        chosen = tu.get(data, SETTINGS)
        if chosen is None:
            return super().train_batch(data)
        settings = GvpoSettings(**chosen)
        at_old_policy = self._steps_taken == 0 and not settings.first_pass
        log_ratios = self._log_ratios(data, at_old_policy)
        weighted = self._weigh(data, log_ratios, settings)
        with coefficients_in_place():
            output = super().train_batch(data)
        self._steps_taken += 1
        if output is not None:
            tu.get(output, "metrics").update(weighted)
        return output

    def _log_ratios(self, data: TensorDict, at_old_policy: bool) -> Tensor:
        """(n,) log π_θ - log π_old of this rank's rows, summed over their valid tokens."""
        mask = data["response_mask"]
        if at_old_policy:
            return torch.zeros(len(data), dtype=torch.float64)
        inputs = data.copy()
        tu.assign_non_tensor(inputs, calculate_entropy=False, **self._inference_sizes(len(data)))
        with self.engine.eval_mode(disable_auto_offload=True):
            output = self.engine.infer_batch(inputs, loss_function=None)
        current = response_from_nested(output["model_output"]["log_probs"].cpu(), mask.cpu())
        difference = current.values().double() - data["old_log_probs"].cpu().values().double()
        kept = torch.where(mask.cpu().values() != 0, difference, 0)
        return torch.stack([part.sum() for part in kept.split(mask.offsets().diff().tolist())])

    def _inference_sizes(self, rows: int) -> dict[str, Any]:
        """What the engine reads to form micro-batches; `log_prob_*` sizes where they fit."""
        config = self.engine_config
        size = config.infer_micro_batch_size_per_gpu
        if not size or rows % size:
            size = config.micro_batch_size_per_gpu
        return {
            "use_remove_padding": self.model_config.get("use_remove_padding", False),
            "use_dynamic_bsz": config.use_dynamic_bsz,
            "max_token_len_per_gpu": config.infer_max_token_len_per_gpu,
            "micro_batch_size_per_gpu": size,
            "use_fused_kernels": config.use_fused_kernels,
        }

    def _weigh(self, data: TensorDict, log_ratios: Tensor, settings: GvpoSettings) -> dict[str, float]:
        """Overwrite ``advantages`` by the coefficients; returns metrics, the same on all ranks."""
        mask = data["response_mask"]
        lengths = mask.offsets().diff().tolist()
        masks, advantages = mask.values().split(lengths), data["advantages"].values().split(lengths)
        uids = list(data["uid"])
        # TransferQueue may hand a dense column back as a nested one.
        sessions = [row.tolist() for row in data[SESSIONS].unbind()] if SESSIONS in data else [(None, 1)] * len(uids)
        rank = self.engine.get_data_parallel_rank()
        rows = []
        for i, uid in enumerate(uids):
            valid = masks[i] != 0
            session, session_rows = sessions[i]
            rows.append(
                Row(
                    group=str(uid),
                    session=(rank, i) if session is None else session,
                    session_rows=int(session_rows),
                    log_ratio=float(log_ratios[i]),
                    # The estimator gives all valid tokens of a row the same value.
                    advantage=float(advantages[i][valid][0]) if bool(valid.any()) else None,
                )
            )
        everyone, start = self._gather(rows)
        weighted = weigh(everyone, settings.beta, divide_by_beta=settings.divide_by_beta)
        # verl divides by the batch size it was told of, the coefficients are complete already.
        own = torch.tensor(weighted.coefficients[start : start + len(rows)]) * tu.get(data, "global_batch_size")
        own = own.to(mask.device).repeat_interleave(mask.offsets().diff())
        values = torch.where(mask.values() != 0, own, 0).to(data["advantages"].dtype)
        data["advantages"] = torch.nested.nested_tensor_from_jagged(values, offsets=mask.offsets())
        return weighted.metrics

    def _gather(self, rows: list[Row]) -> tuple[list[Row], int]:
        """The rows of all ranks, and where those of this one start."""
        group = self.engine.get_data_parallel_group()
        parts: list[list[Row]] = [[] for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather_object(parts, rows, group)
        own = torch.distributed.get_rank(group)
        return [row for part in parts for row in part], sum(len(part) for part in parts[:own])


class GvpoActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid worker with that actor."""

    actor_worker_cls = GvpoTrainingWorker
