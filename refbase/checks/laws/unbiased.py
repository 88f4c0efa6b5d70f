"""The expected policy gradient, by enumeration of all outcomes of small problems."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from refbase.checks import tolerance
from refbase.checks.law import Law
from refbase.checks.laws._common import show
from refbase.checks.strategies import INTEGERS
from refbase.checks.subject import Probe, Subject, Violation, read_answer, render_number, to_tensor
from refbase.exact import Problem, Prompt, Report, evaluate

REWARDS = st.one_of(st.sampled_from([Fraction(0), Fraction(1)]), INTEGERS)


def _unbiased(probe: Probe, problem: Problem) -> None:
    _compare(probe, problem, [Fraction(1) for _ in problem.prompts], "E g")


def _up_to_factor(probe: Probe, problem: Problem) -> None:
    factors = [Fraction(prompt.rollouts - 1, prompt.rollouts) for prompt in problem.prompts]
    _compare(probe, problem, factors, "E g")


def _compare(probe: Probe, problem: Problem, factors: list[Fraction], what: str) -> None:
    report, eps = _evaluate(probe, problem)
    # An error of A enters multiplied by a score, whose components are at most 1.
    values = [r for prompt in problem.prompts for r in prompt.rewards] * max(p.rollouts for p in problem.prompts)
    bound = tolerance.algebraic([*values, *probe.subject.context], eps)
    for k, (expected, true) in enumerate(zip(report.expected_gradient, report.true_gradient, strict=True)):
        wanted = [factors[k] * t if eps == 0 else float(factors[k]) * t for t in true]
        if not all(tolerance.close(a, b, bound) for a, b in zip(wanted, expected, strict=True)):
            raise Violation(f"{what} of prompt {k}", show(wanted), show(list(expected)))


def _evaluate(probe: Probe, problem: Problem) -> tuple[Report, float]:
    """The report, and the eps of the arithmetic it was computed in."""
    subject = probe.subject
    if min(prompt.rollouts for prompt in problem.prompts) < subject.min_group:
        reject()
    dtype = "float64" if "float64" in subject.dtypes else subject.dtypes[0]
    eps = [0.0]

    def call(rewards: Any, group_ids: Any) -> Any:
        given = to_tensor(rewards, dtype) if subject.numbers == "torch" else list(map(_number, rewards))
        answer = read_answer(probe.run(given, list(group_ids)), len(group_ids))
        if not all(map(math.isfinite, answer.advantages)):
            raise Violation("non-finite advantages for one of the outcomes", "finite numbers", show(answer.advantages))
        eps[0] = max(eps[0], answer.eps)
        return answer.advantages

    def _number(value: Any) -> Any:
        return value if subject.numbers == "exact" else float(value)

    probe.listing = _listing(problem, subject)
    return evaluate(problem, call, arithmetic="exact" if subject.numbers == "exact" else "float"), eps[0]


def _listing(problem: Problem, subject: Subject) -> str:
    prompts = ", ".join(
        f"Prompt([{', '.join(f'{str(p)!r}' for p in prompt.probabilities)}], "
        f"[{', '.join(f'{str(r)!r}' for r in prompt.rewards)}], {prompt.rollouts})"
        for prompt in problem.prompts
    )
    lines = ["from refbase.exact import Problem, Prompt, evaluate, on_torch", f"problem = Problem([{prompts}])"]
    if subject.render is not None:
        rollouts = [f"{prompt.rollouts} of group {k}" for k, prompt in enumerate(problem.prompts)]
        return "\n".join([*lines, f"# estimator: its advantages for each outcome, rollouts {', '.join(rollouts)}"])
    options = "".join(f", {key}={_text(value)}" for key, value in subject.options.items())
    bound = f"lambda r, g: estimator(r, g{options})" if options else "estimator"
    call = {
        "exact": f"evaluate(problem, {bound})",
        "float": f'evaluate(problem, lambda r, g: ({bound})(r.tolist(), g), arithmetic="float")',
        "torch": f'evaluate(problem, on_torch({bound}), arithmetic="float")',
    }[subject.numbers]
    return "\n".join([*lines, f"report = {call}", "print(report.expected_gradient, report.true_gradient)"])


def _text(value: Any) -> str:
    return render_number(value) if isinstance(value, (Fraction, float)) else repr(value)


@st.composite
def problems(draw: st.DrawFn, subject: Subject, least: int = 1) -> Problem:
    """One to three prompts of two or three responses, at most 2**8 outcomes."""
    budget = 256
    least = max(least, subject.min_group)
    prompts: list[Prompt] = []
    size = draw(st.integers(least, 3))
    for _ in range(draw(st.integers(1, 3))):
        responses = draw(st.integers(2, 3))
        rollouts = draw(st.integers(least, 3)) if subject.ragged else size
        if responses**rollouts > budget:
            break
        budget //= responses**rollouts
        shares = draw(st.lists(st.integers(1, 4), min_size=responses, max_size=responses))
        rewards = draw(st.lists(REWARDS, min_size=responses, max_size=responses))
        prompts.append(Prompt([Fraction(share, sum(shares)) for share in shares], rewards, rollouts))
    return Problem(prompts)


LAWS = (
    Law(
        "unbiased",
        "E[A_ij grad log pi(y_ij)] = grad E r, summed over all outcomes of a small problem",
        frozenset({"unbiased"}),
        problems,
        _unbiased,
        max_examples=25,
    ),
    Law(
        "unbiased_up_to_factor",
        "E[A_ij grad log pi(y_ij)] = (m-1)/m * grad E r for m rollouts of the prompt, m >= 2",
        frozenset({"unbiased_up_to_factor"}),
        lambda subject: problems(subject, least=2),
        _up_to_factor,
        max_examples=25,
    ),
)
