"""Timing on a shared machine: contestants take turns, and medians are compared."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Times:
    """Median seconds of one call."""

    wall: float
    processor: float  # of this process, all threads; on a GPU the host's share
    repetitions: int

    def as_json(self) -> dict[str, float]:
        return {"wall_ms": _digits(1e3 * self.wall), "cpu_ms": _digits(1e3 * self.processor), "n": self.repetitions}


def race(calls: Mapping[str, Callable[[], Any]], seconds: float, device: str = "cpu") -> dict[str, Times]:
    """Call everything in turn until `seconds` have passed for each; at least three times after one to warm up."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    wall: dict[str, list[float]] = {name: [] for name in calls}
    processor: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    wait()
    while any(len(w) < 3 or (sum(w) < seconds and len(w) < 1000) for w in wall.values()):
        for name, call in calls.items():
            if len(wall[name]) >= 3 and sum(wall[name]) >= seconds:
                continue
            start, cpu = time.perf_counter(), time.process_time()
            call()
            wait()
            wall[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - cpu)
    return {
        name: Times(statistics.median(wall[name]), statistics.median(processor[name]), len(wall[name]))
        for name in calls
    }


def peak_memory(call: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes that a call needs at its peak beyond what was allocated before, its result included."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        del result
        return peak - before
    call()  # so that the code itself is loaded
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # memory freed before must not hide memory that is needed
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    result = call()
    peak = _status("VmHWM")
    del result
    return peak - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
