"""verl on a machine without accelerator.

Nothing here is active unless the environment says ``VERL_PLATFORM=cpu``. verl's installed files stay as they
are: a platform class, a rollout and a few patches, each with its reason, are put in from the plug-in.

``python -m verl_ext.cpu.run <hydra overrides>`` starts verl's own ``main_ppo`` with all of it set up.
"""

from __future__ import annotations

import importlib
import os

__all__ = ["enabled", "install"]


def enabled() -> bool:
    """Whether this process was asked to run verl on the CPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def install() -> None:
    """Register platform and rollout, and prepare the patches. Called once per process, by the plug-in."""
    # Importing the platform registers it. It goes first: nearly every other module of verl asks for it.
    importlib.import_module("verl_ext.cpu.platform")
    from verl_ext.cpu import hf_rollout_registry, patches, vllm_cpu

    # verl registers its FSDP engines for "cuda" and "npu" only; with this variable, its own, it picks the
    # former. The engine itself takes its device from the platform.
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    vllm_cpu.answer_for_vllm()
    patches.apply()
    hf_rollout_registry.register()
