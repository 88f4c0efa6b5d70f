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
from refbase.checks.subject import Probe, Subject, SubjectError, Violation, read_answer, render_number, to_tensor
from refbase.exact import Problem, Prompt, Report, evaluate

REWARDS = st.one_of(st.sampled_from([Fraction(0), Fraction(1)]), INTEGERS)


def _unbiased(probe: Probe, problem: Problem) -> None:
    _compare(probe, problem, [Fraction(1) for _ in problem.prompts], "expected policy gradient")


def _up_to_factor(probe: Probe, problem: Problem) -> None:
    factors = [Fraction(prompt.rollouts - 1, prompt.rollouts) for prompt in problem.prompts]
    _compare(probe, problem, factors, "expected policy gradient")


def _compare(probe: Probe, problem: Problem, factors: list[Fraction], what: str) -> None:
    report, eps, largest = _evaluate(probe, problem)
    # An error of A enters multiplied by a score, whose components are at most 1.
    values = [r for prompt in problem.prompts for r in prompt.rewards] * max(p.rollouts for p in problem.prompts)
    bound = tolerance.algebraic([*values, *probe.subject.context], eps) + 4 * len(values) * eps * largest
    for k, (expected, true) in enumerate(zip(report.expected_gradient, report.true_gradient, strict=True)):
        wanted = [factors[k] * t if eps == 0 else float(factors[k]) * t for t in true]
        if not all(tolerance.close(a, b, bound) for a, b in zip(wanted, expected, strict=True)):
            raise Violation(f"{what} of prompt {k}", show(wanted), show(list(expected)))


def _evaluate(probe: Probe, problem: Problem) -> tuple[Report, float, float]:
    """The report, the eps of the arithmetic it was computed in, and the largest |A|."""
    subject = probe.subject
    if min(prompt.rollouts for prompt in problem.prompts) < subject.min_group:
        reject()
    dtype = _dtype(subject)
    eps, largest = [0.0], [0.0]

    def call(rewards: Any, group_ids: Any) -> Any:
        given = to_tensor(rewards, dtype) if subject.numbers == "torch" else list(map(_number, rewards))
        answer = read_answer(probe.run(given, list(group_ids)), len(group_ids))
        if isinstance(answer.raw, tuple):
            probe.listing = _listing(problem, subject, "[0]")
        if subject.numbers == "exact" and any(isinstance(a, float) for a in answer.advantages):
            raise SubjectError('returned floats for Fractions; say arrays "float" if it computes with floats')
        if not all(map(math.isfinite, answer.advantages)):
            raise Violation("non-finite advantages for one of the outcomes", "finite numbers", show(answer.advantages))
        eps[0] = max(eps[0], answer.eps)
        largest[0] = max([largest[0], *(abs(float(a)) for a in answer.advantages)])
        return answer.advantages

    def _number(value: Any) -> Any:
        return value if subject.numbers == "exact" else float(value)

    probe.listing = _listing(problem, subject)
    return evaluate(problem, call, arithmetic="exact" if subject.numbers == "exact" else "float"), eps[0], largest[0]


def _dtype(subject: Subject) -> str:
    return "float64" if "float64" in subject.dtypes else subject.dtypes[0]


def _listing(problem: Problem, subject: Subject, first: str = "") -> str:
    """The enumeration as Python to paste; `first` picks the advantages where the estimator returns several outputs."""
    prompts = ", ".join(
        f"Prompt([{', '.join(f'{str(p)!r}' for p in prompt.probabilities)}], "
        f"[{', '.join(f'{str(r)!r}' for r in prompt.rewards)}], {prompt.rollouts})"
        for prompt in problem.prompts
    )
    how = "" if subject.numbers == "exact" else ', arithmetic="float"'
    return "\n".join(
        [
            "from refbase.exact import Problem, Prompt, evaluate",
            _adapter(subject, first),
            f"problem = Problem([{prompts}])",
            f"report = evaluate(problem, advantages{how})",
            "print(report.expected_gradient, report.true_gradient)",
        ]
    )


def _adapter(subject: Subject, first: str) -> str:
    """A function ``advantages(rewards, group_ids)`` around ``estimator``, as `evaluate` calls it."""
    if subject.adapter is not None:
        text = subject.adapter(subject.options, _dtype(subject), first)
    else:
        given = {
            "exact": "rewards",
            "float": "rewards.tolist()",
            "torch": f"torch.tensor(rewards, dtype=torch.{_dtype(subject)})",
        }[subject.numbers]
        options = "".join(f", {key}={_text(value)}" for key, value in subject.options.items())
        text = f"def advantages(rewards, group_ids):\n    return estimator({given}, list(group_ids){options}){first}"
    return f"\n\n{text}\n\n"


def _text(value: Any) -> str:
    return render_number(value) if isinstance(value, (Fraction, float)) else repr(value)


#: Joint outcomes of one problem, each of which costs a call: four prompts of two rollouts and two responses.
BUDGET = 256
#: Rollouts of a prompt at most: so many with two responses are the budget.
LARGEST = 8


@st.composite
def few_prompts(draw: st.DrawFn, subject: Subject, least: int = 1) -> Problem:
    """One to three prompts of two or three responses, in groups of unequal size where the subject takes them.

    From groups of four on it is two responses, or there would be too many outcomes: up to `LARGEST` rollouts then.
    """
    left = BUDGET
    least = max(least, subject.min_group)
    prompts: list[Prompt] = []
    most = 3 if least <= 3 else max(least, LARGEST)
    size = draw(st.integers(least, most))
    for _ in range(draw(st.integers(1, 3))):
        responses = draw(st.integers(2, 3 if least <= 3 else 2))
        rollouts = draw(st.integers(least, most)) if subject.ragged else size
        if responses**rollouts > left:
            break
        left //= responses**rollouts
        prompts.append(draw(prompts_of(responses, rollouts)))
    return Problem(prompts)


@st.composite
def many_prompts(draw: st.DrawFn, subject: Subject, least: int = 1) -> Problem:
    """Four prompts of two rollouts, and up to two whose policy is certain of its response.

    What estimates a spread between prompts needs several others: `shrinkage_js` acts from four prompts on, below
    which its weight is 0. A certain response adds a group and no outcome.
    """
    prompts = [draw(prompts_of(2, 2)) for _ in range(4)]
    for _ in range(draw(st.integers(0, 2))):
        rollouts = draw(st.integers(max(least, subject.min_group), 3)) if subject.ragged else 2
        prompts.append(Prompt([1], [draw(REWARDS)], rollouts))
    return Problem(prompts)


@st.composite
def prompts_of(draw: st.DrawFn, responses: int, rollouts: int) -> Prompt:
    shares = draw(st.lists(st.integers(1, 4), min_size=responses, max_size=responses))
    rewards = draw(st.lists(REWARDS, min_size=responses, max_size=responses))
    return Prompt([Fraction(share, sum(shares)) for share in shares], rewards, rollouts)


def problems(subject: Subject, least: int = 1) -> Any:
    """Problems of both kinds; the second only for groups that may be as small as two."""
    few = few_prompts(subject, least)
    return few if subject.min_group > 2 else st.one_of(few, many_prompts(subject, least))


def _enumerable(subject: Subject) -> str | None:
    return "its smallest group has too many outcomes to enumerate" if 2**subject.min_group > BUDGET else None


LAWS = (
    Law(
        "unbiased",
        "E[A_ij grad log pi(y_ij)] = grad E r, summed over all outcomes of a small problem",
        frozenset({"unbiased"}),
        problems,
        _unbiased,
        _enumerable,
        max_examples=40,
        sized=False,
    ),
    Law(
        "unbiased_up_to_factor",
        "E[A_ij grad log pi(y_ij)] = (m-1)/m * grad E r for m rollouts of the prompt, m >= 2",
        frozenset({"unbiased_up_to_factor"}),
        lambda subject: problems(subject, least=2),
        _up_to_factor,
        _enumerable,
        max_examples=40,
        sized=False,
    ),
)
