"""Exact bias, variance and error of an advantage estimator, by enumerating every outcome of a small problem.

A `Problem` is a batch of prompts. Each `Prompt` has a softmax policy over a few responses, with rational
probabilities π and its own logits, a reward per response and a number of rollouts m. `evaluate` goes
through every joint outcome of the batch and returns, as `fractions.Fraction`, what sampling could only
estimate.

Conventions
-----------
* The score of response y is ``e_y - π``, the gradient of ``log π(y)`` in the prompt's logits.
* A prompt's gradient is the **mean over its rollouts**, ``g_i = 1/m_i Σ_j A_ij (e_{y_ij} - π_i)``; its
  target is ``∇ E r = Σ_y π(y) r(y) (e_y - π)``.
* Prompts have separate logits, so the batch gradient is the tuple of the ``g_i`` (the gradient of the
  *sum* of the prompts' expected rewards) and its variance, the trace of the covariance, is the **sum over
  prompts**.
* The error of the baseline is ``(b_ij - E r_i)²``, **averaged** over the prompt's rollouts, then over
  prompts.

Feasible sizes
--------------
The number of outcomes is ``Π_i K_i^m_i`` for K_i responses, or ``Π_i C(m_i + K_i - 1, m_i)`` with
``symmetric=True``; `Problem.outcomes` counts them. In rationals an outcome costs 0.1 to 1 ms, nearly all
of it in the estimator, so 1e4 outcomes take seconds. In floats an estimator that takes a matrix
(``batched=True``) does 1e6 outcomes in seconds, and `stacked` makes one of a function that looks at one
group at a time; one called outcome by outcome costs what its calls cost.
"""

from refbase.exact.enumeration import evaluate, on_torch, stacked
from refbase.exact.problem import Problem, Prompt
from refbase.exact.report import Report

__all__ = ["Problem", "Prompt", "Report", "evaluate", "on_torch", "stacked"]
