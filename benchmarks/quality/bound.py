"""What can be reached at all: the least worst ratio to the oracle, in the normal model with equal sizes.

A rule that leaves its own prompt out sees F = S/v, the observed spread of the others' means over their estimated
sampling variance; F/(1 + A/v) has an F distribution, A being the true spread. Its weight is a function of F. For
each A the error is quadratic in that function, so the function whose largest ratio to the oracle's error is
least can be computed: it answers the least favourable prior on A, which multiplicative weights find. The prior's
own value bounds from below what *every* such rule must lose for some A.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from refbase.kernels.shrinkage_js import gap_model


@dataclass(frozen=True)
class Frontier:
    """Worst ratios of the error to the oracle's, over all A whose oracle error is at least `floor` of rloo's."""

    prompts: int
    rollouts: int
    floor: float
    lower_bound: float  # no rule can do better
    minimax: float  # reached by the computed rule
    shrinkage: float
    shrinkage_js: float

    def as_json(self) -> dict[str, float]:
        return {key: float(f"{value:.4g}") for key, value in vars(self).items()}


def frontier(n: int, m: int, floor: float = 0.03, iterations: int = 2000, nodes: int = 1200) -> Frontier:
    others = n - 1
    sampling, v = 1 / m, 1 / (m - 1)  # in units of the variance within a prompt
    spread = torch.cat([torch.zeros(1), torch.logspace(-4, 1.7, 160)]).double() * sampling
    target = spread + (spread + sampling) / others
    reachable = target / (v + target)  # the oracle's error relative to rloo's
    keep = reachable >= floor
    spread, target, best = spread[keep], target[keep], v * reachable[keep]
    log_f = torch.linspace(-3, 6, nodes, dtype=torch.float64)
    density = _f_density(log_f.exp(), 1 + spread / sampling, others - 1, others * (m - 1))

    def worst(weight: Tensor) -> Tensor:
        return (density @ (1 - weight) ** 2 * v + density @ weight**2 * target) / best

    prior = torch.full_like(best, 1 / len(best))
    average, lower, upper = torch.zeros_like(log_f), 0.0, float("inf")
    for step in range(iterations):
        share = prior / best
        # nodes that no A reaches get any weight
        answer = ((share * v) @ density / ((share * (v + target)) @ density)).nan_to_num(1.0)
        loss = worst(answer)
        average += (answer - average) * 2 / (step + 2)
        lower = max(lower, float(prior @ loss))
        upper = min(upper, float(loss.max()), float(worst(average).max()))
        prior = prior * torch.exp((loss - loss.max()) * 0.5 / (1 + step / 50) ** 0.5)
        prior /= prior.sum()
    plug_in = (n - 1) / n / (1 + log_f.exp() * (others - 1) / others)
    ours = shipped_weight(log_f.exp(), n, m)
    return Frontier(n, m, floor, lower, upper, float(worst(plug_in).max()), float(worst(ours).max()))


def shipped_weight(f: Tensor, n: int, m: int) -> Tensor:
    """`shrinkage_js` for an own gap that is not extreme, as a function of F."""
    others = n - 1
    # n prompts that have the wanted spread once the first is left out, and equal variances
    direction = torch.arange(others, dtype=torch.float64)
    direction = (direction - direction.mean()) / direction.std()
    means = torch.cat([torch.zeros(1, dtype=torch.float64), direction]) * (f / m).sqrt()[:, None]
    size, squares = torch.full((n,), float(m)).double(), torch.full((n,), float(m - 1)).double()
    v, expected, _ = gap_model(size, squares.expand_as(means), means)
    return (v / expected)[:, 0]


def _f_density(f: Tensor, scale: Tensor, d1: int, d2: int) -> Tensor:
    """(A, F) probabilities of the nodes f, equally spaced in their logarithm, for F/scale ~ F(d1, d2)."""
    x = f / scale[:, None]
    log = d1 / 2 * x.log() - (d1 + d2) / 2 * torch.log1p(d1 * x / d2)
    return torch.softmax(log, -1)
