"""Streams of training steps: the success rates that the prompts of each step have, drawn anew at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

#: Steps of a stream. Stationary ones are measured from WARM_UP on, moving ones from their first step.
STEPS, WARM_UP = 100, 60


@dataclass(frozen=True)
class Stationary:
    """Success rates from Beta(a, b), or one of two rates, at every step alike."""

    shape: tuple[float, float] | None = None
    two: tuple[float, float] | None = None
    first_measured: int = WARM_UP

    def rates(self, step: int, size: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(streams, prompts) success rates, and what `difficulty` sorts prompts by."""
        if self.two is not None:
            low = torch.rand(size, generator=generator, dtype=torch.float64) < 0.5
            rates = torch.where(low, *self.two).double()
        else:
            assert self.shape is not None
            x, y = (torch._standard_gamma(torch.full(size, a, dtype=torch.float64), generator) for a in self.shape)
            rates = torch.where(x + y > 0, x / (x + y), 0.5)
        return rates, rates


@dataclass(frozen=True)
class Moving:
    """Logits of the rates are N(level of the step, 1)."""

    level: Callable[[float], float]  # of the share of the stream that has passed
    first_measured: int = 1

    def rates(self, step: int, size: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ease = torch.randn(size, generator=generator, dtype=torch.float64)
        return torch.sigmoid(self.level(step / STEPS) + ease), ease


def _learning(share: float, start: float = -4.8, end: float = 2.0) -> float:
    """Logit of a policy that climbs its exact gradient, dx/dt ~ p(1 - p): then 2x + 2 sinh(x) grows linearly."""

    def clock(x: float) -> float:
        return 2 * x + 2 * math.sinh(x)

    wanted = clock(start) + share * (clock(end) - clock(start))
    low, high = start, end
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if clock(middle) < wanted else (low, middle)
    return (low + high) / 2


STREAMS: Mapping[str, Stationary | Moving] = MappingProxyType(
    {
        **{f"Beta({a}, {b})": Stationary(shape=(a, b)) for a, b in ((0.2, 0.2), (1, 1), (0.3, 9.7), (5, 5), (20, 20))},
        "{0.02, 0.98}": Stationary(two=(0.02, 0.98)),
        "rising": Moving(lambda share: -3 + 6 * share),
        "falling": Moving(lambda share: 3 - 6 * share),
        "cold start": Moving(_learning),
    }
)


def difficulty(ease: Tensor, edges: Tensor) -> Tensor:
    """Class of each prompt, 0 to 2: as a data set with known difficulty would have it."""
    return torch.bucketize(ease, edges, right=True)


def class_edges(stream: Stationary | Moving, seed: int = 0) -> Tensor:
    """Thirds of the stream's prompts."""
    _, ease = stream.rates(0, (20_000,), torch.Generator().manual_seed(seed))
    return torch.quantile(ease, torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
