"""Makes rollout ``hf`` known to verl, without loading it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from verl_ext.imports import after_import


def register() -> None:
    after_import("verl.workers.rollout.replica", _register_replica)
    after_import("verl.workers.rollout.base", _register_adapter)


def _register_replica(module: ModuleType) -> None:
    def load() -> Any:
        from verl_ext.cpu.hf_rollout import HFReplica

        return HFReplica

    module.RolloutReplicaRegistry.register("hf", load)


def _register_adapter(module: ModuleType) -> None:
    # verl has a public registry for replicas; for the class in the training worker it has this table only.
    module._ROLLOUT_REGISTRY[("hf", "async")] = "verl_ext.cpu.hf_rollout.HFServerAdapter"
