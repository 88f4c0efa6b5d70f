"""An actor that writes down what each optimizer step saw, and an agent whose rollouts have one row or two."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from verl_ext.gvpo_worker import SESSIONS, GvpoActorRolloutRefWorker, GvpoTrainingWorker

COLUMNS = ("prompts", "responses", "response_mask", "rm_scores", "old_log_probs", "ref_log_prob")


def full(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()


class RecordingWorker(GvpoTrainingWorker):
    """Writes rows, parameters and accumulated gradient of each optimizer step to ``$GVPO_RECORD``."""

    _count = itertools.count()

    def train_batch(self, data: Any) -> Any:
        seen = {name: [row.tolist() for row in data[name].unbind()] for name in COLUMNS if name in data}
        seen["uid"] = list(data["uid"])
        known = data[SESSIONS].unbind() if SESSIONS in data else [torch.tensor([i, 1]) for i in range(len(data))]
        seen["sessions"] = [row.tolist() for row in known]
        step = self.engine.optimizer_step

        def optimizer_step() -> Any:
            parameters = dict(self.engine.module.named_parameters())
            seen["parameters"] = {name: full(p) for name, p in parameters.items()}
            seen["gradient"] = {name: full(p.grad) for name, p in parameters.items()}
            return step()

        self.engine.optimizer_step = optimizer_step
        try:
            output = super().train_batch(data)
        finally:
            del self.engine.optimizer_step
        torch.save(seen, Path(os.environ["GVPO_RECORD"]) / f"step{next(self._count):02d}-rank{self.rank}.pt")
        return output


class RecordingHybridWorker(GvpoActorRolloutRefWorker):
    actor_worker_cls = RecordingWorker


class TwoRows(SingleTurnAgentLoop):
    """Every second rollout becomes two rows: the response in two pieces, the first a part of the second's prompt."""

    _count = itertools.count()

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        whole = await super().run(*args, **kwargs)
        middle = len(whole.response_ids) // 2
        if middle == 0 or next(TwoRows._count) % 2:
            return whole
        log_probs = whole.response_logprobs

        def piece(start: int, end: int | None) -> Any:
            update = {
                "prompt_ids": whole.prompt_ids + whole.response_ids[:start],
                "response_ids": whole.response_ids[start:end],
                "response_mask": whole.response_mask[start:end],
                "response_logprobs": log_probs[start:end] if log_probs else None,
                "extra_fields": dict(whole.extra_fields),
            }
            return whole.model_copy(update=update)

        return [piece(0, middle), piece(middle, None)]
