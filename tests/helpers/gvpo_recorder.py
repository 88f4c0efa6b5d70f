"""Loaded by verl in the processes of a test's job (``VERL_USE_EXTERNAL_MODULES``).

``trainer.v1.trainer_mode=recording`` is our trainer with the actor of `gvpo_recording`.
"""

from __future__ import annotations

from typing import Any

import verl_ext.register  # noqa: F401  (its hooks come first)
from verl_ext.imports import after_import


def _register_trainer(_trainers: Any) -> None:
    from verl.trainer.ppo.v1.trainer_base import register_trainer

    from verl_ext.trainer import RefbaseTrainer

    @register_trainer("recording")
    class RecordingTrainer(RefbaseTrainer):
        gvpo_worker = "gvpo_recording:RecordingHybridWorker"


after_import("verl.trainer.ppo.v1", _register_trainer)
