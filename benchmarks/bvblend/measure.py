"""Error, gradient and signal of the contestants on streams of steps, relative to `rloo` on the same rewards.

With p a prompt's true success rate, g = p(1 - p) the derivative of the expected reward by the prompt's logit and
G = mean over rollouts of advantage * (r - p) its estimate (the logit model of `benchmarks.quality.measure`):

* **mse**: mean of (baseline - p)^2; **loss** of `shrinkage_history`: its excess over the better of `shrinkage_js` and
  `bvblend_eb`, paired;
* **signal**: E<G, g>/E<g, g>, 1 for an unbiased estimator without a scale;
* **efficiency**: signal^2/noise, noise = E|G - signal * g|^2. A constant factor on the advantages does not change it;
  a factor that differs between prompts is noise;
* **wide**: the same with the noise E[advantage^2]/m of scores that have nothing to do with the rewards;
* **zero**, **all-fail**: share of groups without any advantage; share of the signal that all-fail groups carry;
* **A2**: mean squared advantage, what frameworks log as the variance of the advantages;
* **weight**, **best weight**: mean weight over groups with both outcomes; the constant of least error for the same
  local mean and target.

Expectations over prompts and measured steps. Errors are over independent streams; rloo's error, known exactly for
given rates, is the control variate of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.bvblend.contestants import Contestant, Histories, Outcome, Step
from benchmarks.bvblend.streams import STEPS, Moving, Stationary, class_edges, difficulty

#: Edges of the success rates by which the signal is listed: hard, middle, easy.
BANDS = (0.0, 0.2, 0.8, 1.0 + 1e-9)

Tally = dict[str, Tensor]  # (S,) sums over prompts and steps


def cell(
    stream: Stationary | Moving,
    n: int,
    m: int,
    streams: int,
    seed: int,
    contestants: Mapping[str, Contestant],
    every: int = 1,
) -> dict[str, dict[str, Any]]:
    """``{contestant: {quantity: [value, standard error]}}``."""
    generator = torch.Generator().manual_seed(seed)
    histories, edges = Histories(contestants), class_edges(stream)
    tallies: dict[str, Tally] = {name: {} for name in contestants}
    for number in range(STEPS):
        rates, ease = stream.rates(number, (streams, n), generator)
        successes = torch.binomial(torch.full_like(rates, m), rates, generator)
        step = Step(successes, m, difficulty(ease, edges))
        if number >= stream.first_measured and (number - stream.first_measured) % every == 0:
            for name, contestant in contestants.items():
                _add(tallies[name], observe(contestant(step, histories), step, rates))
        histories.update(step)
    out = {name: summary(tally, tallies["rloo"]) for name, tally in tallies.items()}
    for name in out:
        if name.startswith("shrinkage_history"):
            ends = [tallies["shrinkage_js"], tallies["bvblend_eb"]]
            out[name]["loss"] = loss(tallies[name], min(ends, key=lambda t: float(t["error"].sum())), tallies["rloo"])
    return out


def loss(tally: Tally, other: Tally, reference: Tally) -> list[float]:
    """Error above that of another contestant on the same rewards, in units of rloo's."""
    chance, difference = reference["error"] - reference["exact error"], tally["error"] - other["error"]
    difference = difference - _slope(difference, chance) * chance
    sums = {"difference": difference, "rloo": reference["exact error"]}
    return jackknife(sums, lambda t: t["difference"] / t["rloo"])


def observe(outcome: Outcome, step: Step, rates: Tensor) -> Tally:
    truth, rewards, m = rates[..., None], step.rewards, step.m
    slope = rates * (1 - rates)
    gradient = (outcome.advantages * (rewards - truth)).mean(-1)
    aligned = gradient * slope
    failed, mixed = step.successes == 0, (step.successes > 0) & (step.successes < m)
    sums = {
        "count": torch.ones_like(rates),
        "error": ((outcome.baseline - truth) ** 2).mean(-1),
        "exact error": slope / (m - 1),
        "aligned": aligned,
        "slope2": slope**2,
        "energy": gradient**2,
        "wide": (outcome.advantages**2).mean(-1) / m,
        "zero": (outcome.advantages.abs() <= 1e-12).all(-1).double(),
        "all-fail": aligned * failed,
        "mixed": mixed.double(),
        "weight": outcome.weight.mean(-1) * mixed,
    }
    for k in range(len(BANDS) - 1):
        band = (rates >= BANDS[k]) & (rates < BANDS[k + 1])
        sums[f"aligned {k}"], sums[f"slope2 {k}"] = aligned * band, slope**2 * band
    if outcome.local is not None and outcome.target is not None:
        miss = torch.where((outcome.local - outcome.target).isnan(), 0.0, outcome.local - outcome.target)
        sums["gap"] = (miss**2).mean(-1)
        sums["pull"] = (miss * (outcome.local - truth).nan_to_num()).mean(-1)
    tally = {name: value.sum(-1) for name, value in sums.items()}
    tally["peak"] = outcome.advantages.abs().amax((-1, -2))
    return tally


def _add(tally: Tally, more: Tally) -> None:
    for name, value in more.items():
        if name == "peak":
            tally[name] = torch.maximum(tally.get(name, value), value)
        else:
            tally[name] = tally.get(name, 0) + value


def summary(tally: Tally, reference: Tally) -> dict[str, Any]:
    """Quantities with their standard errors; `reference` is rloo's tally."""
    chance = reference["error"] - reference["exact error"]
    error = tally["error"] - _slope(tally["error"], chance) * chance
    if tally is reference:
        error = tally["exact error"]
    both = {**tally, "error": error, **{f"rloo {name}": value for name, value in reference.items()}}
    out: dict[str, Any] = {
        "mse": jackknife(both, lambda t: t["error"] / t["rloo exact error"]),
        "signal": jackknife(both, lambda t: t["aligned"] / t["slope2"]),
        "efficiency": jackknife(both, lambda t: _efficiency(t) / _efficiency(t, "rloo ")),
        "wide": jackknife(both, lambda t: _wide(t) / _wide(t, "rloo ")),
        "zero": jackknife(both, lambda t: t["zero"] / t["count"]),
        "all-fail": jackknife(both, lambda t: t["all-fail"] / t["aligned"]),
        "A2": jackknife(both, lambda t: t["wide"] / t["rloo wide"]),
        "weight": jackknife(both, lambda t: t["weight"] / t["mixed"]),
        "peak": float(f"{float(tally['peak'].max()):.4g}"),
    }
    for k in range(len(BANDS) - 1):
        if bool((tally[f"slope2 {k}"].sum() - tally[f"slope2 {k}"] > 0).all()):
            out[f"signal {k}"] = jackknife(both, lambda t, k=k: t[f"aligned {k}"] / t[f"slope2 {k}"])
    if "gap" in tally:
        out["best weight"] = jackknife(both, lambda t: t["pull"] / t["gap"])
    return out


def _efficiency(sums: Mapping[str, Tensor], of: str = "") -> Tensor:
    signal = sums[f"{of}aligned"] / sums[f"{of}slope2"]
    return signal**2 / (sums[f"{of}energy"] - signal**2 * sums[f"{of}slope2"])


def _wide(sums: Mapping[str, Tensor], of: str = "") -> Tensor:
    return (sums[f"{of}aligned"] / sums[f"{of}slope2"]) ** 2 / sums[f"{of}wide"]


def _slope(values: Tensor, chance: Tensor) -> Tensor:
    """Regression of per-stream values on what chance did to rloo, whose expectation is 0."""
    spread = ((chance - chance.mean()) ** 2).sum()
    return ((values - values.mean()) * (chance - chance.mean())).sum() / spread


def jackknife(sums: Mapping[str, Tensor], function: Callable[[Mapping[str, Tensor]], Tensor]) -> list[float]:
    """[value, standard error] of a function of sums over independent streams."""
    total = {name: value.sum() for name, value in sums.items()}
    value = function(total)
    without = function({name: total[name] - own for name, own in sums.items()})
    n = without.shape[0]
    error = ((n - 1) / n * ((without - without.mean()) ** 2).sum()).sqrt()
    return [float(f"{float(value):.6g}"), float(f"{float(error):.3g}")]
