"""Small tabular problems with rational numbers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from refbase.validate import reject, reject_type

Rational = Fraction | int | str


@dataclass(frozen=True)
class Prompt:
    """One prompt: a softmax policy over K responses, their rewards, and how many rollouts are drawn.

    Parameters
    ----------
    probabilities
        K positive rationals that sum to 1, each a Fraction, an int or a string such as ``"1/3"``; floats are
        refused, being inexact. Kept as Fractions.
    rewards
        K rationals, one per response.
    rollouts
        m, at least 1.
    """

    probabilities: Sequence[Any]
    rewards: Sequence[Any]
    rollouts: int

    def __post_init__(self) -> None:
        pi = _fractions("probabilities", self.probabilities)
        rewards = _fractions("rewards", self.rewards)
        if sum(pi) != 1 or min(pi) <= 0:
            got = f"({', '.join(map(str, pi))}) with sum {sum(pi)}"
            remedy = "Leave out responses that never occur, and divide by the sum."
            reject("exact.Prompt", "probabilities", "be positive and sum to 1", got, remedy)
        if len(rewards) != len(pi):
            requirement = f"have one entry per response ({len(pi)})"
            remedy = "Pass the reward of each response, not of each rollout."
            reject("exact.Prompt", "rewards", requirement, f"{len(rewards)} entries", remedy)
        if self.rollouts < 1:
            reject("exact.Prompt", "rollouts", "be at least 1", str(self.rollouts), "Leave the prompt out instead.")
        object.__setattr__(self, "probabilities", pi)
        object.__setattr__(self, "rewards", rewards)

    @classmethod
    def bernoulli(cls, p: Rational, rollouts: int, offset: Rational = 0) -> Prompt:
        """Reward ``offset + 1`` with probability p, ``offset`` otherwise."""
        p, offset = Fraction(p), Fraction(offset)
        return cls((1 - p, p), (offset, offset + 1), rollouts)

    @property
    def mean(self) -> Fraction:
        """Expected reward."""
        return self.expect(self.rewards)

    @property
    def variance(self) -> Fraction:
        """Variance of the reward of one rollout."""
        return self.expect([(r - self.mean) ** 2 for r in self.rewards])

    @property
    def scores(self) -> tuple[tuple[Fraction, ...], ...]:
        """``e_y - π`` for each response y."""
        size = range(len(self.probabilities))
        return tuple(tuple((k == y) - self.probabilities[k] for k in size) for y in size)

    @property
    def gradient(self) -> tuple[Fraction, ...]:
        """``∇ E r`` in the prompt's logits: the truth an estimator aims at."""
        return tuple(p * (r - self.mean) for p, r in zip(self.probabilities, self.rewards, strict=True))

    def expect(self, values: Sequence[Any]) -> Any:
        """Expectation of a function of the response, given by its value at each response."""
        return sum(p * v for p, v in zip(self.probabilities, values, strict=True))


@dataclass(frozen=True)
class Problem:
    """A batch of prompts. Rows come grouped by prompt, labelled by the prompts' positions unless told."""

    prompts: Sequence[Prompt]
    labels: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        prompts = tuple(self.prompts)
        if not prompts:
            reject("exact.Problem", "prompts", "hold at least one prompt", "none", "Pass a list of `Prompt`.")
        labels = tuple(range(len(prompts)) if self.labels is None else self.labels)
        if len(set(labels)) != len(prompts) or len(labels) != len(prompts):
            requirement = f"be {len(prompts)} distinct labels, one per prompt"
            reject("exact.Problem", "labels", requirement, repr(labels), "Leave them out for 0, 1, 2, ...")
        object.__setattr__(self, "prompts", prompts)
        object.__setattr__(self, "labels", labels)

    @property
    def group_ids(self) -> list[Hashable]:
        """The label of each row."""
        pairs = zip(self.labels or (), self.prompts, strict=True)
        return [label for label, prompt in pairs for _ in range(prompt.rollouts)]

    def outcomes(self, symmetric: bool = False) -> int:
        """How many joint outcomes `evaluate` goes through."""
        sizes = [(len(prompt.rewards), prompt.rollouts) for prompt in self.prompts]
        return math.prod(math.comb(m + k - 1, m) if symmetric else k**m for k, m in sizes)


def _fractions(argument: str, values: Sequence[Rational]) -> tuple[Fraction, ...]:
    for value in values:
        if not isinstance(value, (Fraction, int, str)):
            got = f"{value!r} of type {type(value).__name__}"
            remedy = "A float is not the number that it prints: write Fraction(1, 3) or '1/3'."
            reject_type("exact.Prompt", argument, "hold rationals (Fraction, int or '1/3')", got, remedy)
    return tuple(Fraction(value) for value in values)
