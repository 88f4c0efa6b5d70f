"""Baseline error on frozen policies: the tables quoted in docs/estimators.

Success rates are drawn from a Beta distribution, rewards are 0 or 1. Printed is the mean squared error of the
baseline about the rollout's true success rate, relative to `rloo` on the same rewards, with its standard error, and
the mean weight over groups with both outcomes.

    python benchmarks/baseline_mse.py [--table memoryless|history] [--repetitions N] [--quick]
"""

from __future__ import annotations

import argparse
import math
import warnings

import torch

import refbase

MEMORYLESS = [  # Beta(a, b), prompts, rollouts per prompt
    (1, 1, 64, 2),
    (2, 2, 64, 2),
    (2, 2, 256, 2),
    (1, 9, 64, 2),
    (5, 5, 64, 2),
    (20, 20, 1024, 8),
    (0.2, 0.2, 256, 2),
    (0.2, 0.2, 8, 8),
    (0.2, 0.2, 8, 2),
    (1, 9, 8, 8),
    (5, 5, 8, 2),
    (5, 5, 16, 2),
    (1, 1, 16, 4),
]
HISTORY = [
    (0.2, 0.2, 64, 8),
    (0.3, 9.7, 64, 8),
    (0.3, 9.7, 64, 4),
    (20, 20, 64, 4),
    (1, 1, 64, 2),
    (5, 5, 2, 4),
]


def draw(a: float, b: float, n: int, m: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """True rate and reward of each rollout, and its prompt."""
    rates = torch.distributions.Beta(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    group_ids = torch.arange(n).repeat_interleave(m)
    truth = rates.sample((n,))[group_ids]
    return truth, torch.bernoulli(truth), group_ids


def best_constant(truth: torch.Tensor, n: int, m: int) -> float:
    """The weight that minimises the error of `shrinkage` for these very success rates."""
    rates = truth.view(n, m)[:, 0]
    within = (rates * (1 - rates)).mean()
    v = within / (m - 1)
    target = n / (n - 1) * rates.var() + within / (m * (n - 1))
    return float(v / (v + target))


def mixed(rewards: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """Rollouts of groups in which both outcomes occur."""
    mean = rewards.view(n, m).mean(1, keepdim=True).expand(n, m).reshape(-1)
    return (mean > 0) & (mean < 1)


class Tally:
    def __init__(self) -> None:
        self.errors: dict[str, list[float]] = {}
        self.weights: dict[str, list[float]] = {}

    def add(self, name: str, estimate: refbase.Estimate, truth: torch.Tensor, shown: torch.Tensor) -> None:
        self.errors.setdefault(name, []).append(float(((estimate.baseline - truth) ** 2).mean()))
        self.weights.setdefault(name, []).extend(estimate.weight[shown].tolist())

    def row(self) -> dict[str, str]:
        reference = torch.tensor(self.errors["rloo"])
        cells = {}
        for name, values in self.errors.items():
            errors = torch.tensor(values)
            ratio = errors.mean() / reference.mean()
            error = (errors - ratio * reference).std() / reference.mean() / math.sqrt(len(values))
            weights = self.weights[name]
            cells[name] = f"{ratio:.3f} ± {error:.3f} (w {sum(weights) / len(weights):.2f})"
        return cells


def memoryless(a: float, b: float, n: int, m: int, repetitions: int) -> dict[str, str]:
    tally = Tally()
    for _ in range(repetitions):
        truth, rewards, group_ids = draw(a, b, n, m)
        shown = mixed(rewards, n, m)
        for name in ("rloo", "shrinkage", "shrinkage_js", "batch_mean"):
            tally.add(name, getattr(refbase, name)(rewards, group_ids), truth, shown)
        oracle = refbase.shrinkage(rewards, group_ids, weight=best_constant(truth, n, m))
        tally.add("best constant", oracle, truth, shown)
    return tally.row()


def history(a: float, b: float, n: int, m: int, repetitions: int, warm_up: int = 60) -> dict[str, str]:
    tally = Tally()
    state = refbase.HistoryState.empty()
    for step in range(warm_up + repetitions):
        truth, rewards, group_ids = draw(a, b, n, m)
        if step >= warm_up:
            shown = mixed(rewards, n, m)
            for name in ("rloo", "shrinkage", "shrinkage_js"):
                tally.add(name, getattr(refbase, name)(rewards, group_ids), truth, shown)
            tally.add("bvblend", refbase.bvblend(rewards, group_ids, state), truth, shown)
            tally.add("bvblend loo", refbase.bvblend(rewards, group_ids, state, local="loo"), truth, shown)
            tally.add("bvblend_eb", refbase.bvblend_eb(rewards, group_ids, state), truth, shown)
        state = refbase.update_history(state, rewards, group_ids, step=step)
    return tally.row()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("memoryless", "history"), default="memoryless")
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="the first row only, to see that it works")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore", refbase.DegenerateBatchWarning)
    cells, table = (MEMORYLESS, memoryless) if options.table == "memoryless" else (HISTORY, history)
    for a, b, n, m in cells[: 1 if options.quick else None]:
        row = table(a, b, n, m, options.repetitions)
        print(f"Beta({a}, {b}), n={n}, m={m}: " + ", ".join(f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
