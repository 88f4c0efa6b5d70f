"""Numbers of runs and of groups of runs; works on the records of verl jobs and of replicas alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.training.plan import ESTIMATORS

#: Steps of the moving average that a threshold is compared with.
SMOOTH = 5
REFERENCE = "grpo"


@dataclass(frozen=True)
class Outcome:
    """What one run achieved. `pair` is what a run of another estimator must share to be compared with it."""

    estimator: str
    pair: tuple[int, int]
    reward: tuple[float, ...]
    values: Mapping[str, float]
    #: Sums over the steps of the gradient's variance and of its mean's squared norm, where they were measured.
    gradient: tuple[float, float] | None = None


def outcome_of_job(record: Mapping[str, Any]) -> Outcome:
    curves, end = record["curves"], record["held_out"][-1]
    values = {name: end[name] for name in ("greedy", "sampled", "stuck")}
    values |= {name: mean(curves[name]) for name in ("zero_signal", "all_wrong", "reward_variance")}
    cell = record["cell"]
    if cell["estimator"] != "drgrpo":  # verl aggregates the entropy like the loss, and Dr.GRPO's is divided otherwise
        values["entropy"] = mean(curves["entropy"][-SMOOTH:])
    return Outcome(cell["estimator"], (cell["seed"], 0), tuple(curves["reward"]), values)


def outcome_of_replica(record: Mapping[str, Any]) -> Outcome:
    values = {name: record[name] for name in ("greedy", "sampled", "stuck")}
    values |= {name: mean(record[name]) for name in ("zero_signal", "reward_variance")}
    gradient = (record["gradient_variance"], record["gradient_square"])
    return Outcome(record["estimator"], (record["model"], record["seed"]), tuple(record["reward"]), values, gradient)


def area(run: Outcome) -> float:
    """Mean reward over the steps: the area under the curve, per step."""
    return mean(run.reward)


def roughness(run: Outcome) -> float:
    """Variance of the batches' mean reward about its trend: half the mean squared difference of neighbours."""
    return mean([(b - a) ** 2 for a, b in zip(run.reward, run.reward[1:], strict=False)]) / 2


def gradient_noise(runs: Sequence[Outcome], reference: Sequence[Outcome]) -> Mean:
    """Variance of the gradient over its mean's squared norm, of all steps of all runs, as a ratio to the reference's.

    The error is the jackknife's over the pairs of runs that start alike.
    """
    own, other = ({run.pair: run.gradient for run in side if run.gradient is not None} for side in (runs, reference))
    pairs = sorted(own.keys() & other.keys())

    def ratio(kept: Sequence[tuple[int, int]]) -> float:
        mine, theirs = ([sum(side[pair][k] for pair in kept) for k in (0, 1)] for side in (own, other))
        # A mean that cannot be told from 0 has no noise to speak of.
        return mine[0] / mine[1] / (theirs[0] / theirs[1]) if min(mine[1], theirs[1], theirs[0]) > 0 else math.nan

    left_out = [ratio([pair for pair in pairs if pair != out]) for out in pairs] if len(pairs) > 1 else []
    centre = mean(left_out)
    squares = sum((value - centre) ** 2 for value in left_out)
    error = math.sqrt((len(pairs) - 1) / len(pairs) * squares) if left_out else math.nan
    return Mean(ratio(pairs), error)


def smoothed(reward: Sequence[float]) -> list[float]:
    """Moving average over the last `SMOOTH` steps, from the first step that has so many."""
    return [mean(reward[end - SMOOTH : end]) for end in range(SMOOTH, len(reward) + 1)]


def threshold(runs: Iterable[Outcome]) -> float:
    """What the mean curve of `REFERENCE` has reached after three quarters of the steps."""
    curves = [run.reward for run in runs if run.estimator == REFERENCE]
    average = [mean(values) for values in zip(*curves, strict=True)]
    line = smoothed(average)
    return line[min(len(line) - 1, round(0.75 * len(average)) - SMOOTH)]


def steps_to(run: Outcome, level: float) -> float:
    """Step at which the moving average first reaches the level; one more than all where it never does."""
    line = smoothed(run.reward)
    return next((i + SMOOTH for i, value in enumerate(line) if value >= level), len(run.reward) + 1)


@dataclass(frozen=True)
class Mean:
    """Mean over runs with its standard error (nan from a single run)."""

    value: float
    error: float

    def text(self, digits: int = 3, sign: bool = False) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.{digits}f}"
        return f"{self.value:{'+' if sign else ''}.{digits}f}{error}"


def average(values: Sequence[float]) -> Mean:
    centre = mean(values)
    if len(values) < 2:
        return Mean(centre, math.nan)
    return Mean(centre, math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1) / len(values)))


def by_estimator(runs: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Runs of each estimator, in the order of the plan."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for run in runs:
        found[run.estimator].append(run)
    return {name: found[name] for name in ESTIMATORS if name in found}


def paired(runs: Sequence[Outcome], estimator: str, measure: Any) -> Mean:
    """Mean difference to `REFERENCE` over the runs that have a partner."""
    other = {run.pair: measure(run) for run in runs if run.estimator == REFERENCE}
    return average([measure(run) - other[run.pair] for run in runs if run.estimator == estimator and run.pair in other])


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values) if values else math.nan
