"""verl's way in: the entry point of group ``verl.plugins``.

verl imports this module at the end of ``import verl``, in every process of a job. It must be quick, safe to
import twice, and loud: verl logs an exception of a plug-in at DEBUG level and goes on without it, so that a
job fails much later with "unknown estimator", or not at all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from verl_ext import cpu

__all__ = ["errors"]

#: What failed so far in this process, as (step, exception); `verl_ext.doctor` shows it.
errors: list[tuple[str, Exception]] = []


def _attempt(step: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        errors.append((step, error))
        print(f"refbase: the verl plug-in failed while it tried to {step}:", file=sys.stderr)
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        raise


if cpu.enabled():
    _attempt("set verl up for the CPU", cpu.install)
