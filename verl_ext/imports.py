"""Run a function as soon as a module has been imported.

verl loads a plug-in at the end of ``import verl``, in every process of a job, before most of verl exists.
Importing the trainer there, only to register a name in it, would add seconds to each of those processes.
So the plug-in leaves a note instead: *when this module is imported, call that*.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Hook = Callable[[ModuleType], None]

__all__ = ["after_import", "pending"]


class _HookFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; it lets the other finders work and appends the hooks to the module's execution."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.hooks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._extend(spec)
                return spec
        return None

    def _extend(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        execute = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for hook in self.hooks.pop(spec.name, []):
                hook(module)

        # On the instance: its class, which `inspect` and pickling look at, stays what it was.
        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


_finder = _HookFinder()


def after_import(name: str, hook: Hook) -> None:
    """Call ``hook(module)`` once: now if module ``name`` is loaded, else right after it is executed.

    An exception of the hook leaves the ``import`` statement that triggered it.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        hook(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.hooks.setdefault(name, []).append(hook)


def pending() -> tuple[str, ...]:
    """Names of the modules whose hooks have not run yet."""
    return tuple(_finder.hooks)
