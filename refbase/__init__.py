"""Advantage estimators for critic-free RL of language models, as tested mathematics."""

from refbase._version import __version__

__all__ = ["__version__"]
