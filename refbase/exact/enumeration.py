"""Expectations over every joint outcome of a problem.

Both arithmetics run the same array code: NumPy arrays hold Fractions (dtype object) or float64.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from refbase.estimate import Estimate
from refbase.exact.problem import Problem, Prompt
from refbase.exact.report import Report
from refbase.validate import DegenerateBatchWarning, check_choice, reject, reject_type

Estimator = Callable[[Any, Any], Any]

_CHUNK = 1 << 14  # outcomes held in memory at a time


def evaluate(
    problem: Problem,
    estimator: Estimator,
    *,
    arithmetic: str = "exact",
    symmetric: bool = False,
    batched: bool = False,
    max_outcomes: int = 5_000_000,
) -> Report:
    """Bias, variance and error of an estimator on one problem, over all of its outcomes.

    Parameters
    ----------
    problem
        The prompts; rows come grouped by prompt.
    estimator
        Called as ``estimator(rewards, group_ids)``, it returns an `Estimate`, or one advantage per row,
        whose baseline is then taken to be ``rewards - advantages``. It must be deterministic: it is called
        once per distinct reward vector. Bind options with ``functools.partial``; wrap a torch function in
        `on_torch`.
    arithmetic
        "exact": rewards are a list of Fraction, and the answers must be rational. "float": rewards are a
        float64 array, for kernels and outside code.
    symmetric
        Promise that rows of one prompt may be permuted (advantages move along with their rewards). Outcomes
        that differ by the order of a prompt's rollouts are then evaluated once, weighted by their number.
    batched
        The estimator takes a (B, N) array, one outcome per row (dtype object in exact arithmetic), and
        returns advantages, or an Estimate, of that shape.
    max_outcomes
        Refuse larger problems instead of running for hours.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        Too many outcomes; an answer of the wrong shape; non-finite answers.
    InputTypeError
        An irrational (float) answer in exact arithmetic.

    Examples
    --------
    >>> def reinforce(rewards, group_ids):
    ...     return rewards
    >>> report = evaluate(Problem([Prompt.bernoulli("1/4", rollouts=2)]), reinforce)
    >>> report.expected_gradient == report.true_gradient
    True
    >>> report.variance, report.mse
    (Fraction(27, 256), Fraction(1, 16))
    """
    check_choice("exact.evaluate", "arithmetic", arithmetic, ("exact", "float"))
    total = problem.outcomes(symmetric)
    if total > max_outcomes:
        remedy = "Use fewer rollouts or responses, symmetric=True, or raise max_outcomes."
        reject("exact.evaluate", "problem", f"have at most {max_outcomes} outcomes", str(total), remedy)
    call = _Caller(problem, estimator, arithmetic, batched)
    blocks = [_Block(prompt, call.dtype, symmetric) for prompt in problem.prompts]
    sums: list[list[Any]] = [[0, 0, 0] for _ in blocks]  # per prompt: E g, E |g|², E (b - mean)²
    for weight, responses in _joint_outcomes(blocks, total):
        with warnings.catch_warnings():
            # Every degenerate batch is among the outcomes, by design.
            warnings.simplefilter("ignore", DegenerateBatchWarning)
            advantages, baselines = call(responses)
        row = 0
        for block, drawn, acc in zip(blocks, responses, sums, strict=True):
            rows = slice(row, row + block.m)
            row += block.m
            gradient = block.gradients(drawn, advantages[:, rows])
            error = baselines[:, rows] - block.mean
            acc[0] += weight @ gradient
            acc[1] += weight @ (gradient * gradient).sum(axis=1)
            acc[2] += weight @ (error * error).sum(axis=1) / block.m
    number: Callable[[Any], Any] = Fraction if arithmetic == "exact" else float
    expected = tuple(tuple(map(number, acc[0])) for acc in sums)
    squares = [sum(e * e for e in gradient) for gradient in expected]
    return Report(
        expected_gradient=expected,
        true_gradient=tuple(tuple(map(number, prompt.gradient)) for prompt in problem.prompts),
        variance_by_prompt=tuple(number(acc[1]) - s for acc, s in zip(sums, squares, strict=True)),
        mse_by_prompt=tuple(number(acc[2]) for acc in sums),
        outcomes=total,
        calls=call.calls,
    )


def on_torch(estimator: Estimator, dtype: Any = None) -> Estimator:
    """Let `evaluate(arithmetic="float")` call a torch function: rewards become a tensor (default float64)."""
    import torch

    def call(rewards: Any, group_ids: Any) -> Any:
        return estimator(torch.as_tensor(rewards, dtype=dtype or torch.float64), group_ids)

    return call


def stacked(estimator: Estimator) -> Estimator:
    """Answer all outcomes in one call (``batched=True``); for estimators that look at one group at a time.

    The outcomes become one long batch in which every group of every outcome has a label of its own, which
    changes nothing only where *other groups are irrelevant*: `rloo`, `grpo`, `opo`, but not `shrinkage`.
    """

    def call(rewards: np.ndarray, group_ids: Sequence[Hashable]) -> Any:
        names = list(dict.fromkeys(group_ids))
        codes = np.array([names.index(label) for label in group_ids])
        labels = np.arange(len(rewards))[:, None] * len(names) + codes
        answer = estimator(rewards.reshape(-1), labels.reshape(-1))
        fields = (getattr(answer, "advantages", answer), getattr(answer, "baseline", None))
        advantages, baseline = (None if f is None else _to_numpy(f).reshape(rewards.shape) for f in fields)
        return advantages if baseline is None else Estimate(advantages, baseline, None)

    return call


class _Block:
    """One prompt's outcomes as arrays of the chosen number type."""

    def __init__(self, prompt: Prompt, dtype: Any, symmetric: bool) -> None:
        choices, self.m = range(len(prompt.probabilities)), prompt.rollouts
        if symmetric:
            rows = list(itertools.combinations_with_replacement(choices, self.m))
        else:
            rows = list(itertools.product(choices, repeat=self.m))
        weights = [math.prod(prompt.probabilities[y] for y in row) for row in rows]
        if symmetric:
            weights = [w * _arrangements(row) for w, row in zip(weights, rows, strict=True)]
        self.responses = np.array(rows)  # (outcomes, m) indices of responses
        self.weights = np.array(weights, dtype=dtype)
        self.pi = np.array(prompt.probabilities, dtype=dtype)
        self.mean = np.array([prompt.mean], dtype=dtype)[0]

    def gradients(self, drawn: np.ndarray, advantages: np.ndarray) -> np.ndarray:
        """``1/m Σ_j A_j (e_{y_j} - π)`` for each outcome."""
        by_response = [np.where(drawn == y, advantages, 0).sum(axis=1) for y in range(len(self.pi))]
        return (np.stack(by_response, axis=1) - advantages.sum(axis=1)[:, None] * self.pi) / self.m


class _Caller:
    """Calls the estimator once per distinct reward vector and returns (B, N) advantages and baselines."""

    def __init__(self, problem: Problem, estimator: Estimator, arithmetic: str, batched: bool) -> None:
        self.estimator, self.batched, self.calls = estimator, batched, 0
        self.exact = arithmetic == "exact"
        self.dtype: Any = object if self.exact else np.float64
        self.group_ids = problem.group_ids
        self.values, self.codes = [], []  # per prompt: reward of each response, and its code
        for prompt in problem.prompts:
            distinct = list(dict.fromkeys(prompt.rewards))
            self.values.append(np.array(prompt.rewards, dtype=self.dtype))
            self.codes.append(np.array([distinct.index(r) for r in prompt.rewards], dtype=np.int16))
        self.cache: dict[bytes, tuple[Any, Any]] = {}

    def __call__(self, responses: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        rewards = np.concatenate([v[y] for v, y in zip(self.values, responses, strict=True)], axis=1)
        if self.batched:
            self.calls += 1
            return self._read(self.estimator(rewards.copy(), list(self.group_ids)), rewards)
        codes = np.concatenate([c[y] for c, y in zip(self.codes, responses, strict=True)], axis=1)
        answers = [self._once(code.tobytes(), row) for code, row in zip(codes, rewards, strict=True)]
        return np.stack([a for a, _ in answers]), np.stack([b for _, b in answers])

    def _once(self, key: bytes, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if key not in self.cache:
            self.calls += 1
            # The estimator gets its own copy: one that writes to its input must not disturb the enumeration.
            given = row.tolist() if self.exact else row.copy()
            self.cache[key] = self._read(self.estimator(given, list(self.group_ids)), row)
        return self.cache[key]

    def _read(self, answer: Any, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        advantages = self._array("advantages", getattr(answer, "advantages", answer), rewards.shape)
        baseline = getattr(answer, "baseline", None)
        if baseline is None:
            return advantages, rewards - advantages
        return advantages, self._array("baseline", baseline, rewards.shape)

    def _array(self, name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = _to_numpy(values).astype(self.dtype)
        if array.shape != shape:
            remedy = "Let the estimator return one number per row."
            reject("exact.evaluate", f"estimator's {name}", f"have shape {shape}", f"shape {array.shape}", remedy)
        if self.exact:
            return _rational(name, array)
        if not np.isfinite(array).all():
            remedy = "All outcomes are tried, groups of one and of equal rewards too: handle them in the estimator."
            reject("exact.evaluate", f"estimator's {name}", "be finite", f"{array.tolist()}", remedy)
        return array


def _to_numpy(values: Any) -> np.ndarray:
    return values.detach().cpu().double().numpy() if hasattr(values, "detach") else np.asarray(values)


def _joint_outcomes(blocks: list[_Block], total: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Chunks of joint outcomes: their probabilities, and each prompt's responses."""
    sizes = tuple(len(block.weights) for block in blocks)
    for start in range(0, total, _CHUNK):
        index = np.unravel_index(np.arange(start, min(total, start + _CHUNK)), sizes)
        weight: Any = math.prod(block.weights[i] for block, i in zip(blocks, index, strict=True))
        yield weight, [block.responses[i] for block, i in zip(blocks, index, strict=True)]


def _arrangements(row: Sequence[int]) -> int:
    """In how many orders the rollouts of one multiset of responses can come."""
    return math.factorial(len(row)) // math.prod(math.factorial(row.count(y)) for y in set(row))


def _rational(name: str, array: np.ndarray) -> np.ndarray:
    for value in array.flat:
        if not isinstance(value, (Fraction, int)):
            remedy = 'Use arithmetic="float" for estimators that are not rational.'
            got = f"{value!r} of type {type(value).__name__}"
            requirement = "be Fractions in exact arithmetic"
            reject_type("exact.evaluate", f"estimator's {name}", requirement, got, remedy)
    # int / int would leave the rationals further on.
    return np.array([Fraction(v) for v in array.flat], dtype=object).reshape(array.shape)
