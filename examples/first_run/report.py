"""What a run achieved: numbers, a picture and the places to look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .job import Job, curve, success_key


@dataclass(frozen=True)
class Summary:
    """Success rate on the held-out problems (greedy decoding) before and after, and the reward while training."""

    before: float
    after: float
    n_val: int
    first_reward: float
    last_reward: float
    seconds_per_step: float

    @property
    def noise(self) -> float:
        """Standard error of ``after - before`` if the problems were answered independently."""
        variances = (p * (1 - p) for p in (self.before, self.after))
        return math.sqrt(sum(variances) / self.n_val)


def summarise(records: list[dict[str, Any]], n_val: int) -> Summary:
    """Summary of a run from its `job.metrics`."""
    success = curve(records, success_key(records))
    reward = [value for _, value in curve(records, "critic/score/mean")]
    seconds = sorted(value for _, value in curve(records, "timing_s/step"))
    few = max(1, len(reward) // 10)
    return Summary(
        before=success[0][1],
        after=success[-1][1],
        n_val=n_val,
        first_reward=sum(reward[:few]) / few,
        last_reward=sum(reward[-few:]) / few,
        seconds_per_step=seconds[len(seconds) // 2],
    )


def plot(records: list[dict[str, Any]], job: Job, path: Path) -> None:
    """Curves of training reward and held-out success as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    steps, reward = zip(*curve(records, "critic/score/mean"), strict=True)
    axes.plot(steps, reward, color="tab:blue", alpha=0.6, label="training reward (sampled, mean of the batch)")
    steps, success = zip(*curve(records, success_key(records)), strict=True)
    axes.plot(steps, success, color="tab:red", marker="o", label="held-out success (greedy)")
    axes.set(xlabel="step", ylabel="rate", ylim=(0, 1), xlim=(0, None))
    axes.set_title(f"adv_estimator={job.estimator}, rollout {job.rollout}, n={job.rollouts}, seed {job.seed}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=130)
    plt.close(figure)
