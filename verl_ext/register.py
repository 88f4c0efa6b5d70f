"""verl's way in: the entry point of group ``verl.plugins``.

verl imports this module at the end of ``import verl``, in every process of a job. It must be quick, safe to
import twice, and loud: verl logs an exception of a plug-in at DEBUG level and goes on without it, so that a
job fails much later with "unknown estimator", or not at all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from verl_ext import cpu
from verl_ext.imports import after_import

__all__ = ["errors"]

#: What failed so far in this process, as (step, exception); `verl_ext.doctor` shows it.
errors: list[tuple[str, Exception]] = []


def _loudly(step: str, action: Callable[..., None], fatal: bool = False) -> Callable[..., None]:
    """``action``, with its exception printed and kept. Only a fatal one goes on: a job that uses none of our
    estimators must not fail for them."""

    @wraps(action)
    def run(*args: Any) -> None:
        try:
            action(*args)
        except Exception as error:
            errors.append((step, error))
            print(f"refbase: the verl plug-in failed while it tried to {step}:", file=sys.stderr)
            traceback.print_exc(file=sys.stderr)
            sys.stderr.flush()
            if fatal:
                raise

    return run


def _register_estimators(core_algos: ModuleType) -> None:
    """Make the estimators known to ``algorithm.adv_estimator``."""
    from verl_ext.adapters import ESTIMATORS

    for name, function in ESTIMATORS.items():
        core_algos.register_adv_est(name)(function)


def _register_loss(core_algos: ModuleType) -> None:
    """``actor.policy_loss.loss_mode=gvpo``."""
    from verl_ext.gvpo_loss import policy_loss

    core_algos.register_policy_loss("gvpo")(policy_loss)


def _register_trainer(_trainers: ModuleType) -> None:
    """``trainer.v1.trainer_mode=refbase``."""
    import verl_ext.trainer  # noqa: F401  (registers itself)


def _explain_unknown_names(core_algos: Any) -> None:
    """Let verl's error for an unknown estimator say which there are."""
    find = core_algos.get_adv_estimator_fn

    @wraps(find)
    def get_adv_estimator_fn(name_or_enum: Any) -> Any:
        try:
            return find(name_or_enum)
        except ValueError:
            from refbase import validate

            name = getattr(name_or_enum, "value", name_or_enum)
            valid = core_algos.ADV_ESTIMATOR_REGISTRY
            message = str(validate.unknown_name("algorithm.adv_estimator", "estimator", name, valid))
            for step, error in errors:
                message += f" The plug-in of refbase failed to {step}: {error!r}"
            raise validate.InputError(message) from None

    core_algos.get_adv_estimator_fn = get_adv_estimator_fn


def _store_configs(config_store: ModuleType) -> None:
    """Let ``--config-name refbase_trainer`` find our files from verl's own entry point."""
    from verl_ext.configs import store

    store(config_store.ConfigStore.instance())


def _prepare() -> None:
    if cpu.enabled():
        cpu.install()
    after_import("verl.trainer.ppo.core_algos", _loudly("register its estimators", _register_estimators))
    after_import("verl.trainer.ppo.core_algos", _loudly("register its policy loss", _register_loss))
    after_import("verl.trainer.ppo.v1", _loudly("register its trainer", _register_trainer))
    after_import("verl.trainer.ppo.core_algos", _loudly("explain unknown estimators", _explain_unknown_names))
    after_import("hydra.core.config_store", _loudly("store its configurations", _store_configs))


_loudly("start", _prepare, fatal=True)()
