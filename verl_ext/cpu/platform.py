"""The CPU as a verl platform (``VERL_PLATFORM=cpu``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

#: Set by the user or the launcher; a Ray actor of a rollout engine needs them too.
ROLLOUT_ENVIRONMENT = (
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "OMP_NUM_THREADS",
)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Accept any call of an accelerator function that has no meaning here."""


def _zero(*_args: Any, **_kwargs: Any) -> int:
    return 0


def _device_module() -> ModuleType:
    """``torch.cpu`` plus the functions of an accelerator module that verl calls without asking."""
    module = ModuleType("verl_ext.cpu.torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("_"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"):
        setattr(module, name, _nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    functions: dict[str, Any] = {
        "mem_get_info": lambda *_: (0, 0),
        "get_device_name": lambda *_: "CPU",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        # "Is there an accelerator?" No: verl's memory helpers then return early.
        "is_available": lambda: False,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


_DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """gloo, no device memory, no peer-to-peer memory; Ray sees a *logical* GPU per training rank."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never picked by detection: a GPU job must not fall back to the CPU unasked

    def current_device(self) -> Any:
        return "cpu"  # goes where an index would: tensor.to(...), torch.device(...)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_EXT_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # verl's resource pools count "GPU" and "NPU" only, so the job starts Ray with
        # `ray_init.num_gpus=<ranks>`, which Ray takes on a host that has none.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # weights reach vLLM through shared memory

    def rollout_env_vars(self) -> dict[str, str]:
        return {key: os.environ[key] for key in ROLLOUT_ENVIRONMENT if key in os.environ}

    def cudart(self) -> Any:
        return None
