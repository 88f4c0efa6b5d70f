"""Mean squared error of a baseline and variance of the policy gradient, relative to `rloo`, with standard errors.

**Error**: (b - mu)^2 averaged over rollouts, mu the prompt's true mean reward.

**Gradient variance**: trace of the covariance of (1/N) sum over rollouts of (r - b) * score, in two score models
between which a language model lies:

* ``logit``: each prompt has one parameter, which tilts its reward distribution; score = r - mu. For 0/1 rewards
  this is a policy with one logit per prompt. Score and reward are as dependent as they can be.
* ``wide``: scores of different rollouts are orthogonal and independent of the rewards, |score|^2 = 1, as when very
  many parameters move for reasons that have nothing to do with the reward. The variance is then
  (average reward variance + error)/N and needs no further simulation.

Both are unconditional: what all baselines share, the rewards' own variance, is in them.

Every estimate uses `rloo` on the same rewards as a control variate, because its error and its variance are known
exactly for given prompts. Standard errors are over independent batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.quality.families import Binary, Draw, Gaussian
from benchmarks.quality.rules import RULES, Rule, oracle
from refbase.kernels._segments import others_moments

CHUNK = 1 << 18  # rows at a time, to stay in the cache


@dataclass(frozen=True)
class Ratio:
    """A quantity relative to that of `rloo`."""

    value: float
    error: float  # standard error

    def as_json(self) -> list[float]:
        return [float(f"{self.value:.6g}"), float(f"{self.error:.3g}")]


def cell(
    family: Binary | Gaussian,
    size: Tensor,
    repetitions: int,
    seed: int,
    rules: Mapping[str, Rule] = RULES,
) -> dict[str, dict[str, Ratio]]:
    """``{rule: {"mse", "logit", "wide"}}`` with the oracle among the rules."""
    generator = torch.Generator().manual_seed(seed)
    best = oracle(family, size)[:, None]
    named: dict[str, Rule] = {**rules, "oracle": lambda draw, target: best}
    rows = 2 if isinstance(family, Binary) else int(size.max())
    step = max(1, CHUNK // (size.shape[0] * rows))
    parts: list[dict[str, Tensor]] = []
    for start in range(0, repetitions, step):
        draw = family.draw(min(step, repetitions - start), size, generator)
        parts.append(_measure(draw, named))
    gathered = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {name: _ratios(gathered, name) for name in named}


def _measure(draw: Draw, rules: Mapping[str, Rule]) -> dict[str, Tensor]:
    """(R,) per batch: error and squared gradient of each rule; exact values for rloo given the prompts."""
    size, total = draw.size, draw.size.sum()
    v = draw.variance / (size - 1)
    logit = (draw.fourth - draw.variance**2 + 2 * draw.variance * v) / size
    out = {
        "exact mse": (size * v).sum(-1) / total,
        "exact logit": (size**2 * logit).sum(-1) / total**2,
        "exact shared": (size * draw.variance).sum(-1) / total,
    }
    target, _ = others_moments(draw.mean)
    local, centred = draw.local - draw.truth[..., None], draw.reward - draw.truth[..., None]
    distance = (target - draw.truth)[..., None]
    for name, rule in rules.items():
        weight = rule(draw, target)
        baseline = (1 - weight) * local + weight * distance  # from the true mean
        gradient = (draw.times * (centred - baseline) * centred).sum(-1)  # of the group, times its size
        out[f"{name} mse"] = (draw.times * baseline**2).sum((-1, -2)) / total
        out[f"{name} logit"] = (gradient**2 - (size * draw.variance) ** 2).sum(-1) / total**2
    return out


def _ratios(values: Mapping[str, Tensor], name: str) -> dict[str, Ratio]:
    shared = values["exact shared"]
    mse = _controlled(values, name, "mse")
    logit = _controlled(values, name, "logit")
    return {
        "mse": _ratio(mse, values["exact mse"]),
        "logit": _ratio(logit, values["exact logit"]),
        "wide": _ratio(shared + mse, shared + values["exact mse"]),
    }


def _controlled(values: Mapping[str, Tensor], name: str, quantity: str) -> Tensor:
    """Estimates of a rule less what chance did to rloo on the same rewards, which is known exactly."""
    plain = values[f"{name} {quantity}"]
    chance = values[f"rloo {quantity}"] - values[f"exact {quantity}"]
    spread = (chance * chance).mean()
    slope = (plain * chance).mean() / spread if spread > 0 else 0.0
    if name == "rloo":
        slope = 1.0
    return plain - slope * chance


def _ratio(value: Tensor, reference: Tensor) -> Ratio:
    ratio = value.mean() / reference.mean()
    error = (value - ratio * reference).std() / reference.mean() / len(value) ** 0.5
    return Ratio(float(ratio), float(error))
