"""The laws, by theme. `LAWS` maps each id to its law; `refbase.checks.runner` chooses among them by trait."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from refbase.checks.law import Law
from refbase.checks.laws import accuracy, baseline, equivariance, history, inputs, masks, sums, unbiased

_MODULES = (equivariance, sums, baseline, unbiased, masks, inputs, accuracy, history)

LAWS: Mapping[str, Law] = MappingProxyType({law.id: law for module in _MODULES for law in module.LAWS})

__all__ = ["LAWS"]
