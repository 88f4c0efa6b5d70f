"""Corrected James-Stein shrinkage: the between-prompt spread without the noise of the means."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from refbase.estimate import Estimate
from refbase.spec._groups import Blend, Group, assemble, mean, others, read_groups, total
from refbase.spec._numbers import larger


def shrinkage_js(
    rewards: Sequence[Any],
    group_ids: Sequence[Hashable],
    valid: Sequence[bool] | None = None,
    *,
    nonfinite: str = "raise",
) -> Estimate:
    """James-Stein baseline whose weight discounts the noise of the prompts' means.

    **Definition.** `shrinkage` with another weight. Averages and sums run over the other prompts k != i; SS_k is the
    sum of squared deviations of prompt k, q_k = m_k - 1, Q = sum of q_k, N the number of those with q_k >= 1::

        sigma2 = sum SS_k / Q                                   pooled within-prompt variance
        nu     = (sum SS_k)^2 / sum(SS_k^2 / q_k)               its effective degrees of freedom
        S      = sum q_k * (mu_k - weighted mean of mu_k)^2     observed spread of the means
        noise  = sigma2 * sum q_k * (Q - q_k) / (Q * m_k)       what sampling alone contributes to it
        c      = (N - 3)/(N - 1) * nu/(nu + 2)
        spread = max(0, S/c - noise) * Q / (Q^2 - sum q_k^2)    variance of the true means
        v      = sigma2 / (m_i - 1)                             variance of the leave-one-out mean
        w      = v / (v + spread + (spread + sigma2 * average of 1/m_k) / (n - 1))

    Parameters
    ----------
    rewards
        (N,) numbers, one return per rollout, in any reward unit. Torch tensors of any real dtype are computed by
        the kernel; arrays and sequences (float, int, ``Fraction``, sympy) by this function.
    group_ids
        (N,) hashable labels: the prompt that each rollout answers. Rows may come in any order.
    valid
        (N,) booleans or 0 and 1; False takes a rollout out of every statistic. Default: all True.
    nonfinite
        ``"raise"`` or ``"exclude"``: a NaN or infinite reward of a valid rollout is an error, or makes it invalid.

    Returns
    -------
    Estimate
        ``local`` is the leave-one-out mean, ``target`` the other prompts' mean; ``scale`` is None.

    Raises
    ------
    InputError, InputTypeError
        As for every estimator, see "Errors" in `refbase`.

    Edge cases
    ----------
    In this order: one prompt -> w = 0; a group of one -> w = 1; fewer than four other prompts with two rollouts
    -> w = 0, so that up to four prompts it is `rloo`; all SS_k = 0 -> w = 0. One prompt with one rollout keeps its raw
    reward. Constant group: not 0 in general. No valid rollout: zeros. Empty batch: `InputError`.

    Laws
    ----
    shift, scale, own_reward_independent, unbiased, convex_weight

    Differs from
    ------------
    `shrinkage` compares v with the spread of noisy means, so that in large batches it never shrinks by more than
    half: with five prompts of rewards (1, 0), (1, 0), (1, 0), (1, 0), (1, 1) the last gets w = 4/5 there and 8/9 here.
    The rule is this library's; no paper and no other code has it.

    References
    ----------
    James, Stein, "Estimation with quadratic loss", Berkeley Symposium 1961.
    Zeng, Zhou, Arora, Zanette, "Shrinking the Variance", arXiv 2511.03710.

    Examples
    --------
    >>> import refbase
    >>> from fractions import Fraction as F
    >>> rewards = [F(1), F(0)] * 5
    >>> estimate = refbase.shrinkage_js(rewards, ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e"])
    >>> str(estimate.weight[0]), str(estimate.baseline[0])
    ('8/9', '4/9')
    """
    groups, n_rows = read_groups("shrinkage_js", rewards, group_ids, valid, nonfinite)

    def rule(i: int, j: int) -> Blend:
        group, rest = groups[i], others(groups, i)
        if not rest:
            return Blend(local=mean(group.without(j))) if group.size > 1 else Blend()
        target = mean([other.mean for other in rest])
        if group.size == 1:
            return Blend(target=target, weight=1)
        return Blend(mean(group.without(j)), target, corrected_weight(group.size, rest))

    return assemble("shrinkage_js", groups, n_rows, rule)


def corrected_weight(size: int, rest: Sequence[Group]) -> Any:
    """lambda = v / (v + spread + Var(target)), all from the other prompts."""
    informed = [group for group in rest if group.size > 1]  # these have a variance
    if len(informed) <= 3:  # the James-Stein factor (N-3)/(N-1) is not positive
        return 0
    dof = [group.size - 1 for group in informed]
    squares = total([group.squares for group in informed])
    if squares == 0:
        return 0
    noise = squares / sum(dof)  # pooled within-prompt variance
    # Satterthwaite's effective degrees of freedom of that pooled variance
    nu = squares * squares / total([g.squares * g.squares / q for g, q in zip(informed, dof, strict=True)])
    spread = true_spread(informed, dof, noise, nu)
    v = noise / (size - 1)
    inverse_sizes = total([noise / group.size for group in rest]) / len(rest)
    return v / (v + spread + (spread + inverse_sizes) / len(rest))


def true_spread(informed: Sequence[Group], dof: Sequence[int], noise: Any, nu: Any) -> Any:
    """Between-prompt variance of the true means, from the positive-part James-Stein factor.

    With weights q_k = m_k - 1: S is the weighted between-prompt variance of the observed means, normalised
    so that a true spread enters with coefficient 1, and v_bar the sampling variance it contains. The factor
    B = min(1, c * v_bar / S) with c = (N-3)/(N-1) * nu/(nu+2) gives spread = v_bar * (1/B - 1).
    """
    q = sum(dof)
    means = [group.mean for group in informed]
    anchor = means[0]
    centre = anchor + total([w * (x - anchor) for w, x in zip(dof, means, strict=True)]) / q
    between = total([w * (x - centre) * (x - centre) for w, x in zip(dof, means, strict=True)])
    sampling = total([noise * (w * (q - w)) / (q * g.size) for w, g in zip(dof, informed, strict=True)])
    n = len(informed)
    c = (n - 3) * nu / ((n - 1) * (nu + 2))
    scaled = larger(between / c - sampling, 0 * noise)
    return scaled * q / (q * q - sum(w * w for w in dof))
