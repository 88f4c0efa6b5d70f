"""``trainer.checkpoint_callback_class=kill_after.KillAfter`` kills the trainer's process after a checkpoint."""

from __future__ import annotations

import os
import signal
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback


class KillAfter(CheckpointCallback):
    """SIGKILL, at once, when the checkpoint of step ``REFBASE_KILL_AFTER`` has been saved."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        if global_step == int(os.environ["REFBASE_KILL_AFTER"]):
            os.kill(os.getpid(), signal.SIGKILL)
