"""Search for exact counterexamples to "the shrinkage baseline never loses to rloo".

    python benchmarks/counterexamples.py [--quick] [--out counterexamples.json]

Two families of small problems are evaluated over all of their outcomes: prompts with 0/1 rewards, and the same
with one prompt's rewards moved by a constant. The search runs in floats, on matrices of outcomes; what it
reports, the simplest and the most extreme problem of each kind, is evaluated again in rationals by
`refbase.exact` with `refbase.shrinkage` and `refbase.rloo`, so a counterexample is a comparison of two fractions.

A problem is simpler when it has fewer rollouts, then smaller denominators.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import refbase
from refbase.exact import Problem, Prompt, Report, evaluate

RATES = ["1/50", "1/20", "1/10", "1/5", "1/3", "1/2", "2/3", "4/5", "9/10", "19/20", "49/50"]
QUICK_RATES = ["1/50", "1/20", "1/5", "1/2", "49/50"]
MARGIN = 1e-9  # a float ratio this close to 1 is decided in rationals only


@dataclass(frozen=True)
class Candidate:
    """Prompts with rewards offset + {0, 1} and success rates, m rollouts each."""

    rates: tuple[Fraction, ...]
    rollouts: int
    offset: int  # of the last prompt

    @property
    def problem(self) -> Problem:
        *first, last = self.rates
        prompts = [Prompt.bernoulli(p, self.rollouts) for p in first]
        return Problem([*prompts, Prompt.bernoulli(last, self.rollouts, self.offset)])

    @property
    def complexity(self) -> tuple[int, int, int]:
        return len(self.rates) * self.rollouts, sum(p.denominator for p in self.rates), self.offset

    def __str__(self) -> str:
        moved = f", last prompt + {self.offset}" if self.offset else ""
        return f"p = ({', '.join(map(str, self.rates))}), m = {self.rollouts}{moved}"


def candidates(rates: Sequence[str], rollouts: Sequence[int], offsets: Sequence[int]) -> Iterator[Candidate]:
    values = [Fraction(p) for p in rates]
    for n, m, offset in itertools.product((2, 3), rollouts, offsets):
        if (m + 1) ** n > 5000:
            continue
        for first in itertools.combinations_with_replacement(values, n - 1):
            # The last prompt is special only when it is the one that is moved.
            last = values if offset else [p for p in values if p >= first[-1]]
            for p in last:
                yield Candidate((*first, p), m, offset)


def plug_in(rewards: np.ndarray, group_ids: Sequence[Any]) -> np.ndarray:
    """The paper's shrinkage advantages for a matrix of outcomes and equal group sizes."""
    outcomes, n = len(rewards), len(set(group_ids))
    groups = rewards.reshape(outcomes, n, -1)
    m = groups.shape[2]
    means, variances = groups.mean(axis=2), groups.var(axis=2, ddof=1)
    others = [[k for k in range(n) if k != i] for i in range(n)]
    target = np.stack([means[:, rest].mean(axis=1) for rest in others], axis=1)
    noise = np.stack([variances[:, rest].mean(axis=1) / m for rest in others], axis=1)
    spread = np.stack([means[:, rest].var(axis=1) for rest in others], axis=1)
    total = noise + spread
    weight = (n - 1) / n * np.divide(noise, total, out=np.zeros_like(total), where=total > 0)
    local = (groups.sum(axis=2, keepdims=True) - groups) / (m - 1)
    baseline = (1 - weight)[:, :, None] * local + (weight * target)[:, :, None]
    return (groups - baseline).reshape(outcomes, -1)


def rloo(rewards: np.ndarray, group_ids: Sequence[Any]) -> np.ndarray:
    groups = rewards.reshape(len(rewards), len(set(group_ids)), -1)
    centred = groups - groups.mean(axis=2, keepdims=True)
    return (centred * (groups.shape[2] / (groups.shape[2] - 1))).reshape(len(rewards), -1)


def float_ratios(candidate: Candidate) -> tuple[float, float]:
    """MSE and gradient variance of the plug-in over those of rloo."""
    ours, base = (
        evaluate(candidate.problem, e, arithmetic="float", symmetric=True, batched=True) for e in (plug_in, rloo)
    )
    return ours.mse / base.mse, ours.variance / base.variance


def exact_reports(candidate: Candidate) -> dict[str, Report]:
    return {name: evaluate(candidate.problem, getattr(refbase, name), symmetric=True) for name in ("rloo", "shrinkage")}


KINDS = {
    "error worse": lambda mse, variance: mse > 1,
    "variance worse": lambda mse, variance: variance > 1,
    "both worse": lambda mse, variance: mse > 1 and variance > 1,
    "error worse, variance better": lambda mse, variance: mse > 1 > variance,
    "variance worse, error better": lambda mse, variance: variance > 1 > mse,
}


def describe(candidate: Candidate, kind: str, role: str) -> dict[str, Any]:
    """A counterexample in rationals; fails if the float search was wrong about it."""
    reports = exact_reports(candidate)
    base, ours = reports["rloo"], reports["shrinkage"]
    mse, variance = ours.mse / base.mse, ours.variance / base.variance
    if not KINDS[kind](mse, variance) or base.largest_bias != 0 or ours.largest_bias != 0:
        raise RuntimeError(f"{candidate} is no counterexample of kind {kind!r}: ratios {mse}, {variance}")
    return {
        "kind": kind,
        "role": role,
        "problem": str(candidate),
        "rates": [str(p) for p in candidate.rates],
        "rollouts": candidate.rollouts,
        "offset": candidate.offset,
        "mse": {name: str(report.mse) for name, report in reports.items()},
        "variance": {name: str(report.variance) for name, report in reports.items()},
        "mse_ratio": float(mse),
        "variance_ratio": float(variance),
    }


def search(rates: Sequence[str], rollouts: Sequence[int], offsets: Sequence[int]) -> dict[str, Any]:
    """All problems of one family: how many lose, and the simplest and most extreme of each kind."""
    losing: dict[str, list[tuple[Candidate, float]]] = {kind: [] for kind in KINDS}
    tried = 0
    for candidate in candidates(rates, rollouts, offsets):
        mse, variance = float_ratios(candidate)
        tried += 1
        if min(abs(mse - 1), abs(variance - 1)) < MARGIN:
            continue
        for kind, holds in KINDS.items():
            if holds(mse, variance):
                extreme = mse if kind.startswith("error") else variance if "variance" in kind else min(mse, variance)
                losing[kind].append((candidate, extreme))
    found = []
    for kind, members in losing.items():
        if members:
            found.append(describe(min(members, key=lambda c: c[0].complexity)[0], kind, "simplest"))
            found.append(describe(max(members, key=lambda c: c[1])[0], kind, "most extreme"))
    return {"tried": tried, "losing": {kind: len(members) for kind, members in losing.items()}, "found": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small grid, for seconds instead of minutes")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments = parser.parse_args()
    rates = QUICK_RATES if arguments.quick else RATES
    rollouts = (2, 4) if arguments.quick else (2, 3, 4, 6, 8, 12, 16, 20)
    families = {
        "0/1 rewards": search(rates, rollouts, (0,)),
        "one prompt moved": search(rates, (2,) if arguments.quick else (2, 4, 8), (1, 3)),
    }
    for family, result in families.items():
        print(f"\n{family}: {result['tried']} problems")
        for kind, count in result["losing"].items():
            print(f"  {kind}: {count}")
        for item in result["found"]:
            ratios = f"error x {item['mse_ratio']:.4f}, variance x {item['variance_ratio']:.4f}"
            print(f"  {item['role']}, {item['kind']}: {item['problem']}: {ratios}")
            for quantity in ("mse", "variance"):
                values = item[quantity]
                if len(values["shrinkage"]) < 60:  # longer fractions are in the JSON
                    print(f"      {quantity} {values['shrinkage']} against rloo's {values['rloo']}")
    if arguments.out:
        arguments.out.write_text(json.dumps(families, indent=1) + "\n")


if __name__ == "__main__":
    main()
