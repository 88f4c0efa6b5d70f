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

    **Definition.** `shrinkage` with another weight, one per rollout. Averages and sums run over the other prompts
    k != i; SS_k is the sum of squared deviations of prompt k, q_k = m_k - 1, Q = sum of q_k, and N = n - 1 the number
    of those with q_k >= 1::

        sigma2 = sum SS_k / Q                                   pooled within-prompt variance
        kappa  = (sum SS_k)^2 / sum SS_k^2                      effective number of prompts behind it
        S      = sum q_k * (mu_k - weighted mean of mu_k)^2     observed spread of the means
        noise  = sigma2 * sum q_k * (Q - q_k) / (Q * m_k)       what sampling alone contributes to it
        a      = (n - 3)/(n - 1)                                James and Stein's factor
        t      = max(0, S/a * (kappa + 1)/kappa - noise)        what the true means contribute
        V      = 2/(n - 2) * S^2 + noise^2/kappa                its sampling variance
        spread = t^3/(t^2 + V) * Q / (Q^2 - sum q_k^2)          variance of the true means
        v      = sigma2 / (m_i - 1)                             variance of the leave-one-out mean
        g      = v + spread + (spread + sigma2 * average of 1/m_k) / (number of other prompts)
        w      = v / max(g, (local - target)^2 / (a * n))

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
    In this order: one prompt -> w = 0; a group of one -> w = 1; fewer than three other prompts with two rollouts
    -> w = 0, so that up to three prompts it is `rloo`; all SS_k = 0 -> w = 0. One prompt with one rollout keeps its
    raw reward. Constant group: not 0 in general. No valid rollout: zeros. Empty batch: `InputError`.

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
    Efron, Morris, "Limiting the risk of Bayes and empirical Bayes estimators, Part II", JASA 67, 1972.
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
        local = mean(group.without(j))
        return Blend(local, target, corrected_weight(group.size, local - target, rest))

    return assemble("shrinkage_js", groups, n_rows, rule)


def corrected_weight(size: int, gap: Any, rest: Sequence[Group]) -> Any:
    """lambda = v / E gap^2: `gap` is local minus target, everything else comes from the other prompts.

    E gap^2 is the larger of what the other prompts predict and the own gap's share of the mean over n prompts.
    """
    informed = [group for group in rest if group.size > 1]  # these have a variance
    n = len(informed) + 1
    squares = total([group.squares for group in informed]) if informed else 0
    if n <= 3 or squares == 0:
        return 0
    noise = squares / sum(group.size - 1 for group in informed)  # pooled within-prompt variance
    spread = true_spread(informed, noise, squares)
    v = noise / (size - 1)
    inverse_sizes = total([noise / group.size for group in rest]) / len(rest)
    predicted = v + spread + (spread + inverse_sizes) / len(rest)
    return v / larger(predicted, gap * gap * (n - 1) / (n * (n - 3)))


def true_spread(informed: Sequence[Group], noise: Any, squares: Any) -> Any:
    """Between-prompt variance of the true means: observed spread minus sampling noise, scaled by its reliability.

    The observed spread is inflated by James and Stein's (n-1)/(n-3) and, for the unknown variance, by (kappa+1)/kappa,
    where kappa is Kish's effective number of groups behind the pooled variance.
    """
    n = len(informed) + 1
    between, sampling, one_over_kappa = observed_spread(informed, noise, squares)
    excess = larger(between * (n - 1) * (1 + one_over_kappa) / (n - 3) - sampling, 0 * noise)
    return reliable(excess, excess_variance(between, sampling, n, one_over_kappa))


def observed_spread(informed: Sequence[Group], noise: Any, squares: Any) -> tuple[Any, Any, Any]:
    """Variance of the observed means, what sampling alone contributes to it, and 1/kappa; groups count by m - 1."""
    dof = [group.size - 1 for group in informed]
    q = sum(dof)
    means = [group.mean for group in informed]
    anchor = means[0]
    centre = anchor + total([w * (x - anchor) for w, x in zip(dof, means, strict=True)]) / q
    between = total([w * (x - centre) * (x - centre) for w, x in zip(dof, means, strict=True)])
    sampling = total([noise * (w * (q - w)) / (q * g.size) for w, g in zip(dof, informed, strict=True)])
    freedom = q * q - sum(w * w for w in dof)  # over q, the expectation of `between` for a variance of one
    one_over_kappa = total([(g.squares / squares) * (g.squares / squares) for g in informed])
    return between * q / freedom, sampling * q / freedom, one_over_kappa


def excess_variance(between: Any, sampling: Any, n: int, one_over_kappa: Any) -> Any:
    """Sampling variance of the observed spread less its noise."""
    return 2 * between * between / (n - 2) + one_over_kappa * sampling * sampling


def reliable(excess: Any, variance: Any) -> Any:
    """Of all multiples of an unbiased estimate t of t0, t / (1 + Var t/t0^2) has the least relative squared error."""
    return excess if excess == 0 else excess / (1 + variance / (excess * excess))
