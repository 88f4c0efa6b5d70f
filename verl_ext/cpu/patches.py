"""What has to change inside verl 0.9.1 for a CPU, and why.

Every patch names the module it changes, checks that what it replaces is still what it was written for, and
raises `VerlChangedError` if not. A patch runs when its module is imported, never on a GPU platform.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from verl_ext.imports import after_import

#: Seconds between two looks at the replay buffer (verl: 2.0).
POLL_INTERVAL = 0.05


class VerlChangedError(RuntimeError):
    """verl is not the release a patch was written for."""


def apply() -> None:
    """Prepare all patches."""
    for patch in PATCHES:
        after_import(patch.module, patch)  # type: ignore[attr-defined]


def _patches(module: str) -> Callable[[Callable[[ModuleType], None]], Callable[[ModuleType], None]]:
    def mark(function: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        function.module = module  # type: ignore[attr-defined]
        return function

    return mark


@_patches("verl.utils.distributed")
def one_backend_per_device(module: ModuleType) -> None:
    """verl asks torch for ``cpu:gloo,<device>:<backend>``; with device "cpu" torch rejects the repetition."""
    original = _get(module, "initialize_global_process_group_ray")
    _expect(
        list(inspect.signature(original).parameters) == ["timeout_second", "backend"],
        module,
        "initialize_global_process_group_ray(timeout_second, backend)",
    )

    @wraps(original)
    def initialize_global_process_group_ray(timeout_second: float | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    _replace("initialize_global_process_group_ray", original, initialize_global_process_group_ray)


@_patches("verl.utils.fsdp_utils")
def offload_without_pinning(module: ModuleType) -> None:
    """verl offloads the reference policy with pinned memory, which torch only has beside an accelerator."""
    original = _get(module, "CPUOffloadPolicy")
    _expect(
        original is not None and "pin_memory" in inspect.signature(original).parameters,
        module,
        "CPUOffloadPolicy(pin_memory)",
    )

    def cpu_offload_policy(pin_memory: bool = False) -> Any:
        return original(pin_memory=False)

    _replace("CPUOffloadPolicy", original, cpu_offload_policy)


@_patches("verl.trainer.ppo.v1.replay_buffer")
def poll_often(module: ModuleType) -> None:
    """verl looks for finished rollouts every 2.0 s and has no setting for it: most of a small step's time.

    A buffer that is given a ``poll_interval`` keeps it.
    """
    buffer = _get(module, "ReplayBuffer")
    parameters = inspect.signature(buffer.__init__).parameters
    _expect(
        "poll_interval" in parameters and parameters["poll_interval"].default == 2.0,
        module,
        "ReplayBuffer(..., poll_interval=2.0)",
    )
    original = buffer.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(original).bind_partial(self, *args, **kwargs).arguments
        if "poll_interval" not in given:
            kwargs["poll_interval"] = POLL_INTERVAL
        original(self, *args, **kwargs)

    buffer.__init__ = init


PATCHES = (one_backend_per_device, offload_without_pinning, poll_often)


def _get(module: ModuleType, name: str) -> Any:
    _expect(hasattr(module, name), module, f"an attribute `{name}`")
    return getattr(module, name)


def _expect(holds: bool, module: ModuleType, what: str) -> None:
    if not holds:
        from importlib.metadata import version

        raise VerlChangedError(
            f"verl on the CPU: expected `{module.__name__}` to have {what}, as in verl 0.9.1, but verl "
            f"{version('verl')} is installed and differs. Install verl==0.9.1, or adapt {__file__}."
        )


def _replace(name: str, old: Any, new: Any) -> None:
    """Rebind ``name`` wherever verl holds ``old`` under it: in its module, and in any that imported it before."""
    for holder in list(sys.modules.values()):
        if getattr(holder, "__name__", "").startswith("verl.") and vars(holder).get(name) is old:
            setattr(holder, name, new)
