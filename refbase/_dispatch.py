"""``refbase.<name>``: torch tensors go to the kernel, everything else to the spec function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from refbase.catalog import load
from refbase.estimate import Estimate
from refbase.validate import InputTypeError, closest, is_tensor


def public(name: str, module: str | None = None) -> Callable[..., Any]:
    """The public function `name`, documented and typed by its spec function.

    Parameters
    ----------
    name
        The function's name in ``refbase.spec.<module>`` and ``refbase.kernels.<module>``.
    module
        The modules' common name; by default `name`.
    """
    module = module or name
    spec = load(f"refbase.spec.{module}:{name}")
    signature = inspect.signature(spec)

    @functools.wraps(spec)
    def run(*args: Any, **kwargs: Any) -> Any:
        unknown = [key for key in kwargs if key not in signature.parameters]
        if unknown:
            raise InputTypeError(f"{name}: unknown option {unknown[0]!r}; {closest(unknown[0], signature.parameters)}")
        rewards = args[0] if args else kwargs.get("rewards")
        if is_tensor(rewards):
            return load(f"refbase.kernels.{module}:{name}")(*args, **kwargs)
        result = spec(*args, **kwargs)
        return _as_arrays(result, rewards) if isinstance(rewards, np.ndarray) else result

    run.__module__ = "refbase"
    return run


def _as_arrays(result: Any, rewards: np.ndarray) -> Any:
    """Spec results as arrays, for a caller who passed one; None becomes NaN."""
    dtype = rewards.dtype if rewards.dtype.kind in "fO" else np.dtype(float)
    if isinstance(result, Estimate):
        arrays = {field.name: _as_arrays(getattr(result, field.name), rewards) for field in fields(Estimate)}
        return replace(result, **arrays)
    if isinstance(result, list):
        if dtype.kind == "O":
            return np.array(result, dtype=dtype)
        return np.array([np.nan if value is None else value for value in result], dtype=dtype)
    return result
