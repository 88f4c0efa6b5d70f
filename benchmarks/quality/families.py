"""Populations of prompts, and batches drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """R independent batches of n prompts, in float64.

    Rollouts with equal rewards in one group are one row with a multiplicity, so that 0/1 rewards take two rows
    whatever the group's size.
    """

    truth: Tensor  # (R, n) true mean of each prompt
    variance: Tensor  # (R, n) true variance
    fourth: Tensor  # (R, n) true fourth central moment
    size: Tensor  # (n,)
    reward: Tensor  # (R, n, u)
    times: Tensor  # (R, n, u) how many rollouts of the group have that reward; 0 is allowed

    @property
    def mean(self) -> Tensor:
        """(R, n) group means."""
        return (self.times * self.reward).sum(-1) / self.size

    @property
    def squares(self) -> Tensor:
        """(R, n) sums of squared deviations; exactly 0 for a constant group."""
        low, high = self.reward.amin(-1), self.reward.amax(-1)
        if self.reward.shape[-1] == 2:  # 0/1 rewards: exact
            failures, successes = self.times.unbind(-1)
            return successes * failures * (high - low) ** 2 / self.size
        return (self.times * (self.reward - self.mean[..., None]) ** 2).sum(-1)

    @property
    def local(self) -> Tensor:
        """(R, n, u) leave-one-out means; meaningless where `times` is 0."""
        return ((self.size * self.mean)[..., None] - self.reward) / (self.size - 1)[:, None]


@dataclass(frozen=True)
class Binary:
    """Rewards 0 and 1; success rates from Beta(a, b), or one of two rates."""

    shape: tuple[float, float] | None = None
    rates: tuple[float, float] | None = None

    def moments(self) -> tuple[float, float]:
        """Average variance within a prompt, and variance between the prompts' means."""
        if self.rates is not None:
            low, high = self.rates
            return (low * (1 - low) + high * (1 - high)) / 2, ((high - low) / 2) ** 2
        assert self.shape is not None
        a, b = self.shape
        between = a * b / ((a + b) ** 2 * (a + b + 1))
        return a * b / (a + b) ** 2 - between, between

    def draw(self, repetitions: int, size: Tensor, generator: torch.Generator) -> Draw:
        shape = (repetitions, size.shape[0])
        if self.rates is not None:
            which = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.5
            p = torch.where(which, *self.rates).double()
        else:
            assert self.shape is not None
            # torch's own Beta sampler takes no generator
            x, y = (torch._standard_gamma(torch.full(shape, a, dtype=torch.float64), generator) for a in self.shape)
            p = torch.where(x + y > 0, x / (x + y), 0.5)
        successes = torch.binomial(size.expand(shape), p, generator)
        times = torch.stack([size - successes, successes], -1)
        reward = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(times.shape)
        variance = p * (1 - p)
        return Draw(p, variance, variance * (1 - 3 * variance), size, reward, times)


@dataclass(frozen=True)
class Gaussian:
    """Normal rewards, means N(0, spread^2); variances log-normal with mean 1 and coefficient of variation 1.3."""

    spread: float

    def moments(self) -> tuple[float, float]:
        return 1.0, self.spread**2

    def draw(self, repetitions: int, size: Tensor, generator: torch.Generator) -> Draw:
        n, most = size.shape[0], int(size.max())
        truth, log, noise = (
            torch.randn((repetitions, n, k), generator=generator, dtype=torch.float64) for k in (1, 1, most)
        )
        variance = (log - 0.5).exp()
        times = (torch.arange(most) < size[:, None]).double().expand(repetitions, n, most)
        truth = self.spread * truth
        # Rows beyond the group's size repeat its first reward, so that they do not widen its range.
        noise = torch.where(times > 0, noise, noise[..., :1])
        variance2 = variance[..., 0]
        return Draw(truth[..., 0], variance2, 3 * variance2**2, size, truth + variance.sqrt() * noise, times)


FAMILIES: Mapping[str, Binary | Gaussian] = MappingProxyType(
    {
        **{
            f"Beta({a}, {b})": Binary(shape=(a, b))
            for a, b in ((0.2, 0.2), (0.5, 0.5), (1, 1), (2, 2), (1, 9), (5, 5), (20, 20))
        },
        "{0.02, 0.98}": Binary(rates=(0.02, 0.98)),
        **{f"Gaussian {spread}": Gaussian(spread) for spread in (0.2, 0.5, 1.0, 2.0)},
    }
)

RAGGED = "2-16"


def sizes(n: int, rollouts: int | str) -> Tensor:
    """(n,) group sizes; ragged ones go through 2, 4, 8, 16 in turn."""
    if rollouts == RAGGED:
        return torch.tensor([2.0, 4.0, 8.0, 16.0], dtype=torch.float64).repeat(n)[:n]
    return torch.full((n,), float(rollouts), dtype=torch.float64)
