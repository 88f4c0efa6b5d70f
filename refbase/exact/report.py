"""What an evaluation finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """What `evaluate` found, as Fractions or as floats; `refbase.exact` states the conventions."""

    expected_gradient: tuple[tuple[Any, ...], ...]  # per prompt, in its logits
    true_gradient: tuple[tuple[Any, ...], ...]
    variance_by_prompt: tuple[Any, ...]  # trace of the covariance of the prompt's gradient
    mse_by_prompt: tuple[Any, ...]  # of the baseline about the prompt's expected reward
    outcomes: int
    calls: int  # of the estimator; outcomes with equal rewards share one

    @property
    def bias(self) -> tuple[tuple[Any, ...], ...]:
        """Expected minus true gradient, per prompt."""
        pairs = zip(self.expected_gradient, self.true_gradient, strict=True)
        return tuple(tuple(e - t for e, t in zip(expected, true, strict=True)) for expected, true in pairs)

    @property
    def largest_bias(self) -> Any:
        """Largest absolute component of the bias; 0 exactly when the estimator is unbiased here."""
        return max(abs(b) for block in self.bias for b in block)

    @property
    def variance(self) -> Any:
        """Trace of the covariance of the batch gradient: the sum over prompts."""
        return sum(self.variance_by_prompt)

    @property
    def mse(self) -> Any:
        """Mean over prompts of the baseline's mean squared error."""
        return sum(self.mse_by_prompt) / len(self.mse_by_prompt)

    def factor(self, prompt: int) -> Any:
        """The c with ``expected = c · true`` for one prompt; None if there is no such c or the truth is 0.

        Equality is exact, so this is for exact arithmetic.
        """
        expected, true = self.expected_gradient[prompt], self.true_gradient[prompt]
        along = next((k for k, t in enumerate(true) if t != 0), None)
        if along is None:
            return None
        c = expected[along] / true[along]
        return c if all(e == c * t for e, t in zip(expected, true, strict=True)) else None
