"""Model and data on disk, made once for each choice of task, size, warm start and seed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .model import PAD, Size, WarmStart, build_model, build_tokenizer, encode, success, warm_start
from .task import Task, write_parquet

#: Goes up when the code here changes what it makes.
_VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what `prepare` makes. The seed decides problems, weights and warm start."""

    seed: int = 1
    task: Task = field(default_factory=Task)
    size: Size = field(default_factory=Size)
    warm_start: WarmStart = field(default_factory=WarmStart)

    def key(self) -> str:
        text = json.dumps([_VERSION, asdict(self)], sort_keys=True)
        return f"{self.task.name}-seed{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Prepared:
    """A folder with a model and the problems to train it on."""

    folder: Path
    prompt_length: int
    warm_start_steps: int
    start_success: float

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def train(self) -> Path:
        return self.folder / "train.parquet"

    @property
    def val(self) -> Path:
        return self.folder / "val.parquet"


def load(recipe: Recipe, root: Path) -> Prepared | None:
    """What `prepare` made earlier, if it did."""
    folder = root / recipe.key()
    about = folder / "about.json"
    if not about.exists():
        return None
    made = json.loads(about.read_text())["made"]
    return Prepared(folder, **made)


def prepare(
    recipe: Recipe, root: Path, progress: Callable[[int, float], None] = lambda step, probability: None
) -> Prepared:
    """Build and warm-start the model and write the problems under ``root``, unless that was done before."""
    done = load(recipe, root)
    if done is not None:
        return done
    import torch

    folder = root / recipe.key()
    # The model is too small for threads to pay, and the result should not depend on the number of cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _prepare(recipe, folder, progress)
    finally:
        torch.set_num_threads(threads)


def _prepare(recipe: Recipe, folder: Path, progress: Callable[[int, float], None]) -> Prepared:
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted call left
    train, held_out = recipe.task.problems(recipe.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, recipe.size, recipe.seed)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    rows, held_out_rows = encode(tokenizer, train), encode(tokenizer, held_out)
    steps = warm_start(model, rows, pad, recipe.warm_start, recipe.seed, progress)
    write_parquet(recipe.task, recipe.seed, folder)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    made = Prepared(
        folder,
        prompt_length=max(len(prompt) for prompt, _ in rows + held_out_rows),
        warm_start_steps=steps,
        start_success=success(model, held_out_rows, pad)[0],
    )
    # Last, so that a folder with this file is whole.
    about = {"recipe": asdict(recipe), "made": {k: v for k, v in asdict(made).items() if k != "folder"}}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return made
