"""Which jobs the comparison consists of, and what each is set to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: Every estimator of the comparison, with verl's name for it and what else it needs.
ESTIMATORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "grpo": ("grpo", ()),
    "drgrpo": (
        "grpo",
        (
            "algorithm.norm_adv_by_std_in_grpo=false",
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
        ),
    ),
    "rloo": ("rloo", ()),
    "shrinkage": ("shrinkage", ()),
    "shrinkage_js": ("shrinkage_js", ()),
    "bvblend": ("bvblend", ()),
    "bvblend_eb": ("bvblend_eb", ()),
    "shrinkage_history": ("shrinkage_history", ()),
    "gvpo": ("gvpo", ()),
}

#: Start of the model: it solves a problem with probability 0.2 ("warm") or below 0.05; `WarmStart` in
#: `examples.first_run.model` says how.
TASKS: Mapping[str, Mapping[str, float]] = {"warm": {}, "cold": {"start_at": 0.045, "wrong": 1.0}}

#: Learning rate of the comparison at equal rates, and the others that the warm task is tried at.
LR: Mapping[str, float] = {"warm": 3e-4, "cold": 1e-3}
SWEEP = (1e-4, 1e-3)


@dataclass(frozen=True)
class Cell:
    """One job. Two estimators are compared over cells that differ in nothing else."""

    task: str
    estimator: str
    rollouts: int = 8
    lr: float = LR["warm"]
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.task}-m{self.rollouts}-lr{self.lr:g}-{self.estimator}-seed{self.seed}"

    @property
    def group(self) -> tuple[str, int, float]:
        return (self.task, self.rollouts, self.lr)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Size:
    """How long and how wide a job is."""

    rows: int = 64
    steps: int = 40
    save_every: int = 10
    estimators: tuple[str, ...] = tuple(ESTIMATORS)
    seeds: tuple[int, ...] = (1, 2, 3)
    tasks: tuple[str, ...] = ("warm", "cold")
    small_group: bool = True
    sweep: bool = True


FULL = Size()
QUICK = Size(rows=16, steps=2, save_every=2, estimators=("rloo", "shrinkage_js"), seeds=(1,), tasks=("warm",),
             small_group=False, sweep=False)  # fmt: skip


def cells(size: Size) -> Iterator[Cell]:
    """Jobs known from the start, the most telling first, so that a run cut short has whole comparisons."""
    for task in size.tasks:
        yield from block(size, task=task, lr=LR[task])
    if size.small_group:
        yield from block(size, task="warm", rollouts=2)
    if size.sweep:
        for lr in SWEEP:
            yield from (Cell("warm", estimator, lr=lr, seed=size.seeds[0]) for estimator in size.estimators)


def block(size: Size, **settings: Any) -> Iterator[Cell]:
    """Every estimator at every seed."""
    for seed in size.seeds:
        yield from (Cell(estimator=estimator, seed=seed, **settings) for estimator in size.estimators)


def at_best_rate(size: Size, area: Mapping[Cell, float]) -> Iterator[Cell]:
    """The other seeds at the rate that was best with the first one, for estimators where it is not the common rate."""
    for estimator in size.estimators:
        lr = best_rate(estimator, area)
        yield from (Cell("warm", estimator, lr=lr, seed=seed) for seed in size.seeds[1:] if lr != LR["warm"])


def best_rate(estimator: str, area: Mapping[Cell, float]) -> float:
    """Rate of the largest area under the reward curve, with the first seed."""
    tried = (Cell("warm", estimator, lr=lr) for lr in (LR["warm"], *SWEEP))
    found = {cell.lr: area[cell] for cell in tried if cell in area}
    return max(found, key=lambda lr: found[lr], default=LR["warm"])


def missing(wanted: Iterable[Cell], done: Mapping[Cell, Any]) -> list[Cell]:
    return [cell for cell in wanted if cell not in done]
