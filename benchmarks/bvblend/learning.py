"""Small policies that learn: a pool of prompts, each a softmax over answers of which one is right.

Every step draws n prompts of the pool and m answers each, and adds rate * (gradient estimate) to the parameters: the
logits of each prompt ("tabular"), or one weight vector that all prompts share through fixed random features of their
answers ("shared"). Runs with other seeds and other learning rates go side by side, each with its own history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.bvblend.contestants import Contestant, Histories, Step

ANSWERS = 4
STUCK = 0.05  # success below which a prompt counts as stuck at the end
FEATURES = 32


@dataclass(frozen=True)
class Setting:
    """One pool and how it is trained."""

    name: str
    pool: int
    n: int
    m: int
    steps: int
    threshold: float  # mean success over the pool
    start: tuple[float, float]  # first logit of the right answer against the wrong ones: mean and spread
    rates: tuple[float, ...]
    shared: bool = False

    def shortened(self, steps: int, rates: int) -> Setting:
        return replace(self, steps=steps, rates=self.rates[:rates])


SETTINGS = (
    Setting("cold start, shared parameters", 32, 8, 4, 150, 0.6, (-4.0, 1.0), (1, 2, 4, 8, 16), shared=True),
    Setting("cold start", 32, 8, 4, 300, 0.9, (-4.0, 1.0), (2, 4, 8, 16, 32)),
    Setting("mixed difficulty", 32, 8, 8, 200, 0.9, (-1.0, 3.0), (2, 4, 8, 16, 32)),
    Setting("two prompts a step", 16, 2, 4, 250, 0.9, (-2.0, 1.0), (2, 4, 8, 16, 32)),
)


class Policies:
    """R independent policies over P prompts."""

    def __init__(self, setting: Setting, seeds: int, generator: torch.Generator) -> None:
        self.setting = setting
        shape = (seeds, setting.pool, ANSWERS)
        logits = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
        mean, spread = setting.start
        first = mean + spread * torch.randn(shape[:-1], generator=generator, dtype=torch.float64)
        # wrong answers share the rest of the probability
        logits[..., 0] = first + torch.logsumexp(logits[..., 1:], -1)
        copies = len(setting.rates)
        self.base = logits.repeat(copies, 1, 1)  # the same pools at every rate
        self.rates = torch.tensor(setting.rates, dtype=torch.float64).repeat_interleave(seeds)
        features = 0.5 * torch.randn((*shape, FEATURES), generator=generator, dtype=torch.float64)
        features[:, :, 0, 0] += 0.5  # what right answers have in common
        self.features = features.repeat(copies, 1, 1, 1) if setting.shared else None
        self.parameters = torch.zeros((copies * seeds, FEATURES)).double() if setting.shared else self.base.clone()

    @property
    def probabilities(self) -> Tensor:
        """(R, P, answers)."""
        if self.features is None:
            return torch.softmax(self.parameters, -1)
        return torch.softmax(self.base + torch.einsum("rpaf,rf->rpa", self.features, self.parameters), -1)

    def climb(self, chosen: Tensor, gradient: Tensor) -> None:
        """`gradient` (R, n, answers) is the estimate by the logits of the prompts `chosen` (R, n)."""
        rows = torch.arange(chosen.shape[0])[:, None]
        if self.features is None:
            self.parameters[rows, chosen] += self.rates[:, None, None] * gradient
        else:
            picked = self.features[rows, chosen]
            self.parameters += self.rates[:, None] * torch.einsum("rnaf,rna->rf", picked, gradient) / chosen.shape[1]

    @property
    def entropy(self) -> Tensor:
        """(R,) nats, averaged over the pool."""
        p = self.probabilities
        return -(p * p.clamp(min=1e-300).log()).sum(-1).mean(-1)


def train(setting: Setting, contestant: Contestant, seeds: int, seed: int) -> dict[str, Any]:
    """Results at each learning rate and the best one: ``{"best": rate, "rates": {rate: {quantity: [value, error]}}}``.

    The best rate needs the fewest steps to the threshold, a run that never gets there counting with all its steps.
    """
    generator = torch.Generator().manual_seed(seed)
    policies = Policies(setting, seeds, generator)
    runs = len(setting.rates) * seeds
    rows = torch.arange(runs)[:, None]
    classes = torch.bucketize(
        policies.probabilities[..., 0].contiguous(), torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    )
    histories = Histories({"": contestant})
    first = torch.full((runs,), float(setting.steps), dtype=torch.float64)
    entropy_there = torch.full((runs,), torch.nan, dtype=torch.float64)
    zero, rewards = torch.zeros(runs, dtype=torch.float64), []
    for number in range(setting.steps + 1):
        probabilities = policies.probabilities
        reached = (probabilities[..., 0].mean(-1) >= setting.threshold) & (first == setting.steps)
        first[reached], entropy_there[reached] = float(number), policies.entropy[reached]
        if number == setting.steps:
            break
        chosen = torch.rand((runs, setting.pool), generator=generator).argsort(-1)[:, : setting.n]
        picked = probabilities[rows, chosen]
        answers = torch.multinomial(picked.flatten(0, 1), setting.m, replacement=True, generator=generator)
        answers = answers.view(runs, setting.n, setting.m)
        answers = answers.gather(-1, (answers == 0).long().argsort(-1))  # `Step` has failures first
        step = Step((answers == 0).double().sum(-1), setting.m, classes[rows, chosen])
        advantages = contestant(step, histories).advantages
        scores = torch.nn.functional.one_hot(answers, ANSWERS) - picked[:, :, None]
        policies.climb(chosen, (advantages[..., None] * scores).mean(-2))
        histories.update(step)
        zero += (advantages.abs() <= 1e-12).all(-1).double().mean(-1) / setting.steps
        rewards.append(step.rewards.mean((-1, -2)))
    end = policies.probabilities
    jumps = torch.stack(rewards).diff(dim=0)
    measured = {
        "steps": first,
        "reached": (first < setting.steps).double(),
        "success": end[..., 0].mean(-1),
        "stuck": (end[..., 0] < STUCK).double().mean(-1),
        "wrong": (end[..., 1:].amax(-1) > 1 - STUCK).double().mean(-1),
        "entropy": policies.entropy,
        "entropy there": entropy_there,
        "zero": zero,
        "jitter": (jumps**2).mean(0) / 2,
    }
    per_rate = {name: value.view(len(setting.rates), seeds) for name, value in measured.items()}
    best = int(per_rate["steps"].mean(-1).argmin())
    listed = {
        f"{rate:g}": {name: _mean(value[k]) for name, value in per_rate.items()} for k, rate in enumerate(setting.rates)
    }
    return {"best": f"{setting.rates[best]:g}", "rates": listed}


def _mean(values: Tensor) -> list[float] | None:
    """[mean, standard error] over the seeds that have a value."""
    known = values[values.isfinite()]
    if known.numel() < 2:
        return None
    return [float(f"{float(x):.4g}") for x in (known.mean(), known.std() / known.numel() ** 0.5)]
