"""The estimators and options that are compared, called on many independent streams at once.

Estimators that look at nothing but the group and its history key are called once for all streams, with one key per
stream. `shrinkage` and `shrinkage_js` look at all prompts of the step; they get their weights from
`benchmarks.quality.rules`, which the tests compare with the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import refbase
from benchmarks.quality.families import Draw
from benchmarks.quality.rules import RULES
from refbase.kernels._segments import others_moments

CLASSES = 3


@dataclass(frozen=True)
class Step:
    """One training step of S streams: n prompts of m rollouts with rewards 0 or 1."""

    successes: Tensor  # (S, n)
    m: int
    classes: Tensor  # (S, n) difficulty class

    @cached_property
    def rewards(self) -> Tensor:
        """(S, n, m) float64; a group's failures come first."""
        return (torch.arange(self.m) >= self.m - self.successes[..., None]).double()

    @cached_property
    def group_ids(self) -> Tensor:
        return torch.arange(self.successes.numel()).repeat_interleave(self.m)

    def keys(self, by_class: bool) -> list[int]:
        """(S n m) history keys: the stream, or the stream and the difficulty class."""
        streams, prompts = self.successes.shape
        key = torch.arange(streams)[:, None].expand(streams, prompts)
        if by_class:
            key = key * CLASSES + self.classes
        return key.repeat_interleave(self.m).tolist()

    @cached_property
    def one_key(self) -> list[int]:
        return self.keys(by_class=False)

    @cached_property
    def class_key(self) -> list[int]:
        return self.keys(by_class=True)

    @cached_property
    def draw(self) -> Draw:
        """For the rules of the quality benchmark; what they may not know is NaN."""
        hidden = torch.full_like(self.successes, torch.nan)
        size = torch.full(self.successes.shape[-1:], float(self.m), dtype=torch.float64)
        times = torch.stack([self.m - self.successes, self.successes], -1)
        reward = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(times.shape)
        return Draw(hidden, hidden, hidden, size, reward, times)


@dataclass(frozen=True)
class Outcome:
    """(S, n, m) each."""

    advantages: Tensor
    baseline: Tensor
    weight: Tensor
    local: Tensor | None = None
    target: Tensor | None = None


@dataclass(frozen=True)
class Memory:
    """How a history is kept."""

    window: int = 100
    decay: float = 0.95
    by_class: bool = False


@dataclass(frozen=True)
class Contestant:
    """An estimator with its options; `memory` is None where it has none."""

    estimator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    memory: Memory | None = None

    def __call__(self, step: Step, histories: Histories) -> Outcome:
        if self.estimator in ("shrinkage", "shrinkage_js"):
            return _from_rule(self.estimator, step)
        estimator, rewards, ids = getattr(refbase, self.estimator), step.rewards.flatten(), step.group_ids
        if self.memory is None:
            estimate = estimator(rewards, ids, **self.options)
        else:
            keys = step.class_key if self.memory.by_class else step.one_key
            estimate = estimator(rewards, ids, histories.states[self.memory], history_keys=keys, **self.options)
        names = "advantages", "baseline", "weight", "local", "target"
        values = {name: getattr(estimate, name) for name in names}
        return Outcome(**{k: None if v is None else v.view(step.rewards.shape) for k, v in values.items()})


def _from_rule(name: str, step: Step) -> Outcome:
    target, _ = others_moments(step.draw.mean)
    weight = RULES[name](step.draw, target).expand(step.draw.times.shape)
    which = step.rewards.long()  # failures are the first of the two rows, successes the second
    local, weight = step.draw.local.gather(-1, which), weight.gather(-1, which)
    target = target[..., None].expand_as(local)
    baseline = (1 - weight) * local + weight * target
    return Outcome(step.rewards - baseline, baseline, weight, local, target)


class Histories:
    """One `HistoryState` for each way of keeping it that some contestant asks for."""

    def __init__(self, contestants: Mapping[str, Contestant]) -> None:
        wanted = {c.memory for c in contestants.values() if c.memory is not None}
        self.states = {how: refbase.HistoryState.empty(window=how.window, decay=how.decay) for how in wanted}

    def update(self, step: Step) -> None:
        rewards, ids = step.rewards.flatten(), step.group_ids
        for how, state in self.states.items():
            keys = step.class_key if how.by_class else step.one_key
            self.states[how] = refbase.update_history(state, rewards, ids, history_keys=keys)


_LOO = {"scale": "none", "local": "loo"}


def _blend(memory: Memory = Memory(), **options: Any) -> Contestant:
    return Contestant("bvblend", options, memory)


def _bayes(memory: Memory = Memory(), **options: Any) -> Contestant:
    return Contestant("bvblend_eb", options, memory)


def _pooled(memory: Memory = Memory()) -> Contestant:
    """Prompts of other keys play no part in it, so one key per stream keeps the streams apart here too."""
    return Contestant("shrinkage_history", {}, memory)


#: Measured in every cell.
MAIN: Mapping[str, Contestant] = MappingProxyType(
    {
        "rloo": Contestant("rloo"),
        "group_mean": Contestant("group_mean"),
        "grpo": Contestant("grpo"),
        "shrinkage": Contestant("shrinkage"),
        "shrinkage_js": Contestant("shrinkage_js"),
        "bvblend": _blend(),
        "bvblend_eb": _bayes(),
        "shrinkage_history": _pooled(),
    }
)
#: One option at a time. Without a scale where the scale is not the question.
OPTIONS: Mapping[str, Contestant] = MappingProxyType(
    {
        "bvblend scale=group": _blend(scale="group"),
        "bvblend scale=group, min_scale=1e-6": _blend(scale="group", min_scale=1e-6),
        "bvblend min_scale=0.3": _blend(min_scale=0.3),
        "bvblend scale=none": _blend(scale="none"),
        "bvblend scale=none, loo": _blend(**_LOO),
        "bvblend scale=none, loo, window=10": _blend(Memory(window=10), **_LOO),
        "bvblend scale=none, loo, decay=0.8": _blend(Memory(decay=0.8), **_LOO),
        "bvblend scale=none, loo, decay=0.99": _blend(Memory(decay=0.99), **_LOO),
        "bvblend scale=none, loo, key=class": _blend(Memory(by_class=True), **_LOO),
        "bvblend key=class": _blend(Memory(by_class=True)),
        "bvblend_eb scale=history": _bayes(scale="history"),
        "bvblend_eb decay=0.8": _bayes(Memory(decay=0.8)),
        "bvblend_eb decay=0.99": _bayes(Memory(decay=0.99)),
        "bvblend_eb key=class": _bayes(Memory(by_class=True)),
        "shrinkage_history decay=0.8": _pooled(Memory(decay=0.8)),
        "shrinkage_history decay=0.99": _pooled(Memory(decay=0.99)),
        "shrinkage_history window=10": _pooled(Memory(window=10)),
        "shrinkage_history key=class": _pooled(Memory(by_class=True)),
    }
)
#: The ones that learn. `group_mean` is `rloo` at another learning rate.
LEARNERS: Mapping[str, Contestant] = MappingProxyType(
    {
        **{name: MAIN[name] for name in ("rloo", "grpo", "shrinkage", "shrinkage_js", "bvblend")},
        **{
            name: OPTIONS[name]
            for name in (
                "bvblend scale=group, min_scale=1e-6",
                "bvblend scale=none",
                "bvblend scale=none, loo",
                "bvblend scale=none, loo, decay=0.8",
                "bvblend scale=none, loo, key=class",
            )
        },
        "bvblend_eb": MAIN["bvblend_eb"],
        **{
            name: OPTIONS[name] for name in ("bvblend_eb scale=history", "bvblend_eb decay=0.8", "bvblend_eb key=class")
        },
        "shrinkage_history": MAIN["shrinkage_history"],
    }
)
