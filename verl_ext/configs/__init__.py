"""Configuration files for verl's trainer, as YAML, and their way into Hydra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parent


def store(config_store: Any) -> None:
    """Put every file of this directory into Hydra's configuration store, under its own name."""
    from omegaconf import OmegaConf

    for path in sorted(DIRECTORY.glob("*.yaml")):
        config_store.store(name=path.stem, node=OmegaConf.load(path), provider="refbase")
